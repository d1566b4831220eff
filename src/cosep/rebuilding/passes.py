"""The rebuild of a model that cannot be run in steps: layer by layer, by passes that end behind the layer.

Every layer costs a part of a pass over the images, and no layer is solved towards a sum: what a layer's output becomes
is not known here. A BatchNorm is a layer like others, since nothing says whose output it reads: it gets the statistics
of the rebuilt network, and scale and shift towards the uncut network's output of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosep.config import RebuildConfig
from cosep.layers import is_batchnorm
from cosep.layers.maps import LinearMap, is_plain, sampled
from cosep.models.passes import PassEnded, first_of
from cosep.rebuilding.fit import Sums, Team
from cosep.rebuilding.solving import aside, chance, numbered, solve
from cosep.rebuilding.tasks import Fixed, Task, passed_over, why_left
from cosep.records import LayerRebuild, Layout


def solve_by_passes(
    original: nn.Module,
    model: nn.Module,
    layout: Layout,
    inputs: Sequence[Tensor],
    config: RebuildConfig,
    *,
    only: AbstractSet[str] | None,
    team: Team,
    example: Tensor | None = None,
) -> tuple[LayerRebuild, ...]:
    """Solve the layers of a network in place, each towards the uncut network's output of the same layer."""
    calls = _calls(model, inputs[0] if inputs or example is None else example)
    fixed = Fixed.of(model)
    images = team.images or team.size * sum(len(x) for x in inputs)
    # In order of execution: the last one is the classifier, as far as one sees from here.
    last = next((layer for layer in reversed(calls) if not is_batchnorm(model.get_submodule(layer))), "")
    records = []
    for layer, times in calls.items():
        module = model.get_submodule(layer)
        if only is not None and layer not in only:
            continue
        if reason := why_left(module, (0,) * times, fixed):
            records.append(LayerRebuild(layer, "output", False, reason, math.nan, math.nan))
            continue
        kept = layout.get((layer, "out"))
        channels = None if kept is None else torch.tensor(kept)
        task = Task(layer, 0, LinearMap(module), channels=channels, last=layer == last)
        sums = Sums(task.map.parts, task.map.columns, task.map.outputs // task.map.parts)
        for first, x in numbered(inputs, team):
            _, wanted = _seen(original, layer, x)
            read, _ = _seen(model, layer, x)
            where = sampled(task.map, wanted, config.rows, config.positions, images, chance(0, len(records), first))
            targets = task.map.outputs_at(wanted, where, None if channels is None else channels.to(x.device))
            rows, targets = task.map.rows(read, where), targets.unflatten(2, (task.map.parts, -1))
            judged = aside(first, len(x)).to(x.device)
            for some, take in ((~judged, sums.add), (judged, sums.set_aside)):
                take(*(part[some].flatten(0, 1).transpose(0, 1) for part in (rows, targets)))
        records.append(solve(model, task, sums, config, team))
    return (*records, *passed_over(model, calls, only))


def _calls(model: nn.Module, x: Tensor) -> dict[str, int]:
    """The plain layers in the order in which they first run, and how often each does."""
    found: dict[str, int] = {}

    def note(name: str, _module: nn.Module, _args: Any) -> None:
        found[name] = found.get(name, 0) + 1

    handles = [
        module.register_forward_pre_hook(partial(note, name))
        for name, module in model.named_modules()
        if is_plain(module)
    ]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _seen(model: nn.Module, layer: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer reads and gives in a pass over a batch, which ends behind it."""
    found: list[Tensor] = []

    def end(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        found.extend((first_of(args, kwargs), output))
        raise PassEnded

    handle = model.get_submodule(layer).register_forward_hook(end, with_kwargs=True)
    try:
        model(x)
    except PassEnded:
        pass
    finally:
        handle.remove()
    return found[0], found[1]
