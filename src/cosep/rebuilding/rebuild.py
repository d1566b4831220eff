"""Rebuild: the cut network's layers re-solved, in order of execution, beside the uncut network on the same images.

Both networks run side by side as tapes, each layer once for each image. A layer of the cut network is solved on its
own, already rebuilt inputs towards what the uncut network has at the same place; where its output ends in a sum,
towards the uncut network's sum less what the cut one's other branch gives, so that a block also repairs what earlier
cuts did to the residual stream. The maths is in docs/rebuild.md. No labels are needed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cosep.config import RebuildConfig
from cosep.data.batches import small_images
from cosep.layers import written_out
from cosep.layers.maps import sampled
from cosep.models.heap import give_back_freed_memory
from cosep.models.modes import evaluating
from cosep.models.tape import Mark, Pass, TapeError, recorded
from cosep.rebuilding.batchnorm import reestimate_batchnorm
from cosep.rebuilding.fit import ALONE, Sums, Team
from cosep.rebuilding.passes import solve_by_passes
from cosep.rebuilding.refining import Block, find_blocks, refine
from cosep.rebuilding.shelf import Shelf
from cosep.rebuilding.solving import aside, chance, numbered, solve
from cosep.rebuilding.tasks import Task, find_tasks, in_order
from cosep.records import BlockRebuild, LayerRebuild, Layout

TEMPERATURE = 4.0  # of the divergence between two networks' outputs
# Images up to 64 x 64, and above, behind the BatchNorm statistics of the plain cut that a rebuilt network must beat.
NORM_IMAGES, LARGE_NORM_IMAGES = 512, 128


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A rebuilt network, what became of its layers, and how far its outputs are from the uncut network's.

    Divergences are KL at temperature 4 on images that no fit has seen; nan where only a part was rebuilt.
    """

    model: nn.Module
    layers: tuple[LayerRebuild, ...]
    divergence: float = math.nan
    divergence_cut: float = math.nan  # of the plainly cut network with BatchNorm measured again
    notes: tuple[str, ...] = ()
    blocks: tuple[BlockRebuild, ...] = ()


def rebuild(
    original: nn.Module,
    model: nn.Module,
    layout: Layout,
    batches: Iterable[Tensor],
    config: RebuildConfig | None = None,
    *,
    seed: int = 0,
    only: AbstractSet[str] | None = None,
    team: Team = ALONE,
    example: Tensor | None = None,
) -> Rebuilt:
    """A copy of `model`, which was cut from `original` as the layout says, its layers re-solved on batches of images.

    only: the layers that may change, where not all of them may. team: the processes that have the other batches; one
    without any batch of its own needs an `example` of them.
    """
    config = config or RebuildConfig()
    inputs = list(batches)
    # A cut writes torch's attention out as plain layers: so must be what it is compared with.
    original, model = written_out(original), written_out(model)
    result = copy.deepcopy(model)
    with evaluating(original, result):
        judged = [x[some] for first, x in numbered(inputs, team) if bool((some := aside(first, len(x))).any())]
        goals = [original(x) for x in judged] if only is None else []
        notes: tuple[str, ...] = ()
        tapes, reason = _tapes(original, result, inputs if example is None else [*inputs, example], team)
        blocks: tuple[BlockRebuild, ...] = ()
        if tapes is not None:
            layers, blocks = _swept(tapes, result, layout, inputs, config, seed, only, team)
        else:
            layers = solve_by_passes(original, result, layout, inputs, config, only=only, team=team, example=example)
            notes = (f"layer by layer, since the model cannot be run in steps: {reason}",)
        if only is not None:
            return Rebuilt(result, layers, notes=notes)
        plain = copy.deepcopy(model)
        _measure_norms(plain, inputs)
        team.same([tensor for name, tensor in plain.named_buffers() if name.endswith(("running_mean", "running_var"))])
        after, before = (_divergence(net, judged, goals, team) for net in (result, plain))
    if not after <= before:
        note = f"the rebuilt network was further from the uncut one than plain cutting ({after:.3g} to {before:.3g})"
        return Rebuilt(plain, layers, before, before, (*notes, f"{note}: plainly cut"), blocks)
    return Rebuilt(result, layers, after, before, notes, blocks)


def _measure_norms(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """BatchNorm statistics of a plainly cut network, from some of the images."""
    several = [x for x in inputs if len(x) > 1]
    if several:
        images = NORM_IMAGES if small_images(several[0].shape) else LARGE_NORM_IMAGES
        reestimate_batchnorm(model, several, max_batches=max(1, images // len(several[0])))


def _divergence(model: nn.Module, judged: Sequence[Tensor], goals: Sequence[Tensor], team: Team) -> float:
    """The mean divergence of a network's outputs from the goals, on the images that are set aside."""
    total = torch.zeros(2, dtype=torch.float64)
    with evaluating(model):  # a copy has the training flags of the network that it was made of
        for x, goal in zip(judged, goals, strict=True):
            total[0] += divergence_of(model(x), goal, "sum").cpu()
            total[1] += len(goal)
    team.total((total,))
    return float(total[0] / total[1].clamp(min=1))


def divergence_of(found: Tensor, goal: Tensor, reduction: str = "batchmean") -> Tensor:
    """KL from the goal's softened probabilities to the found ones, times the squared temperature as in distillation."""
    if found.ndim != 2:
        found, goal = found.flatten(0, -2), goal.flatten(0, -2)
    log_found, log_goal = (F.log_softmax(scores.double() / TEMPERATURE, dim=1) for scores in (found, goal))
    return TEMPERATURE**2 * F.kl_div(log_found, log_goal, log_target=True, reduction=reduction)


def _tapes(original: nn.Module, model: nn.Module, inputs: Sequence[Tensor], team: Team) -> tuple[_Tapes | None, str]:
    """The tapes of both networks; None, and why, where any of the processes cannot run them in steps.

    Each process knows its own images only, but one that went another way than the others would wait for them forever.
    """
    tapes, reason = None, ""
    try:
        tapes = _Tapes(original, model, inputs)
    except TapeError as error:
        reason = str(error)
    failed = torch.tensor(float(tapes is None))
    team.total((failed,))
    return (None, reason or "another process found that out") if failed else (tapes, "")


def _swept(
    tapes: _Tapes,
    model: nn.Module,
    layout: Layout,
    inputs: Sequence[Tensor],
    config: RebuildConfig,
    seed: int,
    only: AbstractSet[str] | None,
    team: Team,
) -> tuple[tuple[LayerRebuild, ...], tuple[BlockRebuild, ...]]:
    """Solve the layers of a network in place, in one sweep over both tapes; refine each block once it is solved."""
    tape = next(iter(tapes.cut.values()))
    tasks, left = find_tasks(tape, model, layout, only)
    order = in_order(tape, tasks)
    refined = config.refine if only is None else 0  # of one group alone, a block is no unit
    blocks = find_blocks(tape, tasks, order) if refined else []
    opening = {block.tasks[0].step for block in blocks}
    closing_at = {block.last.step: block for block in blocks}
    sharing = {block.last.step for block in blocks if block.shares_rows(tape)}
    passes = [Pass.begun(tapes.cut[tuple(x.shape)], x) for x in inputs]
    marks: list[Mark] = []
    records: list[LayerRebuild] = []
    block_records: list[BlockRebuild] = []
    done = 0
    with closing(Shelf(int(config.memory * 2**30))) as shelf:
        apart = [block for block in blocks if block.last.step not in sharing]
        _see_original(tapes, inputs, tasks, apart, config, seed, team, shelf)
        for place, step in enumerate(order):
            task = tasks.get(step)
            if task is None:
                continue
            needed = {source for index in order[done:place] for source in tape.steps[index].sources}
            needed |= {tape.steps[step].sources[0], *(() if task.other is None else (task.other,))}
            sums = Sums(task.map.parts, task.map.columns, task.map.outputs // task.map.parts)
            if step in opening:
                marks.clear()
            for batch, (first, _) in enumerate(numbered(inputs, team)):
                shelf.get(batch, passes[batch], needed)
                passes[batch].run(order[done:place])
                if step in opening:
                    marks.append(passes[batch].marked())
                take = shelf.look if step in sharing else shelf.take
                _gather(task, batch, passes[batch], first, take(task.wanted[batch]), sums)
                shelf.put(batch, passes[batch])
            done = place
            if step in sharing:
                closing_at[step].where, closing_at[step].wanted = task.where, list(task.wanted)
            task.wanted.clear()
            records.append(solve(model, task, sums, config, team))
            if shelf.spilled:
                del sums
                give_back_freed_memory()  # between the values that stay, each layer would leave gaps of its own
            if block := closing_at.get(step):
                block_records.append(refine(block, model, passes, marks, inputs, refined, seed, team, shelf))
                for laid in block.wanted:
                    shelf.take(laid)
                block.wanted.clear()
                done = block.first
    return (*records, *left), tuple(block_records)


class _Tapes:
    """The tapes of both networks for every shape of batch, checked against the networks and each other."""

    def __init__(self, original: nn.Module, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        self.whole, self.cut = recorded(original, inputs), recorded(model, inputs)
        first = next(iter(self.cut.values()))
        for shape, tape in self.cut.items():
            if not self.whole[shape].like(tape) or not first.like(tape):
                raise TapeError("its forward takes another course in the cut network, or for another number of images")


def _see_original(
    tapes: _Tapes,
    inputs: Sequence[Tensor],
    tasks: Mapping[int, Task],
    blocks: Sequence[Block],
    config: RebuildConfig,
    seed: int,
    team: Team,
    shelf: Shelf,
) -> None:
    """Run the uncut network once: each task and block gets sampled positions, and the rows that are wanted there."""
    by_target: dict[int, list[Task | Block]] = {}
    for task in tasks.values():
        by_target.setdefault(task.target, []).append(task)
    for block in blocks:
        by_target.setdefault(block.end, []).append(block)
    images = team.images or team.size * sum(len(x) for x in inputs)

    def see(first: int, index: int, value: Any) -> None:
        for aim in by_target.get(index, ()):
            layer = aim if isinstance(aim, Task) else aim.last
            draw = chance(seed, layer.step if layer is aim else index, first)
            where = sampled(layer.map, value, config.rows, config.positions, images, draw)
            channels = None if layer.channels is None else layer.channels.to(value.device)
            aim.where.append(where)
            aim.wanted.append(shelf.lay(layer.map.outputs_at(value, where, channels)))

    end = max(by_target, default=-1) + 1
    for first, x in numbered(inputs, team):
        Pass.begun(tapes.whole[tuple(x.shape)], x).run(range(end), partial(see, first))


def _gather(task: Task, batch: int, run: Pass, first: int, targets: Tensor, sums: Sums) -> None:
    """Take one batch's rows, and the uncut network's rows for it, into the sums."""
    x = run.values[run.tape.steps[task.step].sources[0]]
    rows = task.map.rows(x, task.where[batch])  # (images, positions, parts, columns)
    if task.other is not None:
        targets = targets - task.map.outputs_at(run.values[task.other], task.where[batch])
    targets = targets.unflatten(2, (task.map.parts, -1))
    judged = aside(first, len(x)).to(x.device)
    for some, take in ((~judged, sums.add), (judged, sums.set_aside)):
        take(*(part[some].flatten(0, 1).transpose(0, 1) for part in (rows, targets)))
