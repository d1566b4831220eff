"""Compensation: re-solve the consumers' weights so that the kept channels reproduce what the consumers computed.

The maths is in docs/compensation.md. For one consumer, with patches z = (z_S, z_R) of kept and removed columns, the
change D of the kept columns' weights and the constant c minimise

    E |W_R z_R - D z_S - c|^2 + ridge * |D|^2        =>        D = W_R C_RS (C_SS + ridge)^-1,  c = W_R m_R - D m_S

with C the covariance and m the mean of z; without a place for c, C is the second moment about zero instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cosep.config import SurgeryConfig
from cosep.errors import PlanError
from cosep.layers import is_batchnorm, mixing, places_now
from cosep.models.frozen import frozen_batchnorms
from cosep.rebuilding.gram import GramSum, PatchStatistics, Spread, factored
from cosep.rebuilding.patches import View, read_patches, read_weight, views_of, why_unreadable, write_weight
from cosep.rebuilding.sweep import PrefixCache, Rehearsal, sweep
from cosep.records import Compensation, Group, Layout
from cosep.surgery.cut import copied

# One image in this many never enters the Gram matrix: solutions are judged on it. The first image is one of them.
SET_ASIDE = 16
# Patches to judge by hold at most this many numbers (16 MB in float32), but at least 64 patches.
JUDGED_NUMBERS = 4_000_000


def compensate(
    model: nn.Module,
    group: Group,
    kept: Sequence[int],
    layout: Layout,
    batches: Iterable[Any],
    config: SurgeryConfig | None = None,
    *,
    seed: int = 0,
    cache: PrefixCache | None = None,
    inplace: bool = False,
) -> tuple[nn.Module, tuple[Compensation, ...]]:
    """The model with the group's consumers re-solved for the kept channels, not cut yet, and what became of each.

    To be called before the group is cut. `kept` is in the numbering of the uncut network; `layout` says what earlier
    cuts left of it. A re-solved consumer has new weights for the kept channels and zeros for the removed ones, so that
    cutting them afterwards changes nothing; a consumer that could not be re-solved is left as it was, and its record
    says why. The caller's model is copied and left untouched unless `inplace`. Batches are tensors of images or tuples
    that begin with one; about 10 patches for each column of the Gram matrix are enough. A `cache`, handed from group to
    group in order of execution with the same batches, saves most of the forward passes.
    """
    config = config or SurgeryConfig()
    keep = _checked(group, kept)
    taps = {name: _tap(model, group, name, keep, layout, config, seed) for name in group.consumers}
    if all(tap.refusal for tap in taps.values()):
        rehearsal = None
    else:
        readers = {name: tap.read for name, tap in taps.items() if not tap.refusal}
        entries = _entries(group.producers[0]) if cache is not None else ()
        rehearsal = sweep(model, batches, readers, entries=entries, cache=cache)
    result = model if inplace else copied(model)
    return result, tuple(_resolve(result, tap, rehearsal, keep, config) for tap in taps.values())


@dataclass(eq=False)
class _Tap:
    """What has been gathered about one consumer's input."""

    consumer: str
    module: nn.Module
    refusal: str  # why there is nothing to gather, in words; "" where there is
    views: tuple[View, ...] = ()
    grams: tuple[GramSum, ...] = ()
    judged: tuple[Spread, ...] = ()
    positions: int = 1
    generator: torch.Generator = field(default_factory=torch.Generator)
    queue: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    total: int = 0
    images: int = 0

    def read(self, x: Tensor) -> None:
        """Take in one call's input, as the consumer gets it."""
        images = 0
        for index, patches in enumerate(read_patches(self.module, self.views, x.detach(), self.sample)):
            images = len(patches)
            aside = torch.arange(self.images, self.images + images) % SET_ASIDE == 0
            self.grams[index].add(patches[~aside].flatten(0, 1))
            self.judged[index].add(patches[aside].flatten(0, 1))
        self.images += images

    def sample(self, total: int) -> Tensor:
        """Some of `total` positions; over the batches each has its turn before any has a second one."""
        if total <= self.positions:
            return torch.arange(total)
        if total != self.total:
            self.total, self.queue = total, self.queue[:0]
        if len(self.queue) < self.positions:
            self.queue = torch.cat([self.queue, torch.randperm(total, generator=self.generator)])
        chosen, self.queue = self.queue[: self.positions], self.queue[self.positions :]
        return chosen


@dataclass(frozen=True, eq=False)
class _Solution:
    """For one view: the weight for the kept units (zeros elsewhere), the constant, and squared errors, summed."""

    weight: Tensor  # (outputs, units, taps)
    constant: Tensor  # (outputs,)
    before: float
    after: float
    scale: float


def _tap(
    model: nn.Module, group: Group, consumer: str, keep: Tensor, layout: Layout, config: SurgeryConfig, seed: int
) -> _Tap:
    """An empty tap on a consumer, or one that says why it cannot be re-solved."""
    module = _submodule(model, group, consumer)
    refusal = why_unreadable(module)
    if not refusal and _shared(model, consumer):
        refusal = "its weight is shared with another layer"
    if refusal:
        return _Tap(consumer, module, refusal)
    channels, positions = _alive(group, consumer, keep, layout)
    if bool(keep[channels].all()):
        return _Tap(consumer, module, "no channel is removed")
    views = views_of(module, channels, positions)
    # All patches of the widest view against each other if that fits; else channels against channels.
    pooled = max(view.columns for view in views) > config.max_gram
    widest = max(len(view.channels) if pooled else view.columns for view in views)
    if widest > config.max_gram:
        return _Tap(
            consumer, module, f"it reads {widest} channels; the largest Gram matrix allowed is {config.max_gram}"
        )
    return _Tap(
        consumer,
        module,
        "",
        views,
        tuple(GramSum(len(view.channels), view.taps, pooled=pooled) for view in views),
        tuple(Spread(max(64, JUDGED_NUMBERS // view.columns)) for view in views),
        config.positions,
        torch.Generator().manual_seed(seed),
    )


def _resolve(
    model: nn.Module, tap: _Tap, rehearsal: Rehearsal | None, keep: Tensor, config: SurgeryConfig
) -> Compensation:
    """Solve one consumer and write the solution into the model, or say why not."""
    if tap.refusal or rehearsal is None:
        return Compensation(tap.consumer, False, tap.refusal, math.nan, math.nan)
    if not tap.images:
        return Compensation(tap.consumer, False, "it did not run", math.nan, math.nan)
    module = model.get_submodule(tap.consumer)
    receiver = _receiver(model, tap.consumer, rehearsal)
    solutions = []
    for view, gram, judged in zip(tap.views, tap.grams, tap.judged, strict=True):
        statistics = gram.statistics(judged.kept())
        if not statistics.rows or not len(statistics.judged):
            return Compensation(tap.consumer, False, "too few calibration images", math.nan, math.nan)
        solution = _solve(read_weight(module, view), statistics, keep[view.channels], receiver is not None, config)
        if isinstance(solution, str):
            return Compensation(tap.consumer, False, solution, math.nan, math.nan)
        solutions.append(solution)
    scale = sum(s.scale for s in solutions) or 1.0  # a group without any effect: errors are 0 either way
    before, after = (sum(s.before for s in solutions) / scale, sum(s.after for s in solutions) / scale)
    if not math.isfinite(before + after):
        return Compensation(tap.consumer, False, "the calibration activations are not finite", before, after)
    if not before:
        return Compensation(tap.consumer, False, "plain cutting loses nothing", before, before)
    if after >= before:
        reason = "it would not come closer to the former output than plain cutting"
        return Compensation(tap.consumer, False, reason, before, before)
    for view, solution in zip(tap.views, solutions, strict=True):
        write_weight(module, view, solution.weight)
        if receiver is not None:
            _absorb(receiver, view.outputs, solution.constant)
    return Compensation(tap.consumer, True, "re-solved", before, after)


def _solve(
    weight: Tensor, statistics: PatchStatistics, keep: Tensor, with_constant: bool, config: SurgeryConfig
) -> _Solution | str:
    """Re-solve a view's weight (outputs, units, taps) for the units in `keep` (units,) bool; or why that failed."""
    taps = weight.shape[2]
    moments = statistics.covariance
    if not with_constant:
        moments = moments + torch.outer(statistics.column_mean, statistics.column_mean)
    columns = keep if statistics.pooled else keep.repeat_interleave(taps)
    inner, cross = moments[columns][:, columns], moments[~columns][:, columns]
    if not bool(inner.isfinite().all()) or not bool(cross.isfinite().all()):
        return "the calibration activations are not finite"
    if len(inner):
        # Where every kept channel is dead there is nothing to scale by, and nothing to solve: any ridge gives D = 0.
        level = float(inner.diagonal().mean())
        inner.diagonal().add_(config.ridge * level if level else 1.0)
    factor = factored(inner, statistics.precision)
    if factor is None:
        return "ill-conditioned: the kept channels are nearly dependent on the calibration data"
    if statistics.pooled:
        # (removed, kept), the same for every tap
        shares = torch.cholesky_solve(cross.T, factor).T
        change = torch.einsum("ort,rk->okt", weight[:, ~keep], shares)
    else:
        target = weight[:, ~keep].flatten(1) @ cross
        change = torch.cholesky_solve(target.T, factor).T.unflatten(1, (-1, taps))
    mean = statistics.mean
    constant = torch.einsum("out,ut->o", weight[:, ~keep], mean[~keep]) - torch.einsum("out,ut->o", change, mean[keep])
    if not with_constant:
        constant = torch.zeros_like(constant)
    solved = torch.zeros_like(weight)
    solved[:, keep] = weight[:, keep] + change
    judged = statistics.judged.flatten(1)
    whole = judged @ weight.flatten(1).T
    lost = statistics.judged[:, ~keep].flatten(1) @ weight[:, ~keep].flatten(1).T
    rest = whole - judged @ solved.flatten(1).T - constant
    scale = (whole - whole.mean(0)).square().sum()
    return _Solution(solved, constant, float(lost.square().sum()), float(rest.square().sum()), float(scale))


def _receiver(model: nn.Module, consumer: str, rehearsal: Rehearsal) -> nn.Parameter | _BatchNorm | None:
    """Where a consumer's constant can go: its bias, else the BatchNorm that is given its output as it is, else None."""
    module = model.get_submodule(consumer)
    if not mixing(module).takes_constant(module):
        return None
    bias = module._parameters.get("bias")
    if bias is not None:
        return bias
    norms = [model.get_submodule(name) for name, source in rehearsal.behind.items() if source == consumer]
    if len(norms) != 1 or not is_batchnorm(norms[0]) or norms[0].running_mean is None:
        return None
    # A hook of the caller's between the two may scale the output, and the constant would have to be scaled with it.
    hooked = module._forward_hooks or norms[0]._forward_pre_hooks
    return None if hooked or norms[0] in frozen_batchnorms(model) else norms[0]


@torch.no_grad()
def _absorb(receiver: nn.Parameter | _BatchNorm, outputs: Tensor, constant: Tensor) -> None:
    """Add a constant (outputs,) to a bias, or take it from a running mean: BatchNorm(y + c) is y + c - mean, scaled."""
    if isinstance(receiver, nn.Parameter):
        receiver[outputs.to(receiver.device)] += constant.to(receiver)
        return
    mean = receiver.running_mean
    assert mean is not None
    mean[outputs.to(mean.device)] -= constant.to(mean)


def _checked(group: Group, kept: Sequence[int]) -> Tensor:
    """Which of a group's channels are kept: (width,) bool."""
    index = torch.tensor(sorted(kept), dtype=torch.int64)
    if not len(index) or int(index[0]) < 0 or int(index[-1]) >= group.width or len(index.unique()) < len(index):
        raise PlanError(
            f"group {group.name!r} has {group.width} channels; the kept ones given are {list(kept)[:8]}. Give at least "
            f"one, each once, from 0 to {group.width - 1}."
        )
    keep = torch.zeros(group.width, dtype=torch.bool)
    keep[index] = True
    return keep


def _submodule(model: nn.Module, group: Group, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise PlanError(
            f"group {group.name!r} names a consumer {name!r} that the model does not have. Find the groups of this "
            "very model."
        ) from None


def _alive(group: Group, consumer: str, keep: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The channels that earlier cuts have left, (channels,), and their inputs as the model is now, (channels, span)."""
    parts = [s.positions for s in group.slices if s.module == consumer and s.side == "in"]
    if not parts:
        raise PlanError(f"group {group.name!r} does not say where its channels enter its consumer {consumer!r}.")
    positions = places_now(layout, consumer, "in", torch.cat(parts, dim=1))
    alive = (positions >= 0).all(1)
    if bool((keep & ~alive).any()):
        gone = torch.nonzero(keep & ~alive).flatten().tolist()
        raise PlanError(
            f"channels {gone[:8]} of group {group.name!r} are to be kept but were cut from {consumer!r} before. Keep "
            "only channels that the layout still has."
        )
    return torch.nonzero(alive).flatten(), positions[alive]


def _shared(model: nn.Module, consumer: str) -> bool:
    """Whether another module holds the consumer's weight or bias too."""
    mine = model.get_submodule(consumer)
    own = {id(p) for p in mine._parameters.values() if p is not None}
    return any(id(p) in own for m in model.modules() if m is not mine for p in m._parameters.values())


def _entries(producer: str) -> tuple[str, ...]:
    """The producer and the modules around it, innermost first: where a later sweep might start."""
    parts = producer.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
