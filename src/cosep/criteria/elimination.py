"""Which set of channels jointly reproduces what their consumers compute: backward elimination, then swaps.

A consumer computes y = W x from patches x with second moments C. Without the channels R, and with the other weights
re-solved by ridge least squares pulled towards W, the error of y in the metric M is tr(M W_R [(H^-1)_RR]^-1 W_R'),
H = C + ridge: the block form of the optimal brain surgeon (Hassibi and Stork, 1993). Eliminating channel after
channel, with W and H^-1 updated, gives a nested order; exchanging one channel at a time, as OSSCAR does (Meng et al.,
2024), improves the set at one width. Columns are brought to unit variance first: a channel's scale does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cosep.errors import CalibrationError

PENDING = 160  # columns gone before the inverse is brought up to date: one large product instead of many thin ones
TIED = 1e-9  # costs closer than this are equal: a processor's rounding must not decide between duplicate channels
TRIED = 24  # channels tried for each swap, those first that reduce the error most by themselves
LEAST_RIDGE = 1e-8  # below it, the inverse of float64 products that are short of full rank is rounding


@dataclass(frozen=True)
class Consumer:
    """A layer that reads the channels: gram (units * taps, units * taps), weight (outputs, units, taps).

    The gram's columns go unit by unit. The metric (outputs, outputs) weighs errors of the outputs; None: all alike.
    """

    gram: Tensor
    weight: Tensor
    metric: Tensor | None = None


@dataclass(frozen=True)
class Choice:
    """The units kept, ascending; the share of the outputs' energy lost without the others; the swaps made."""

    kept: Tensor
    error: float
    swaps: int


@dataclass(frozen=True, eq=False)
class Elimination:
    """The order in which units go; `errors`: for k = 0 ... units kept, the share of the outputs' energy lost."""

    order: Tensor
    errors: Tensor
    problems: tuple["_Problem", ...]
    energy: float
    swaps: int
    blocks: int

    def nested(self, k: int) -> Choice:
        """The k units that go last: the set of a smaller k is part of it."""
        _check_width(k, len(self.order), self.blocks)
        kept = self.order[len(self.order) - k :].sort().values
        return Choice(kept=kept, error=float(self.errors[k]), swaps=0)

    def kept(self, k: int) -> Choice:
        """The k units of `nested`, improved by at most `swaps` exchanges, each of which lowers the exact error."""
        first = self.nested(k)
        if self.swaps == 0 or k == len(self.order) or self.energy == 0:
            return first
        return _swapped(self, first)


def eliminate(
    consumers: Consumer | Iterable[Consumer], *, ridge: float = 1e-3, swaps: int = 64, blocks: int = 1
) -> Elimination:
    """Order the units by backward elimination with exact re-solving; each of `blocks` equal parts loses equally many.

    `ridge` is relative to the columns' variance. Several consumers read the same units: their errors add up, each in
    its own metric.
    """
    several = [consumers] if isinstance(consumers, Consumer) else list(consumers)
    _check(several, ridge, swaps, blocks)
    problems = tuple(_problem(c, max(ridge, LEAST_RIDGE)) for c in several)
    several.clear()  # a gram of 4,608 columns takes 170 MB, and the problems have what they need of it
    energy = sum(float((p.weight * (p.moments @ p.weight)).sum()) for p in problems)
    order, costs = _backward(problems, energy, blocks)
    lost = torch.cat([torch.zeros(1, dtype=torch.float64), costs.cumsum(0)])
    errors = (lost / energy if energy > 0 else lost).clamp(0, 1).flip(0)
    return Elimination(order=order, errors=errors, problems=problems, energy=energy, swaps=swaps, blocks=blocks)


def _check(consumers: list[Consumer], ridge: float, swaps: int, blocks: int) -> None:
    if not consumers:
        raise ValueError("no consumer was given; elimination needs at least one layer that reads the channels.")
    units = consumers[0].weight.shape[1]
    for c in consumers:
        outputs, found, taps = c.weight.shape
        if found != units:
            raise ValueError(f"consumers read {units} and {found} units; all must read the same ones.")
        if tuple(c.gram.shape) != (units * taps, units * taps):
            needed = (units * taps, units * taps)
            raise ValueError(f"gram is {tuple(c.gram.shape)}; {units} units of {taps} taps need {needed}.")
        if c.metric is not None and tuple(c.metric.shape) != (outputs, outputs):
            raise ValueError(f"metric is {tuple(c.metric.shape)}; {outputs} outputs need {(outputs, outputs)}.")
        parts = {"gram": c.gram, "weight": c.weight, "metric": c.metric}
        for name, part in parts.items():
            if part is not None and not bool(part.isfinite().all()):
                raise CalibrationError(
                    f"the {name} of a consumer is not finite; its channels cannot be compared. "
                    "Check the network and the calibration images for NaN or Inf."
                )
    if not (ridge >= 0 and ridge < float("inf")):
        raise ValueError(f"ridge is {ridge}; it must be a finite number of at least 0.")
    if swaps < 0:
        raise ValueError(f"swaps is {swaps}; it must be at least 0.")
    if blocks < 1 or units % blocks:
        raise ValueError(f"{units} units do not divide into {blocks} equal blocks.")


def _check_width(k: int, units: int, blocks: int) -> None:
    if not 1 <= k <= units or k % blocks:
        raise ValueError(f"{k} units cannot be kept: it must be between 1 and {units} and a multiple of {blocks}.")


@dataclass(frozen=True)
class _Problem:
    """A consumer, columns scaled: moments (columns, columns) with the ridge, weight (columns, rank) in the metric."""

    moments: Tensor
    weight: Tensor
    taps: int

    def columns(self, units: Tensor) -> Tensor:
        """The columns of these units, in their order."""
        return (units[:, None] * self.taps + torch.arange(self.taps)).flatten()


def _problem(consumer: Consumer, ridge: float) -> _Problem:
    taps = consumer.weight.shape[2]
    gram = consumer.gram.detach().to("cpu", torch.float64)
    weight = consumer.weight.detach().to("cpu", torch.float64).flatten(1).T  # (columns, outputs)
    variance = gram.diagonal().clamp(min=0)
    # A column this far below the largest is rounding of a sum of squares, not a signal.
    alive = variance > variance.max() * 1e-14 if len(variance) else variance > 0
    deviation = torch.where(alive, variance, 1.0).sqrt()
    # In place: of 4,608 columns each copy takes 170 MB.
    moments = (gram + gram.T).div_(2).div_(deviation[:, None]).div_(deviation)
    moments.masked_fill_(~alive, 0.0).masked_fill_(~alive[:, None], 0.0)
    moments.diagonal().copy_(alive.double() + ridge)
    weight = torch.where(alive[:, None], weight * deviation[:, None], 0.0)
    if consumer.metric is not None:
        weight = weight @ _root(consumer.metric.detach().to("cpu", torch.float64))
    if weight.shape[1] > len(weight):
        weight = torch.linalg.qr(weight.T, mode="r").R.T  # the same products, of fewer numbers
    return _Problem(moments=moments, weight=weight.contiguous(), taps=taps)


def _root(metric: Tensor) -> Tensor:
    """A matrix whose product with its transpose is the metric; only where it is short of full rank, by eigenvalues."""
    metric = (metric + metric.T) / 2
    factor, failed = torch.linalg.cholesky_ex(metric)
    if int(failed) == 0:
        return factor
    values, vectors = torch.linalg.eigh(metric)
    used = values > values.max().clamp(min=0) * 1e-12
    return vectors[:, used] * values[used].sqrt()


def _inverse(moments: Tensor) -> Tensor:
    """Inverse of a symmetric positive matrix, or of the nearest one where rounding in the products left none."""
    factor, failed = torch.linalg.cholesky_ex(moments)
    if int(failed) == 0:
        return torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(moments)
    return (vectors / values.clamp(min=max(LEAST_RIDGE, float(values[-1]) * 1e-14))) @ vectors.T


def _diagonal_blocks(matrix: Tensor, taps: int) -> Tensor:
    """(units * taps, units * taps) -> (units, taps, taps), symmetric."""
    units = len(matrix) // taps
    found = matrix.reshape(units, taps, units, taps).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    return (found + found.transpose(1, 2)) / 2


def _quotients(weight: Tensor, blocks: Tensor) -> Tensor:
    """tr(W_c' B_c^-1 W_c) of every unit: (units * taps, rank), (units, taps, taps) -> (units)."""
    by_unit = weight.view(len(blocks), blocks.shape[1], -1)
    return _traces(blocks, by_unit @ by_unit.transpose(1, 2))


def _traces(blocks: Tensor, powers: Tensor) -> Tensor:
    """tr(B_c^-1 P_c) of every unit: (units, taps, taps) twice -> (units)."""
    return torch.linalg.solve(blocks, powers).diagonal(dim1=1, dim2=2).sum(1)


class _Remaining:
    """The optimal weights and inverse moments of a consumer's units that are left; removals are applied together.

    Until then both lack the same term: the inverse is `inverse` - pending pending', the weights are `weight` - pending
    steps. What every removal needs of all units, the diagonal blocks of both products, is kept up to date.
    """

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.solve(torch.arange(len(problem.weight) // problem.taps))

    def solve(self, units: Tensor) -> None:
        """Start from the moments, with these units."""
        problem, size = self.problem, len(self.problem.weight) // self.problem.taps
        self.units, self.solved = units, len(units)
        inside = problem.columns(units)
        self.weight = problem.weight[inside]
        if len(units) == size:
            self.inverse = _inverse(problem.moments)
        else:
            gone = torch.ones(size, dtype=torch.bool)
            gone[units] = False
            outside = problem.columns(gone.nonzero().flatten())
            rows = problem.moments[inside]
            self.inverse = _inverse(rows[:, inside])
            self.weight = self.weight + self.inverse @ (rows[:, outside] @ problem.weight[outside])
        self.settle()

    def settle(self) -> None:
        """Nothing is pending: every unit listed is there."""
        by_unit = self.weight.view(len(self.units), self.problem.taps, self.weight.shape[1])  # units may be none
        self.blocks = _diagonal_blocks(self.inverse, self.problem.taps)
        self.powers = by_unit @ by_unit.transpose(1, 2)
        room = PENDING + self.problem.taps
        self.pending = torch.empty(len(self.inverse), room, dtype=torch.float64)
        self.steps = torch.empty(room, self.weight.shape[1], dtype=torch.float64)
        self.gone = 0  # columns of `pending` that are filled
        self.left = torch.ones(len(self.units), dtype=torch.bool)

    def costs(self) -> Tensor:
        """The error that each unit's removal adds, by its number in the layer; 0 for those gone."""
        found = torch.zeros(len(self.problem.weight) // self.problem.taps, dtype=torch.float64)
        found[self.units[self.left]] = _traces(self.blocks[self.left], self.powers[self.left])
        return found

    def remove(self, unit: int) -> None:
        """Take one unit out and re-solve the others' weights."""
        at = int((self.units == unit).nonzero())
        taps = self.problem.taps
        own, new = slice(at * taps, (at + 1) * taps), slice(self.gone, self.gone + taps)
        pending, steps = self.pending[:, : self.gone], self.steps[: self.gone]
        column = self.inverse[:, own] - pending @ pending[own].T
        values, vectors = torch.linalg.eigh(self.blocks[at])
        scaled = vectors / values.clamp(min=float(values[-1]) * 1e-14).sqrt()
        root = column @ scaled  # root root' is what the inverse loses, root step what the weights lose
        step = scaled.T @ (self.weight[own] - pending[own] @ steps)
        across = self.weight @ step.T - pending @ (steps @ step.T) - root @ (step @ step.T / 2)
        self.pending[:, new], self.steps[new] = root, step
        self.gone += taps
        by_unit, across = root.view(len(self.units), taps, -1), across.view(len(self.units), taps, -1)
        change = by_unit @ across.transpose(1, 2)
        self.blocks -= by_unit @ by_unit.transpose(1, 2)
        self.powers -= change + change.transpose(1, 2)
        self.left[at] = False
        if self.gone >= PENDING:
            self.compact()

    def compact(self) -> None:
        """Bring the inverse up to date without what is gone; at half the units solve anew: rounding must not grow."""
        units = self.units[self.left]
        if 2 * len(units) <= self.solved:
            self.solve(units)
            return
        inside = (self.left.nonzero() * self.problem.taps + torch.arange(self.problem.taps)).flatten()
        pending = self.pending[inside, : self.gone]
        self.inverse = self.inverse[inside]  # in two steps: the whole inverse goes before the last copy is made
        self.inverse = self.inverse[:, inside].addmm_(pending, pending.T, alpha=-1)
        self.units = units
        self.weight = self.weight[inside].addmm_(pending, self.steps[: self.gone], alpha=-1)
        self.settle()


def _backward(problems: tuple[_Problem, ...], energy: float, blocks: int) -> tuple[Tensor, Tensor]:
    """Remove the cheapest unit until none is left: the order and the cost of each."""
    states = [_Remaining(p) for p in problems]
    units = len(problems[0].weight) // problems[0].taps
    left = torch.ones(blocks, units // blocks, dtype=torch.bool)
    order, paid = [], []
    for _ in range(units):
        costs = torch.stack([s.costs() for s in states]).sum(0).clamp(min=0)
        sizes = left.sum(1)
        fullest = left & (sizes == sizes.max())[:, None]  # blocks lose one unit each in turn
        costs = costs.where(fullest.flatten(), float("inf"))
        least = float(costs.min())
        unit = int((costs <= least * (1 + TIED) + TIED * 1e-3 * energy).nonzero()[-1])
        order.append(unit)
        paid.append(float(costs[unit]))
        left.view(-1)[unit] = False
        for state in states:
            state.remove(unit)
    return torch.tensor(order), torch.tensor(paid, dtype=torch.float64)


class _Tableau:
    """The moments of one consumer swept by the units kept S (the others are R), so that swaps are cheap to judge.

    `matrix`: minus the inverse in SS, the regression of R on S in SR, in RR the moments that S leaves unexplained.
    `state`: in S the optimal weights, in R the products of what S leaves unexplained with the error.
    """

    def __init__(self, problem: _Problem, kept: Tensor) -> None:
        self.problem = problem
        inside, outside = problem.columns(kept.nonzero().flatten()), problem.columns((~kept).nonzero().flatten())
        across = problem.moments[inside][:, outside]
        inverse = _inverse(problem.moments[inside][:, inside])
        regression = inverse @ across
        unexplained = problem.moments[outside][:, outside].addmm_(across.T, regression, alpha=-1)
        self.matrix = torch.empty_like(problem.moments)
        self.matrix[inside[:, None], inside] = -inverse
        self.matrix[inside[:, None], outside] = regression
        self.matrix[outside[:, None], inside] = regression.T
        self.matrix[outside[:, None], outside] = unexplained
        self.state = torch.empty_like(problem.weight)
        self.state[inside] = problem.weight[inside] + regression @ problem.weight[outside]
        self.state[outside] = unexplained @ problem.weight[outside]

    def own(self, unit: int) -> slice:
        """The columns of one unit."""
        return slice(unit * self.problem.taps, (unit + 1) * self.problem.taps)

    def gains(self, units: Tensor) -> Tensor:
        """What the error falls by when one of these units, all outside, is added."""
        blocks = _diagonal_blocks(self.matrix, self.problem.taps)[units]
        return _quotients(self.state[self.problem.columns(units)], blocks)

    def costs_with(self, unit: int, kept: Tensor) -> Tensor:
        """What the error rises by when one of the units kept is removed after `unit` was added."""
        own, inside = self.own(unit), self.problem.columns(kept)
        column = self.matrix[inside, own]
        step = torch.linalg.solve(self.matrix[own, own], torch.cat([column.T, self.state[own]], 1))
        weight = self.state[inside] - column @ step[:, len(inside) :]
        taps = self.problem.taps
        change = column.view(-1, taps, taps) @ step[:, : len(inside)].T.reshape(-1, taps, taps).transpose(1, 2)
        return _quotients(weight, change - _diagonal_blocks(self.matrix, taps)[kept])

    def pivot(self, unit: int, sign: int) -> None:
        """Add a unit (sign 1) or remove it (sign -1)."""
        own = self.own(unit)
        block = (self.matrix[own, own] + self.matrix[own, own].T) / 2
        column = self.matrix[:, own].clone()
        inverse = torch.linalg.inv(block)
        scaled, step = column @ inverse, inverse @ self.state[own]
        self.matrix.addmm_(scaled, column.T, alpha=-1)
        self.matrix[:, own], self.matrix[own, :] = sign * scaled, sign * scaled.T
        self.matrix[own, own] = -inverse
        self.state -= column @ step
        self.state[own] = sign * step


def _swapped(found: Elimination, first: Choice) -> Choice:
    """Exchange the pair that lowers the error most, of those tried, until none does."""
    units = len(found.order)
    kept = torch.zeros(units, dtype=torch.bool)
    kept[first.kept] = True
    block = torch.arange(units) // (units // found.blocks)
    tableaux = [_Tableau(p, kept) for p in found.problems]
    saved, swaps = 0.0, 0
    while swaps < found.swaps:
        inside, outside = kept.nonzero().flatten(), (~kept).nonzero().flatten()
        gains = torch.stack([t.gains(outside) for t in tableaux]).sum(0)
        best = (TIED * found.energy, -1, -1)
        for i in gains.sort(descending=True, stable=True).indices[:TRIED].tolist():
            unit = int(outside[i])
            if float(gains[i]) <= best[0]:
                break  # a swap saves no more than the unit that comes in
            costs = torch.stack([t.costs_with(unit, inside) for t in tableaux]).sum(0)
            costs = costs.where(block[inside] == block[unit], float("inf"))
            at = int(costs.argmin())
            if float(gains[i] - costs[at]) > best[0]:
                best = (float(gains[i] - costs[at]), unit, int(inside[at]))
        gain, added, removed = best
        if added < 0:
            break
        for tableau in tableaux:
            tableau.pivot(added, 1)
            tableau.pivot(removed, -1)
        kept[added], kept[removed] = True, False
        saved, swaps = saved + gain, swaps + 1
    error = max(0.0, first.error - saved / found.energy)
    return replace(first, kept=kept.nonzero().flatten(), error=error, swaps=swaps)
