"""Class-conditional moments of a matrix of activations, in float64, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from cosep.errors import CalibrationError
from cosep.observation.checks import as_tensor, check_classes, check_declared, check_finite, checked_labels
from cosep.records import ClassHistograms, ClassMoments, HeadMoments

_ROWS = 4096  # of a matrix that are treated at once: bounds the float64 copy and the class indicators


def class_moments(
    activations: Tensor | np.ndarray, labels: Tensor | np.ndarray, classes: int | None = None, *, partial: bool = False
) -> ClassMoments:
    """Moments of a matrix (images, channels) with integer labels (images,): (classes, channels) each.

    For features of any kind; no network is needed. `classes` defaults to the largest label plus one. With `partial`
    the matrix is one share of the data and a class may have fewer than two samples in it: join the shares with
    `merge_all` and then call `check_moments`.
    """
    check_declared(classes)
    values = _checked_matrix(activations)
    found = checked_labels(labels, len(values), classes)
    state = RunningMoments(values.shape[1], classes, values.device)
    for start in range(0, len(values), _ROWS):
        state.add(values[start : start + _ROWS], found[start : start + _ROWS], [""], [values.shape[1]])
    moments = state.moments()
    if not partial:
        check_moments(moments)
    return moments


def class_histograms(
    activations: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    classes: int | None = None,
    *,
    bins: int = 64,
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> ClassHistograms:
    """Histograms of a matrix (images, channels) with integer labels (images,): (classes, channels, bins).

    `low` and `high`, (channels,) each, are the outer edges; by default each channel's smallest and largest value.
    Values beyond them count in the outer bins; where both edges agree everything is in the first bin.
    """
    moments = class_moments(activations, labels, classes)
    assert moments.low is not None
    assert moments.high is not None
    values = _checked_matrix(activations)
    found = checked_labels(labels, len(values), classes)
    low, high = (moments.low if low is None else low), (moments.high if high is None else high)
    state = RunningHistograms(low, high, bins, moments.classes, values.device)
    for start in range(0, len(values), _ROWS):
        state.add(values[start : start + _ROWS], found[start : start + _ROWS])
    return state.histograms()


def merge_all(parts: Iterable[ClassMoments]) -> ClassMoments:
    """The moments of all parts together, for instance one from each process; fewer classes in some are filled up."""
    found = list(parts)
    if not found:
        raise CalibrationError("there are no moments to merge; give at least one part.")
    channels = sorted({part.channels for part in found})
    if len(channels) > 1:
        raise CalibrationError(f"parts of {channels} channels cannot be merged; all must describe the same layer.")
    classes = max(part.classes for part in found)
    merged = _with_classes(found[0], classes)
    for part in found[1:]:
        merged = merged.merge(_with_classes(part, classes))
    return merged


def merge_all_histograms(parts: Iterable[ClassHistograms]) -> ClassHistograms:
    """The histograms of all parts together; all must have the same bins."""
    found = list(parts)
    if not found:
        raise CalibrationError("there are no histograms to merge; give at least one part.")
    first = found[0]
    for part in found[1:]:
        same = part.count.shape[1:] == first.count.shape[1:]
        if not (same and torch.equal(part.low, first.low) and torch.equal(part.high, first.high)):
            raise CalibrationError(
                "histograms with different channels, bins or ranges cannot be merged; make all parts with the ranges "
                "of the same merged moments."
            )
    classes = max(part.count.shape[0] for part in found)
    count = first.count.new_zeros((classes, *first.count.shape[1:]))
    for part in found:
        count[: part.count.shape[0]] += part.count
    return ClassHistograms(count, first.low, first.high)


def check_moments(moments: ClassMoments) -> None:
    """Refuse moments in which fewer than two classes have the two samples that a variance needs."""
    check_classes(moments.count)


def moments_of_batch(values: Tensor, which: Tensor, rows: int) -> ClassMoments:
    """Moments of (images, channels) float64 values whose row numbers are (images,) in 0..rows-1; trusts its input."""
    member = values.new_zeros(rows, len(values))
    member[which, torch.arange(len(values), device=values.device)] = 1
    count = member.sum(1)
    # Sums of deviations, first from the batch's mean and then from each class's: E[x²]-E[x]² would lose the variance of
    # a channel whose mean is large against its spread. A product with the indicators, unlike index_add_, sums in the
    # same order on every device.
    shift = values.mean(0)
    mean = member @ (values - shift) / count.clamp(min=1).unsqueeze(1) + shift
    scatter = member @ (values - mean[which]).square()
    return ClassMoments(count.long(), mean, scatter)


class RunningMoments:
    """Moments so far: state of a fixed size, into which batches are merged."""

    def __init__(self, channels: int, classes: int | None, device: torch.device) -> None:
        # Some accelerators have no float64 at all; their pooled values are few, so the CPU takes them.
        self.device = torch.device("cpu") if device.type == "mps" else device
        rows = classes or 0
        self.images = 0
        self.count = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.mean = torch.zeros(rows, channels, dtype=torch.float64, device=self.device)
        self.scatter = torch.zeros_like(self.mean)
        self.low = torch.full((channels,), torch.inf, dtype=torch.float64, device=self.device)
        self.high = -self.low

    def add(self, values: Tensor, labels: Tensor, layers: list[str], widths: list[int]) -> None:
        """Merge a batch (images, channels); the columns of each layer are as many as its width, for error messages."""
        values = values.to(self.device).double()
        check_finite(values, layers, widths, self.images)
        # Only the classes of this batch are touched: with 1,000 classes, a batch holds a few of them.
        present, which = labels.unique(return_inverse=True)
        self._grow(int(present[-1]) + 1)
        present, which = present.to(self.device), which.to(self.device)
        batch = moments_of_batch(values, which, len(present))
        merged = ClassMoments(self.count[present], self.mean[present], self.scatter[present]).merge(batch)
        self.count[present], self.mean[present], self.scatter[present] = merged.count, merged.mean, merged.scatter
        low, high = torch.aminmax(values, dim=0)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.images += len(values)

    def moments(self) -> ClassMoments:
        """What was gathered, on the CPU."""
        if not bool(torch.isfinite(self.scatter).all()):
            raise CalibrationError("activations are too large for their squares to be summed in float64. Rescale them.")
        return ClassMoments(*(t.cpu() for t in (self.count, self.mean, self.scatter, self.low, self.high)))

    def _grow(self, classes: int) -> None:
        missing = classes - len(self.count)
        if missing > 0:
            self.count = torch.cat([self.count, self.count.new_zeros(missing)])
            more = self.mean.new_zeros(missing, self.mean.shape[1])
            self.mean, self.scatter = torch.cat([self.mean, more]), torch.cat([self.scatter, more])


class RunningHistograms:
    """Histograms so far: state of a fixed size, into which batches are counted."""

    def __init__(self, low: Tensor, high: Tensor, bins: int, classes: int, device: torch.device) -> None:
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.bins = bins
        self.low, self.high = (edge.to(self.device, torch.float64) for edge in (low, high))
        self.count = torch.zeros(classes, len(low), bins, dtype=torch.int64, device=self.device)
        width = self.high - self.low
        self.per_unit = torch.where(width > 0, bins / width, 0.0)  # a constant channel has one bin: the first

    def add(self, values: Tensor, labels: Tensor) -> None:
        """Count a batch (images, channels)."""
        channels = values.shape[1]
        place = (values.to(self.device).double() - self.low) * self.per_unit
        bin_of = place.clamp(0, self.bins - 1).long()  # truncation, which after the clamp is the floor
        channel = torch.arange(channels, device=self.device)
        flat = ((labels.to(self.device).unsqueeze(1) * channels + channel) * self.bins + bin_of).flatten()
        self.count.view(-1).scatter_add_(0, flat, torch.ones_like(flat))

    def histograms(self) -> ClassHistograms:
        """What was counted, on the CPU."""
        return ClassHistograms(self.count.cpu(), self.low.cpu(), self.high.cpu())


def _checked_matrix(activations: Tensor | np.ndarray) -> Tensor:
    """Activations as a tensor (images, channels) with at least one of each."""
    values = as_tensor("activations", activations)
    if values.is_complex():
        raise CalibrationError("activations are complex; real numbers are needed. Take .abs() or .real of them.")
    if values.ndim != 2 or 0 in values.shape:
        raise CalibrationError(
            f"activations have the shape {tuple(values.shape)}; they must have (images, channels) with at least one of "
            "each. Reduce feature maps to one number per image and channel first, for instance with .mean((2, 3))."
        )
    return values


def _with_classes(moments: ClassMoments, classes: int) -> ClassMoments:
    """The same moments with empty classes appended, up to `classes`."""
    missing = classes - moments.classes
    if missing == 0:
        return moments
    more = moments.mean.new_zeros(missing, moments.channels)
    return ClassMoments(
        torch.cat([moments.count, moments.count.new_zeros(missing)]),
        torch.cat([moments.mean, more]),
        torch.cat([moments.scatter, more]),
        moments.low,
        moments.high,
    )


class RunningHeads:
    """The scatter matrices of heads in some of the classes, added up batch by batch around means that are known."""

    def __init__(self, moments: ClassMoments, columns: Tensor, classes: Sequence[int]) -> None:
        """columns: (heads, span) channels of the moments."""
        device = moments.mean.device
        self.columns, self.classes = columns.to(device), tuple(classes)
        index = torch.tensor(self.classes, dtype=torch.int64, device=device)
        self.count, self.mean = moments.count[index], moments.mean[index][:, self.columns]  # (classes, heads, span)
        self.scatter = self.mean.new_zeros((*self.mean.shape, columns.shape[1]))

    def add(self, values: Tensor, labels: Tensor) -> None:
        """values: (batch, channels) of a layer."""
        values, labels = values.to(self.mean.device)[:, self.columns].double(), labels.to(self.mean.device)
        present = set(labels.unique().tolist())
        for position, label in enumerate(self.classes):
            if label in present:
                apart = values[labels == label] - self.mean[position]
                self.scatter[position] += torch.einsum("nhs,nht->hst", apart, apart)

    def moments(self) -> HeadMoments:
        """What was added up, class by class in the order given."""
        return HeadMoments(self.count, self.mean, self.scatter)
