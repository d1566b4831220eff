"""Ridge least squares from sums over rows: a map of rows, pulled towards weights that are there already.

    W = W0 + (C + pull I)^-1 (X'Y - C W0)

with C the covariance of the rows and X'Y their covariance with the targets, both from sums that are gathered batch by
batch. Products are made in the rows' own precision, about the first batch's means, and summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

# Rows to judge a solution by hold at most this many numbers (16 MB in float32), but at least 64 rows.
JUDGED_NUMBERS = 4_000_000
FEWEST_JUDGED = 64
EXACT = torch.finfo(torch.float64).eps
ROUNDINGS = 16  # of the products, which what a column has of its own must exceed
# A product of rows with themselves is made in strips of so many columns, from the diagonal on: its other half is known.
STRIP = 256

InPlace = Callable[[Sequence[Tensor]], None]


def _as_they_are(tensors: Sequence[Tensor]) -> None:
    """One process alone has nothing to agree on."""


@dataclass(frozen=True)
class Team:
    """The processes that share the images: each has batches of its own, and all solve for the same weights."""

    size: int = 1
    total: InPlace = _as_they_are  # replaces tensors by their sums over all processes
    same: InPlace = _as_they_are  # replaces tensors by the first process's
    numbers: tuple[int, ...] = ()  # of the first image of each own batch, among the images of all; (): one process
    images: int = 0  # of all processes


ALONE = Team()


@dataclass(eq=False)
class Sums:
    """Running sums of rows (parts, rows, columns) and targets (parts, rows, outputs), and rows kept to judge by."""

    parts: int
    columns: int
    outputs: int
    count: int = 0
    shift: tuple[Tensor, Tensor] | None = None
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    xx: Tensor = field(init=False)  # the half from the diagonal on; what is beside it is not filled
    xy: Tensor = field(init=False)
    judged: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    judged_rows: int = 0
    precision: float = EXACT

    def __post_init__(self) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(self.parts, *shape, dtype=torch.float64)

        self.x, self.y = zeros(self.columns), zeros(self.outputs)
        self.xx, self.xy = zeros(self.columns, self.columns), zeros(self.columns, self.outputs)

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Take in rows (parts, rows, columns) with targets (parts, rows, outputs)."""
        if not rows.shape[1]:
            return
        if rows.dtype != torch.float64:
            rows, targets = rows.float(), targets.float()
        self.precision = max(self.precision, torch.finfo(rows.dtype).eps)
        if self.shift is None:
            # About zero, a channel whose mean is far above its deviation would lose its variance to rounding.
            self.shift = rows.mean(1, keepdim=True), targets.mean(1, keepdim=True)
        rows, targets = rows - self.shift[0], targets - self.shift[1]
        turned = rows.transpose(1, 2)
        self.count += rows.shape[1]
        self.x += rows.sum(1).cpu()
        self.y += targets.sum(1).cpu()
        for first in range(0, self.columns, STRIP):
            own = slice(first, first + STRIP)
            self.xx[:, own, first:] += (turned[:, own] @ rows[:, :, first:]).cpu()
        self.xy += (turned @ targets).cpu()

    def set_aside(self, rows: Tensor, targets: Tensor) -> None:
        """Keep rows and targets that the fit does not see, as long as there is room."""
        room = max(FEWEST_JUDGED, JUDGED_NUMBERS // (self.parts * (self.columns + self.outputs))) - self.judged_rows
        if room > 0 and rows.shape[1]:
            self.judged.append((rows[:, :room].clone(), targets[:, :room].clone()))
            self.judged_rows += min(room, rows.shape[1])

    def moments(self, team: Team = ALONE) -> Moments:
        """Means and covariances of all rows, of all processes together; the sums are used up: they become those."""
        shift_x, shift_y = (
            (torch.zeros_like(self.x), torch.zeros_like(self.y))
            if self.shift is None
            else (part.squeeze(1).cpu().double() for part in self.shift)
        )
        count, x, y, xx, xy = torch.tensor(float(self.count)), self.x, self.y, self.xx, self.xy
        if team.size > 1:  # every process has shifted its rows by its own first batch: sums about zero can be added
            count, shifts = count.double(), (shift_x, shift_y)
            xx = xx + _outer(x, shift_x) + _outer(shift_x, x) + self.count * _outer(shift_x, shift_x)
            xy = xy + _outer(x, shift_y) + _outer(shift_x, y) + self.count * _outer(shift_x, shift_y)
            x, y = x + self.count * shift_x, y + self.count * shift_y
            team.total((count, x, y, xx, xy))
            shift_x, shift_y = (torch.zeros_like(part) for part in shifts)
        rows = int(count)
        x, y = x / max(rows, 1), y / max(rows, 1)
        for products, other in ((xx, x), (xy, y)):  # in place: of 4,608 columns each further copy takes 170 MB
            products.div_(max(rows, 1)).baddbmm_(x.unsqueeze(2), other.unsqueeze(1), alpha=-1)
        _mirror(xx)
        return Moments(rows, x + shift_x, y + shift_y, xx, xy, self.precision)


def _mirror(half: Tensor) -> None:
    """Fill the other half of symmetric matrices (parts, n, n), in place: with large ones there is no room for more."""
    for first in range(0, half.shape[1], STRIP):
        end = first + STRIP
        corner = half[:, first:end, first:end].triu()
        half[:, first:end, first:end] = corner + corner.triu(1).transpose(1, 2)
        half[:, end:, first:end] = half[:, first:end, end:].transpose(1, 2)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """(parts, m) and (parts, n) -> (parts, m, n)."""
    return a.unsqueeze(2) * b.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Moments:
    """What a fit needs of its rows, in float64 on the CPU; covariances that are kept for long may be in float32."""

    rows: int
    x_mean: Tensor  # (parts, columns)
    y_mean: Tensor  # (parts, outputs)
    xx: Tensor  # (parts, columns, columns): the covariance of the rows
    xy: Tensor  # (parts, columns, outputs): with the targets
    precision: float = EXACT  # of the products behind them

    def finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in (self.x_mean, self.y_mean, self.xx, self.xy))

    def about_zero(self) -> Moments:
        """The second moments about zero in place of covariances: for maps that cannot add a constant."""
        xx = self.xx + self.x_mean.unsqueeze(2) * self.x_mean.unsqueeze(1)
        xy = self.xy + self.x_mean.unsqueeze(2) * self.y_mean.unsqueeze(1)
        return Moments(self.rows, torch.zeros_like(self.x_mean), torch.zeros_like(self.y_mean), xx, xy, self.precision)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A map of rows: weights (parts, columns, outputs) and what it adds (parts, outputs)."""

    weight: Tensor
    constant: Tensor
    pull: float = 0.0  # how strongly it was pulled, relative to the mean variance

    def __call__(self, rows: Tensor) -> Tensor:
        return rows.double() @ self.weight + self.constant.unsqueeze(1)


def solved(moments: Moments, weight: Tensor, pull: float) -> Fitted:
    """The map closest to the targets, pulled towards the weights given; `pull` is relative to the mean variance."""
    factor, pull = factored(moments.xx, pull, moments.precision)
    weight = weight + torch.cholesky_solve(moments.xy - moments.xx @ weight, factor)
    return replace(with_best_constant(moments, weight), pull=pull)


def factored(covariance: Tensor, pull: float, precision: float) -> tuple[Tensor, float]:
    """The Cholesky factor of a covariance (..., n, n) with a pull relative to its mean variance, and that pull.

    Of columns that depend on one another only the pull and the rounding of the products are left. A pull that does not
    stand out of that rounding would leave it to the processor whether there is a factor, so it is made stronger.
    """
    spread = covariance.diagonal(dim1=-2, dim2=-1)
    level = spread.mean(-1)
    # Where nothing varies there is nothing to solve: any pull leaves the weights as they are.
    level = torch.where(level > 0, level, torch.ones_like(level))
    factor = torch.empty_like(covariance.mT, memory_format=torch.contiguous_format).mT  # as LAPACK wants it
    while True:
        factor.copy_(covariance)
        diagonal = spread + (pull * level).unsqueeze(-1)
        factor.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        # In place: of 4,608 columns each copy takes 170 MB.
        told = torch.empty(0, dtype=torch.int32, device=factor.device)
        _, failed = torch.linalg.cholesky_ex(factor, out=(factor, told))
        own = factor.diagonal(dim1=-2, dim2=-1).square() / diagonal
        if pull >= 1 or (not bool(failed.any()) and bool((own > ROUNDINGS * precision).all())):
            return factor, pull
        pull = min(10 * max(pull, precision), 1.0)


def with_best_constant(moments: Moments, weight: Tensor) -> Fitted:
    """The map with these weights whose outputs have the targets' means."""
    constant = moments.y_mean - (moments.x_mean.unsqueeze(1) @ weight).squeeze(1)
    return Fitted(weight, constant)


def output_moments(moments: Moments, fitted: Fitted) -> tuple[Tensor, Tensor]:
    """Mean and variance of what a map gives for the rows: (parts, outputs) each."""
    mean = (moments.x_mean.unsqueeze(1) @ fitted.weight).squeeze(1) + fitted.constant
    variance = (fitted.weight * (moments.xx @ fitted.weight)).sum(1)
    return mean, variance.clamp(min=0)


def pull_for(rows: int, columns: int, pull: float) -> float:
    """The pull for so many rows: stronger where they are few for the columns, or the fit would follow noise."""
    wanted = 16.0 * columns
    return pull * max(1.0, wanted / max(rows, 1)) ** 2
