"""Blocks refined: after their layers are solved one by one, all weights of a block move together.

A closed form aims at what the uncut network has behind each layer; what counts is what the block gives in the end. So a
few passes of gradient steps over the same images move all weights of a block towards what the uncut network's block
gives, behind its activation and from the inputs that the cut network's block really gets. A block ends where only one
value that its layers made goes on: at a residual sum, or at an output whose channels are all there. No labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cosep.layers import is_batchnorm
from cosep.layers.maps import LinearMap, batchnorm_scale
from cosep.models.tape import Mark, Pass, Tape
from cosep.rebuilding.fit import Team
from cosep.rebuilding.shelf import Laid, Shelf
from cosep.rebuilding.solving import ROWS_OF_LAST, UNTOUCHED, aside, chance, numbered, set_norm
from cosep.rebuilding.tasks import Task
from cosep.records import BlockRebuild

MOST_LAYERS = 4  # of a block that neither a sum nor an output with all its channels ends
LONGEST = 12  # layers; what branches for longer is no block: in a DenseNet every layer's output goes on to the end
RATE = 0.02  # of the first step, relative to the mean size of the weights that it moves
SMALL = 0.01  # the size of weights that are all zero, as a bias may be
# Applied to each number by itself: the uncut network's values behind it are as good as those in front.
ACTIVATIONS = frozenset(
    f"aten.{name}.default"
    for name in ("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "sigmoid", "silu")
)


@dataclass(eq=False)
class Block:
    """Layers that are refined together; they run from the step order[first] on, and `end` is the step compared."""

    tasks: tuple[Task, ...]
    first: int
    steps: tuple[int, ...]  # in the order in which they run, `end` the last
    end: int
    where: list[Tensor] = field(default_factory=list)  # sampled positions, batch by batch
    wanted: list[Laid] = field(default_factory=list)  # the uncut network's rows there

    @property
    def last(self) -> Task:
        """The layer that is solved last."""
        return self.tasks[-1]

    def shares_rows(self, tape: Tape) -> bool:
        """Whether what the last layer is solved towards is what the block should give, up to an activation."""
        return self.end == self.last.target or tape.steps[self.end].sources == (self.last.target,)

    def aims(self, tape: Tape, rows: Tensor) -> Tensor:
        """What the block should give, from the uncut network's rows."""
        if self.shares_rows(tape) and self.end != self.last.target:
            activated: Tensor = tape.steps[self.end].run({self.last.target: rows})
            return activated
        return rows


def find_blocks(tape: Tape, tasks: Mapping[int, Task], order: Sequence[int]) -> list[Block]:
    """The blocks of a network, those that come first first; each layer that is solved is in one of them at most."""
    places = {step: place for place, step in enumerate(order)}
    found: list[Block] = []
    opened: list[Task] = []
    for place, step in enumerate(order):
        task = tasks.get(step)
        if task is None:
            continue
        opened.append(task)
        first, end = places[opened[0].step], _end(tape, task)
        until = places[end]
        if any(order[p] in tasks and not is_batchnorm(tasks[order[p]].map.module) for p in range(place + 1, until + 1)):
            continue
        whole = task.other is not None or task.channels is None or len(opened) >= MOST_LAYERS
        if whole and _alone(tape, order[first : until + 1], end):
            if len(opened) > 1:
                found.append(Block(tuple(opened), first, tuple(order[first : until + 1]), end))
            opened = []
        elif len(opened) > LONGEST:
            opened = []
    return found


def _end(tape: Tape, task: Task) -> int:
    """The step behind a layer, its BatchNorm, the sum that it ends in, and the activation, as far as they are there."""
    end = task.step
    if task.norm:
        end = tape.layers[task.norm][0]
    if task.other is not None:
        end = task.target
    users = tape.steps[end].users
    if len(users) == 1 and tape.steps[users[0]].operation in ACTIVATIONS:
        end = users[0]
    return end


def _alone(tape: Tape, steps: Sequence[int], end: int) -> bool:
    """Whether nothing that these steps make is read behind them but the value of the last."""
    inside = set(steps)
    return all(step == end or inside.issuperset(tape.steps[step].users) for step in steps)


def refine(
    block: Block,
    model: nn.Module,
    passes: Sequence[Pass],
    marks: Sequence[Mark],
    inputs: Sequence[Tensor],
    passes_over: int,
    seed: int,
    team: Team,
    shelf: Shelf,
) -> BlockRebuild:
    """Move a block's weights in place; what is no better on images that no step has seen is taken back.

    The passes are taken back to where the block begins, for the layers behind it to go on from there.
    """
    for number, (run, mark) in enumerate(zip(passes, marks, strict=True)):
        run.rewind(mark)
        shelf.put(number, run)
    bench = _Bench(block, model, passes, numbered(inputs, team), team, shelf)
    names = tuple(task.layer for task in block.tasks)
    weights = bench.weights()
    if any(weight.dtype not in (torch.float32, torch.float64) for weight in weights):
        return BlockRebuild(names, False, "its weights are too coarse for small steps", math.nan, math.nan)
    before, power, rows = bench.errors()
    if block.last.last and rows < ROWS_OF_LAST * block.last.map.columns:
        return BlockRebuild(names, False, f"{rows} rows are too few to move the last layer", math.nan, math.nan)
    if not (math.isfinite(before) and math.isfinite(power) and power > 0):
        return BlockRebuild(names, False, "its outputs are not finite, or do not vary", math.nan, math.nan)
    if before <= UNTOUCHED:
        return BlockRebuild(names, False, "nothing to repair", 0.0, 0.0)
    kept = [tensor.detach().clone() for tensor in bench.state()]
    after = math.inf
    if bench.descend(weights, passes_over, seed, power):
        bench.settle_norms()
        after, *_ = bench.errors()
    if not after < before:
        with torch.no_grad():
            for tensor, old in zip(bench.state(), kept, strict=True):
                tensor.copy_(old)
        return BlockRebuild(names, False, "the steps brought it no closer to the uncut network", before, before)
    team.same([tensor.data for tensor in bench.state()])
    return BlockRebuild(names, True, "refined", before, after)


@dataclass(frozen=True, eq=False)
class _Bench:
    """One block with what goes into it and what should come out, batch by batch."""

    block: Block
    model: nn.Module
    passes: Sequence[Pass]
    numbered: Sequence[tuple[int, Tensor]]  # batches, with the number of their first image
    team: Team
    shelf: Shelf

    def modules(self) -> list[nn.Module]:
        names = [name for task in self.block.tasks for name in (task.layer, task.norm) if name]
        return [self.model.get_submodule(name) for name in dict.fromkeys(names)]

    def weights(self) -> list[nn.Parameter]:
        """What the steps move."""
        return [p for module in self.modules() for p in module._parameters.values() if p is not None]

    def state(self) -> list[Tensor]:
        """All that may change: the weights, and BatchNorm's statistics."""
        norms = [module for module in self.modules() if is_batchnorm(module)]
        buffers = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
        return [*self.weights(), *buffers]

    @contextmanager
    def entered(self, batch: int) -> Iterator[tuple[dict[int, Any], Tensor, Tensor]]:
        """What goes into the block for a batch, the positions that count, and what should be there."""
        run = self.passes[batch]
        inside = set(self.block.steps)
        needed = {s for step in self.block.steps for s in run.tape.steps[step].sources if s not in inside}
        self.shelf.get(batch, run, needed)
        wanted = self.block.aims(run.tape, self.shelf.look(self.block.wanted[batch]))
        yield {step: run.values[step] for step in needed}, self.block.where[batch], wanted
        self.shelf.put(batch, run)

    def run(self, tape: Tape, values: dict[int, Any]) -> dict[int, Any]:
        """Run the block's steps from the values that go into it."""
        for index in self.block.steps:
            values[index] = tape.steps[index].run(values)
        return values

    def missed(self, found: Any, where: Tensor, wanted: Tensor) -> Tensor:
        """The errors of a block's output: (images, positions, outputs)."""
        return self.block.last.map.outputs_at(found, where) - wanted

    @torch.no_grad()
    def errors(self) -> tuple[float, float, int]:
        """The squared error on images set aside, relative to the variance there.

        Of the other images, which steps are made with, the mean squares aimed at of a batch, and the number of rows.
        """
        sums = torch.zeros(6, dtype=torch.float64)
        mean = torch.zeros(self.block.last.map.outputs, dtype=torch.float64)
        for batch, (first, x) in enumerate(self.numbered):
            with self.entered(batch) as (values, where, wanted):
                end = self.run(self.passes[batch].tape, values)[self.block.end]
                judged = aside(first, len(x)).to(x.device)
                errors, aims = self.missed(end, where, wanted)[judged], wanted[judged]
                sums[0] += float(errors.double().square().sum())
                sums[1] += float(aims.double().square().sum())
                sums[2] += aims.shape[0] * aims.shape[1]
                sums[3] += float(wanted[~judged].double().square().sum())
                sums[4] += 1
                sums[5] += float((~judged).sum()) * aims.shape[1]
                mean += aims.double().sum((0, 1)).cpu()
        self.team.total((sums, mean))
        rows = max(float(sums[2]), 1.0)
        spread = float(sums[1]) - float(mean.square().sum()) / rows
        relative = float(sums[0]) / spread if spread > 0 else math.nan
        return relative, float(sums[3] / sums[4].clamp(min=1)), int(sums[5])

    def descend(self, weights: list[nn.Parameter], passes_over: int, seed: int, power: float) -> bool:
        """Gradient steps (Adam), a batch each, the rate falling to zero; False where a step was not finite."""
        asked = [weight.requires_grad for weight in weights]
        firsts = self._all_firsts()
        own = {first: batch for batch, (first, _) in enumerate(self.numbered)}
        sizes = [float(weight.detach().double().square().mean().sqrt()) or SMALL for weight in weights]
        optimizer = torch.optim.Adam(
            [{"params": [weight], "lr": RATE * size} for weight, size in zip(weights, sizes, strict=True)]
        )
        steps = passes_over * len(firsts)
        step = 0
        try:
            for weight in weights:
                weight.requires_grad_(True)
            for number in range(passes_over):
                generator = chance(seed, self.block.end, number)
                for chosen in torch.randperm(len(firsts), generator=generator).tolist():
                    batch = own.get(firsts[chosen])
                    slopes = self._slopes(weights, batch, power)
                    # One process has the batch; the others' slopes are zero. So a step is the same for any number.
                    self.team.total(slopes)
                    if not all(bool(slope.isfinite().all()) for slope in slopes):
                        return False
                    for group, weight, slope, size in zip(optimizer.param_groups, weights, slopes, sizes, strict=True):
                        group["lr"] = RATE * size * (1 + math.cos(math.pi * step / steps)) / 2
                        weight.grad = slope
                    optimizer.step()
                    step += 1
        finally:
            for weight, flag in zip(weights, asked, strict=True):
                weight.requires_grad_(flag)
                weight.grad = None
        return True

    def _slopes(self, weights: list[nn.Parameter], batch: int | None, power: float) -> list[Tensor]:
        nothing = [torch.zeros_like(weight, requires_grad=False) for weight in weights]
        if batch is None:
            return nothing
        first, x = self.numbered[batch]
        with self.entered(batch) as (values, where, wanted), torch.enable_grad():
            end = self.run(self.passes[batch].tape, values)[self.block.end]
            errors = self.missed(end, where, wanted)[~aside(first, len(x)).to(x.device)]
            loss = errors.square().sum() / power
            found = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else nothing
        return [none if slope is None else slope for slope, none in zip(found, nothing, strict=True)]

    def _all_firsts(self) -> list[int]:
        """The numbers of the first images of all batches, whichever process has them."""
        if self.team.size == 1:
            return [first for first, _ in self.numbered]
        begins = torch.zeros(max(self.team.images, 1), dtype=torch.float64)
        begins[[first for first, _ in self.numbered]] = 1
        self.team.total((begins,))
        return torch.nonzero(begins).flatten().tolist()

    @torch.no_grad()
    def settle_norms(self) -> None:
        """Give each BatchNorm the statistics of what it now gets; what it computes stays the same."""
        norms = {name: self.model.get_submodule(name) for name in self._norms()}
        sums = {name: torch.zeros(3, LinearMap(norm).outputs, dtype=torch.float64) for name, norm in norms.items()}
        for batch in range(len(self.numbered)):
            with self.entered(batch) as (values, _, _):
                tape = self.passes[batch].tape
                source = {name: tape.steps[tape.layers[name][0]].sources[0] for name in sums}
                self.run(tape, values)
                for name, total in sums.items():
                    x = values[source[name]].movedim(1, -1).flatten(0, -2).double().cpu()
                    total += torch.stack([x.new_full((x.shape[1],), len(x)), x.sum(0), x.square().sum(0)])
        self.team.total(list(sums.values()))
        for name, norm in norms.items():
            assert is_batchnorm(norm)
            count, total, squares = sums[name]
            mean = total / count.clamp(min=1)
            variance = (squares / count.clamp(min=1) - mean.square()).clamp(min=0)
            scale, shift = batchnorm_scale(norm), LinearMap(norm).constant()
            if (
                bool(mean.isfinite().all() and variance.isfinite().all())
                and norm.weight is not None
                and norm.bias is not None
            ):
                set_norm(norm, mean, variance, scale, shift + scale * mean)

    def _norms(self) -> list[str]:
        own = [task.norm for task in self.block.tasks if task.norm]
        return own + [task.layer for task in self.block.tasks if is_batchnorm(task.map.module)]
