"""cosep inspect: a model's groups of channels, which are prunable, which are not and why; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from cosep.cli.common import count, print_json, shape_of
from cosep.config import check_choice
from cosep.groups import find_groups
from cosep.records import Group, Scope, in_all
from cosep.surgery import with_cuts_tried
from cosep.zoo import load_model


def inspect_command(
    model: Annotated[
        str,
        typer.Argument(help="resnet56 | torchvision:resnet50 | timm:NAME | path/to/file.py:factory", metavar="MODEL"),
    ],
    weights: Annotated[Path | None, typer.Option(help="A checkpoint: safetensors or a state dict.")] = None,
    classes: Annotated[int | None, typer.Option(help="The number of classes, where the model can have any.")] = None,
    input_shape: Annotated[
        str | None,
        typer.Option("--input", help="The shape of one input, such as 3,32,32.", show_default="the model's own"),
    ] = None,
    scope: Annotated[str, typer.Option(help="interior, or all: also what additions tie.")] = "interior",
    time_limit: Annotated[float, typer.Option(help="Seconds after which a model is given up.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print the groups as JSON on standard output.")] = False,
) -> None:
    """List the groups of channels of a model in order of execution: prunable or not, and why.

    Example: cosep inspect torchvision:resnet50 --scope all
    """
    check_choice("--scope", scope, Scope)
    shape = shape_of(input_shape, model)
    network = load_model(model, weights=weights, classes=classes)
    example = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    groups = with_cuts_tried(network, find_groups(network, example, time_limit=time_limit), example)
    if json:
        print_json(groups_document(model, shape, groups, scope))
        return
    screen = Console()
    screen.print(groups_table(model, groups, scope))
    prunable = [g for g in groups if is_prunable(g, scope)]
    amounts = in_all([(g.unit, g.width) for g in prunable])
    screen.print(f"{len(prunable)} of {len(groups)} groups are prunable in scope {scope}: {amounts}.")


def is_prunable(group: Group, scope: str) -> bool:
    """Whether a scope may prune a group."""
    return group.scope == "interior" or (group.scope == "all" and scope == "all")


def groups_document(model: str, shape: Sequence[int], groups: Sequence[Group], scope: str) -> dict[str, Any]:
    """What the Python API returns, as JSON."""
    return {
        "model": model,
        "input": list(shape),
        "scope": scope,
        "groups": [
            {
                "name": g.name,
                "width": g.width,
                "unit": g.unit,
                "producers": list(g.producers),
                "consumers": list(g.consumers),
                "macs": g.macs,
                "scope": g.scope,
                "prunable": is_prunable(g, scope),
                "why_not": g.why_not,
                "blocks": g.blocks,
                "holds": [{"module": s.module, "side": s.side, "span": s.span} for s in g.slices],
            }
            for g in groups
        ],
    }


def groups_table(model: str, groups: Sequence[Group], scope: str) -> Table:
    """The groups as a table for people; a name is never cut off: on a narrow screen it goes on in the next line."""
    table = Table(title=f"channel groups of {model}")
    for name in ("group", "width", "used by", "MACs", "prunable"):
        narrow = name in ("width", "MACs")
        table.add_column(name, justify="right" if narrow else "left", no_wrap=narrow, overflow="fold")
    for g in groups:
        balanced = f" ({g.blocks} equal blocks)" if g.blocks > 1 else ""
        verdict = f"[green]yes[/green]{balanced}" if is_prunable(g, scope) else f"no: {g.why_not}"
        others = [name for name in g.producers if name != g.name]
        if others and others[0] not in verdict:
            more = f" and {len(others) - 2} more" if len(others) > 2 else ""
            verdict += f"; together with {', '.join(others[:2])}{more}"
        width = f"{g.width} heads" if g.unit == "head" else str(g.width)
        table.add_row(g.name, width, _few(g.consumers), count(g.macs), verdict)
    return table


def _few(names: Sequence[str], most: int = 2) -> str:
    return "\n".join(names[:most]) + (f"\nand {len(names) - most} more" if len(names) > most else "") or "–"
