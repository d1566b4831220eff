"""Statistics of patches, gathered batch by batch: the mean, the Gram matrix, and some patches set aside to judge by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PatchStatistics:
    """All that a ridge regression among the columns of a patch needs, and patches that it has not seen."""

    rows: int  # behind the covariance
    mean: Tensor  # (units, taps) float64
    column_mean: Tensor  # (columns,) float64
    covariance: Tensor  # (columns, columns) float64
    judged: Tensor  # (patches, units, taps) float64
    precision: float = torch.finfo(torch.float32).eps  # of the products behind the covariance

    @property
    def pooled(self) -> bool:
        """Whether the columns are units, every tap of a patch being a row of its own, and not units times taps."""
        return len(self.column_mean) < self.mean.numel()


class GramSum:
    """A running mean and covariance in float64, of patches (patches, units, taps) in any floating type.

    Columns are units times taps; `pooled`, they are units, and every tap is a row.
    """

    def __init__(self, units: int, taps: int, *, pooled: bool) -> None:
        self.pooled = pooled
        self.patches = self.rows = 0
        self.patch_sum = torch.zeros(units, taps, dtype=torch.float64)
        self.shift: Tensor | None = None
        self.gram = torch.zeros(0)
        self.row_sum = torch.zeros(0)
        self.precision = torch.finfo(torch.float32).eps

    def add(self, patches: Tensor) -> None:
        """Take in more patches: (patches, units, taps)."""
        if not len(patches):
            return
        if patches.dtype != torch.float64:
            patches = patches.float()
        rows = patches.transpose(1, 2).flatten(0, 1) if self.pooled else patches.flatten(1)
        if self.shift is None:
            # Products are made in float32 for speed. Taken about the first batch's mean they lose nothing that matters;
            # about zero, a channel whose mean is far above its deviation would lose its variance to rounding.
            self.shift = rows.mean(0)
            self.precision = torch.finfo(rows.dtype).eps
            # MPS has no float64: its sums live on the CPU.
            home = torch.device("cpu") if rows.device.type == "mps" else rows.device
            self.row_sum = torch.zeros(rows.shape[1], dtype=torch.float64, device=home)
            self.gram = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=home)
        self.patches += len(patches)
        self.patch_sum += patches.sum(0).cpu()
        rows = rows - self.shift
        self.rows += len(rows)
        self.row_sum += rows.sum(0).to(self.row_sum.device)
        self.gram += (rows.T @ rows).to(self.gram.device)

    def statistics(self, judged: Tensor) -> PatchStatistics:
        """The statistics so far, in float64 on the CPU, with patches to judge by."""
        mean = self.patch_sum / max(self.patches, 1)
        if self.shift is None:
            columns = len(mean) if self.pooled else mean.numel()
            empty = torch.zeros(columns, dtype=torch.float64)
            return PatchStatistics(0, mean, empty, torch.zeros(columns, columns, dtype=torch.float64), judged)
        offset = self.row_sum / self.rows
        covariance = (self.gram / self.rows).addr_(offset, offset, alpha=-1).cpu()
        covariance = (covariance + covariance.T) / 2  # products of some processors are not quite symmetric
        column_mean = (offset + self.shift.to(offset)).cpu()
        return PatchStatistics(self.rows, mean, column_mean, covariance, judged, self.precision)


class Spread:
    """At most `limit` patches, spread evenly over all that were offered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.step = 1
        self.offered = 0
        self.parts: list[Tensor] = []

    def add(self, patches: Tensor) -> None:
        """Offer more patches: (patches, units, taps). When there are too many, every other one goes."""
        first = -self.offered % self.step
        self.offered += len(patches)
        self.parts.append(patches[first :: self.step].detach().clone())
        while sum(map(len, self.parts)) > self.limit:
            self.parts = [torch.cat(self.parts)[::2].clone()]
            self.step *= 2

    def kept(self) -> Tensor:
        """The patches, in float64 on the CPU: (patches, units, taps)."""
        return torch.cat(self.parts).cpu().double() if self.parts else torch.zeros(0, dtype=torch.float64)


def factored(moments: Tensor, precision: float) -> Tensor | None:
    """The Cholesky factor of a Gram matrix (columns, columns); None where its columns depend on one another.

    Judged by the precision of the products that the matrix was summed from, after scaling every column to length 1: so
    the verdict is the same on every processor, whichever way its roundings happen to fall.
    """
    if not len(moments):
        return moments
    size = moments.diagonal()
    if float(size.min()) <= 0:
        return None
    scale = size.rsqrt()
    factor, failed = torch.linalg.cholesky_ex(moments * scale.unsqueeze(1) * scale)
    if int(failed) or float(factor.diagonal().min()) ** 2 <= 16 * precision:
        return None
    return factor / scale.unsqueeze(1)
