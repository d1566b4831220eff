"""A try before anything is decided: whether a network runs at all without some of its channels or heads.

Some code repeats a width, or takes the number or the size of its heads from elsewhere: from the width of its input,
from a setting of the whole network, from a constant. No trace shows that, and a cut that cannot run can neither be
weighed nor checked.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cosep.layers import INNER, INNER_WIDTHS, number_of, written_out
from cosep.models.modes import evaluating
from cosep.records import Group, Slice
from cosep.surgery.cut import apply_layout, layout_of, merged_layout

# Channels of each block that a try keeps: code that splits or folds channels mostly needs an even number of them, and
# with one alone a `squeeze` would take their axis away.
TRIED = 3


def with_cuts_tried(model: nn.Module, groups: Iterable[Group], example_input: Tensor) -> tuple[Group, ...]:
    """The groups; one without most of which the network does not run is not prunable, and says why.

    A group that runs if numbers which modules keep of their own width change with it, or if attention is told how wide
    it is inside, has these among its slices.
    """
    groups, model = tuple(groups), written_out(model)
    free = [group for group in groups if group.scope is not None]
    if not free or not _failure(model, free, example_input):
        return groups
    heads = [group for group in groups if group.unit == "head"]
    runs: list[Group] = []
    tried: dict[str, Group] = {}
    for group in free:
        why = _failure(model, [*runs, group], example_input)
        for other in _with_numbers(model, group, heads) if why else ():
            if not _failure(model, [*runs, other], example_input):
                group, why = other, ""
                break
        if why:
            because = ": its code takes their number from something that stays" if group.unit == "head" else ""
            reason = f"the network does not run with fewer {group.unit}s{because} ({why})"
            tried[group.name] = replace(group, scope=None, why_not=reason)
        else:
            tried[group.name] = group
            runs.append(group)
    return tuple(tried.get(group.name, group) for group in groups)


def _with_numbers(model: nn.Module, group: Group, heads: Sequence[Group]) -> Iterator[Group]:
    """The group with what may have to change with it: first numbers, then the inner width of attention, then both."""
    if group.unit == "head":
        told = _inner_widths(group)
        numbers: list[Slice] = []
    else:  # attention stays as wide inside as it is, whatever becomes of its input
        told = [replace(piece, positions=_none(group.width)) for each in heads for piece in _inner_widths(each)]
        numbers = _widths(model, group, {piece.module for each in heads for piece in each.slices})
    for more in (numbers, told, [*numbers, *told] if numbers and told else []):
        if more:
            yield replace(group, slices=(*group.slices, *more))


def _inner_widths(group: Group) -> list[Slice]:
    """The inner widths of the attentions whose heads these are, each by the layer in it that reads all its heads."""
    reading = [piece for piece in group.slices if piece.side == "in" and piece.module in group.consumers]
    widest = max((piece.span for piece in reading), default=0)
    found = []
    for piece in reading:
        path = piece.module.rpartition(".")[0]
        while path and not any(producer.startswith(f"{path}.") for producer in group.producers):
            path = path.rpartition(".")[0]
        if path and piece.span == widest:
            found.append(Slice(f"{path}.{INNER}.{piece.module[len(path) + 1 :]}", "out", piece.positions))
    return found


def _widths(model: nn.Module, group: Group, taken: Container[str]) -> list[Slice]:
    """What the modules around a group's layers say of its width, but for numbers that are taken: those count heads."""
    modules = dict(model.named_modules())
    around = {path for piece in group.slices for path in _above(piece.module) if path in modules}
    return [
        Slice(f"{path}.{name}" if path else name, "out", torch.arange(group.width).unsqueeze(1))
        for path in sorted(around)
        for name in INNER_WIDTHS
        if number_of(modules[path], name) == group.width and f"{path}.{name}" not in taken
    ]


def _above(name: str) -> Iterator[str]:
    """The paths of everything that a module is in, the network itself included."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _none(width: int) -> Tensor:
    """Places of channels that have none."""
    return torch.zeros((width, 0), dtype=torch.int64)


def _failure(model: nn.Module, groups: Sequence[Group], example_input: Tensor) -> str:
    """What a network raises that keeps only a few channels, or one head, of these groups; "" where it runs."""
    try:
        layout = merged_layout(*(layout_of(model, group, _few(group), {}) for group in groups))
        small = apply_layout(model, layout)
        with evaluating(model, small):
            if small(example_input[:1]).shape != model(example_input[:1]).shape:
                return "its output has another shape"
    except Exception as error:  # whatever the user's forward raises
        text = str(error).strip().splitlines()
        return f"{type(error).__name__}: {text[0] if text else 'no message'}"
    return ""


def _few(group: Group) -> list[int]:
    """The first channels of every block, or the first head."""
    size = group.width // group.blocks
    count = 1 if group.unit == "head" else max(1, min(TRIED, size - 1))
    return [block * size + channel for block in range(group.blocks) for channel in range(count)]
