"""Gaussian against histogram separability: the records behind two figures, and their two measures of agreement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosep.records import Unit


@dataclass(frozen=True)
class Density:
    """One channel in two classes: what was counted, and the Gaussians fitted to it."""

    channel: int
    classes: tuple[int, int]
    low: float  # the left edge of the first bin
    high: float  # the right edge of the last
    counts: tuple[tuple[int, ...], tuple[int, ...]]  # in each bin, of either class
    mean: tuple[float, float]
    deviation: tuple[float, float]
    gaussian: float  # JM of the two Gaussians
    histogram: float  # JM of the two histograms


@dataclass(frozen=True)
class Agreement:
    """A group of the unpruned network under both readings of JM, all other settings the same."""

    group: str
    gaussian: tuple[float, ...]  # the mean separability of every channel
    histogram: tuple[float, ...]
    kept_gaussian: tuple[int, ...]
    kept_histogram: tuple[int, ...]
    density: Density
    unit: Unit = "channel"  # of a head, the density is that of its first value

    @property
    def overlap(self) -> tuple[int, int]:
        """How many channels both readings keep, and how many at least one."""
        return overlap(self.kept_gaussian, self.kept_histogram)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank; nan where one side does not vary."""
    one, other = _ranks(a), _ranks(b)
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / size if size > 0 else float("nan")


def overlap(one: Iterable[int], other: Iterable[int]) -> tuple[int, int]:
    """How many channels are in both sets, and how many in at least one."""
    a, b = set(one), set(other)
    return len(a & b), len(a | b)


def jaccard(overlaps: Iterable[Sequence[float]]) -> float:
    """The paper's index: of the channels that either of two selections keeps in the layers given, the share of both.

    Channels of all layers count alike and layers kept whole belong to it, as for the "retained sets" of the paper;
    it is no mean over layers.
    """
    found = list(overlaps)
    both, either = sum(each[0] for each in found), sum(each[1] for each in found)
    return both / either if either else float("nan")


def thirds(agreements: Sequence[Agreement]) -> dict[str, Sequence[Agreement]]:
    """Early, middle and late groups; with fewer than three, those that there are."""
    count = len(agreements)
    cuts = [round(count * part / 3) for part in range(4)]
    parts = {name: agreements[cuts[i] : cuts[i + 1]] for i, name in enumerate(("early", "middle", "late"))}
    return {name: part for name, part in parts.items() if part}


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=float)
    _, place, times = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    mean: NDArray[np.float64] = (last - (times - 1) / 2).astype(np.float64)
    return mean[place.reshape(-1)]
