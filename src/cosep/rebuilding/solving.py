"""One layer: solved from its sums, judged on rows that the fit did not see, and written into the network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cosep.config import RebuildConfig
from cosep.layers import is_batchnorm
from cosep.layers.maps import LinearMap, batchnorm_scale
from cosep.rebuilding.fit import Fitted, Moments, Sums, Team, output_moments, pull_for, solved, with_best_constant
from cosep.rebuilding.tasks import Task
from cosep.records import LayerRebuild

# One image in this many never enters a fit: solutions are judged on it. The first image is one of them.
SET_ASIDE = 16
# With fewer rows than this for each column, only the constant of the last layer is solved.
ROWS_OF_LAST = 4
NOT_CLOSER = "the solution was not closer to the uncut network than the weights at hand"
# An error below this is rounding: nothing in front of the layer was cut.
UNTOUCHED = 1e-9


def numbered(inputs: Sequence[Tensor], team: Team) -> list[tuple[int, Tensor]]:
    """Batches with the number of their first image among those of all processes, so that one judges by the same."""
    if team.size > 1 and team.images:
        return list(zip(team.numbers, inputs, strict=True))
    found, first = [], 0
    for x in inputs:
        found.append((first, x))
        first += len(x)
    return found


def chance(seed: int, layer: int, first: int) -> torch.Generator:
    """Random numbers for a layer and the batch whose first image has this number, whichever process has it."""
    return torch.Generator().manual_seed(((seed * 1_000_003 + layer) * 1_000_003 + first) % 2**63)


def aside(first: int, images: int) -> Tensor:
    """Which images of a batch, whose first has the number `first`, are set aside: (images,) bool."""
    return torch.arange(first, first + images) % SET_ASIDE == 0


def solve(model: nn.Module, task: Task, sums: Sums, config: RebuildConfig, team: Team) -> LayerRebuild:
    """Solve one layer, judge the solution, and write it into the network."""
    moments = sums.moments(team)
    columns = task.map.columns
    if not moments.rows or not _judged(sums, team):
        return LayerRebuild(task.layer, task.towards, False, "too few images", math.nan, math.nan)
    if not moments.finite():
        reason = "its inputs or what it is solved towards are not finite"
        return LayerRebuild(task.layer, task.towards, False, reason, math.nan, math.nan)
    norm = model.get_submodule(task.norm) if task.norm else None
    assert norm is None or is_batchnorm(norm)
    now = _as_it_is(task, norm, moments)
    untouched = _error(sums, now, team)
    if untouched <= UNTOUCHED:
        return LayerRebuild(task.layer, task.towards, False, "nothing to repair", 0.0, 0.0, moments.rows, columns)
    # A constant needs a home: a bias, or a BatchNorm.
    module = task.map.module
    free = norm is not None or is_batchnorm(module) or module._parameters.get("bias") is not None
    moments_used = moments if free else moments.about_zero()
    plain = with_best_constant(moments, now.weight) if free else now
    constant_only = task.last and moments.rows < ROWS_OF_LAST * columns
    best = plain if constant_only else solved(moments_used, now.weight, pull_for(moments.rows, columns, config.pull))
    team.same((best.weight, best.constant))
    before, after = (_error(sums, fitted, team) for fitted in (plain, best))
    times = best.pull / config.pull
    times = round(times, 1 if times < 10 else 0)
    applied, reason = True, "re-solved" if times == 1 else f"re-solved, pulled {times:g} times as strongly"
    if constant_only:
        reason = f"only its constant: {moments.rows} rows for {columns} columns"
    elif not after < before:
        best, after, applied, reason = plain, before, False, NOT_CLOSER
    if not after < untouched:
        best, before, after, applied, reason = now, untouched, untouched, False, NOT_CLOSER
    _write(task, norm, best, moments)
    return LayerRebuild(task.layer, task.towards, applied, reason, before, after, moments.rows, columns)


def _judged(sums: Sums, team: Team) -> bool:
    rows = torch.tensor(float(sums.judged_rows))
    team.total((rows,))
    return bool(rows > 0)


def _as_it_is(task: Task, norm: _BatchNorm | None, moments: Moments) -> Fitted:
    """The map that the layer is now; together with the BatchNorm behind it where both end in a sum."""
    weight, constant = task.map.weight(), task.map.constant()
    if task.other is not None and norm is not None:
        scale = batchnorm_scale(norm)
        weight = weight * scale.reshape(task.map.parts, 1, -1)
        constant = constant * scale + LinearMap(norm).constant()
    return Fitted(weight, constant.reshape(moments.y_mean.shape))


def _error(sums: Sums, fitted: Fitted, team: Team) -> float:
    """The squared error of a map on the rows set aside, relative to the variance of the targets."""
    found = torch.zeros(2, dtype=torch.float64)
    if sums.judged:
        rows = torch.cat([x for x, _ in sums.judged], dim=1).cpu()
        targets = torch.cat([y for _, y in sums.judged], dim=1).cpu().double()
        found[0] = (fitted(rows) - targets).square().sum()
        found[1] = (targets - targets.mean(1, keepdim=True)).square().sum()
    team.total((found,))
    # Where the targets do not vary at all, the error is measured as it is.
    return float(found[0] / found[1]) if found[1] > 0 else float(found[0])


@torch.no_grad()
def _write(task: Task, norm: _BatchNorm | None, fitted: Fitted, moments: Moments) -> None:
    """Give a layer, and the BatchNorm behind it, the fitted map."""
    module = task.map.module
    constant = fitted.constant.flatten()
    if is_batchnorm(module):
        mean, variance = moments.x_mean.flatten(), moments.xx.flatten()
        scale = fitted.weight.flatten()
        set_norm(module, mean, variance, scale, constant + scale * mean)
        return
    if norm is None:
        task.map.write(fitted.weight)
        _set_bias(module, constant)
        return
    if task.other is None:
        # The fit is of the layer alone. The BatchNorm behind it measures anew and computes what it computed.
        scale, shift = batchnorm_scale(norm), LinearMap(norm).constant()
        weight = fitted.weight
        total, shift = scale, shift + scale * constant
    else:
        # The fitted map is split anew between the layer, whose weights keep their size, and the BatchNorm's scale:
        # nothing is divided by a scale that may be near zero.
        old, new = (each.square().sum(1).sqrt() for each in (task.map.weight(), fitted.weight))  # (parts, outputs)
        size = torch.where((old > 0) & (new > 0), new / old.clamp(min=1e-300), torch.ones_like(new))
        weight = fitted.weight / size.unsqueeze(1)
        total, shift = size.flatten(), constant
    task.map.write(weight)
    _set_bias(module, torch.zeros_like(constant))
    bare = Fitted(weight, torch.zeros_like(moments.y_mean))
    mean, variance = (part.flatten() for part in output_moments(moments, bare))
    set_norm(norm, mean, variance, total, shift + total * mean)


def _set_bias(module: nn.Module, constant: Tensor) -> None:
    bias = module._parameters.get("bias")
    if bias is not None:
        bias.copy_(constant.to(bias))


def set_norm(norm: _BatchNorm, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> None:
    """Let a BatchNorm with these statistics compute scale * (x - mean) + shift."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    if norm.weight is not None:
        norm.weight.copy_((scale * (variance + norm.eps).sqrt()).to(norm.weight))
    if norm.bias is not None:
        norm.bias.copy_(shift.to(norm.bias))
