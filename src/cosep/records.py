"""Frozen values that the stages hand to one another. Nouns only: no record computes more than a view of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Side = Literal["out", "in"]
Scope = Literal["interior", "all"]


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Count, mean and scatter (sum of squared deviations) of every channel in every class, in float64."""

    count: Tensor  # (classes,) int64
    mean: Tensor  # (classes, channels) float64
    scatter: Tensor  # (classes, channels) float64
    low: Tensor | None = None  # (channels,) float64: the smallest value of any class, where it was recorded
    high: Tensor | None = None  # (channels,) float64: the largest

    @property
    def classes(self) -> int:
        return self.mean.shape[0]

    @property
    def channels(self) -> int:
        return self.mean.shape[1]

    @property
    def variance(self) -> Tensor:
        """The empirical variance, scatter / count: (classes, channels); 0 for an empty class."""
        return self.scatter / self.count.clamp(min=1).unsqueeze(1)

    def merge(self, other: ClassMoments) -> ClassMoments:
        """The moments of both samples together (Chan et al. 1979): stable, and in any order the same to rounding."""
        n, m = self.count.unsqueeze(1).double(), other.count.unsqueeze(1).double()
        total = (n + m).clamp(min=1)
        gap = other.mean - self.mean
        return ClassMoments(
            self.count + other.count,
            self.mean + gap * (m / total),
            self.scatter + other.scatter + gap.square() * (n * m / total),
            None if self.low is None or other.low is None else torch.minimum(self.low, other.low),
            None if self.high is None or other.high is None else torch.maximum(self.high, other.high),
        )

    def of_channels(self, channels: Tensor) -> ClassMoments:
        """The same statistics for some of the channels."""
        low, high = (None if edge is None else edge[channels] for edge in (self.low, self.high))
        return ClassMoments(self.count, self.mean[:, channels], self.scatter[:, channels], low, high)


@dataclass(frozen=True, eq=False)
class ClassHistograms:
    """How often every channel fell into each of its bins, per class."""

    count: Tensor  # (classes, channels, bins) int64
    low: Tensor  # (channels,) float64: the left edge of the first bin
    high: Tensor  # (channels,) float64: the right edge of the last bin

    def of_channels(self, channels: Tensor) -> ClassHistograms:
        """The same counts for some of the channels."""
        return ClassHistograms(self.count[:, channels], self.low[channels], self.high[channels])


@dataclass(frozen=True, eq=False)
class Space:
    """The separability space of a layer: how far apart its channels' profiles lie, and over which classes."""

    distances: Tensor  # (channels, channels) float64, symmetric, zero diagonal
    classes: tuple[int, ...]  # the classes whose pairs span the space, ascending
    separability: Tensor  # (channels,) float64: the mean of each channel's profile
    metric: str
    left_out: tuple[int, ...] = ()  # classes with fewer than two samples, which no pair holds

    @property
    def channels(self) -> int:
        return self.distances.shape[0]


@dataclass(frozen=True)
class Selection:
    """Which channels of a layer stay, and the evidence: the curve, its fit, the clusters and the rule that decided."""

    channels: int
    kept: tuple[int, ...]  # ascending
    reason: str  # in words: "knee", "no knee: kept whole", "too few channels: kept whole", ...
    k: int | None = None  # the knee; None where there was none
    candidates: tuple[int, ...] = ()  # every k that was tried
    scores: tuple[float, ...] = ()  # the silhouette at each k
    fit: tuple[float, ...] = ()  # the polynomial at each k
    losses: tuple[float, ...] = ()  # the k-medoids loss at each k
    clusters: tuple[int, ...] = ()  # the cluster of each channel at the chosen k
    medoids: tuple[int, ...] = ()  # the medoid of each cluster
    representatives: tuple[int, ...] = ()  # the channel kept for each cluster
    notes: tuple[str, ...] = ()  # what was changed afterwards (rounding, balancing) and why

    @property
    def removed(self) -> tuple[int, ...]:
        kept = set(self.kept)
        return tuple(c for c in range(self.channels) if c not in kept)


@dataclass(frozen=True, eq=False)
class Slice:
    """Where a group's channels sit on one side of one module: row c of `positions` are the indices of channel c."""

    module: str
    side: Side
    positions: Tensor  # (width, span) int64, in the numbering of the uncut model; span > 1 behind a flatten

    @property
    def span(self) -> int:
        return self.positions.shape[1]


@dataclass(frozen=True, eq=False)
class Group:
    """Channels that stay or go together, everywhere they appear."""

    name: str  # the first producer's
    width: int
    producers: tuple[str, ...]  # modules that make these channels from other ones; their outputs are observed
    consumers: tuple[str, ...]  # modules that mix them into other channels
    slices: tuple[Slice, ...]  # every module side that holds them: producers, what lies between, and consumers
    macs: int  # multiply-accumulates of producers, what lies between and consumers, for one input
    scope: Scope | None  # the smallest scope that may prune it; None: not prunable
    why_not: str = ""  # for scope None or "all": in words
    blocks: int = 1  # kept channels must be equally many in each of this many equal consecutive blocks


# The indices of the uncut model that are still alive on each cut side of each module: all that is needed to cut again.
Layout = Mapping[tuple[str, Side], tuple[int, ...]]


@dataclass(frozen=True, init=False)
class GroupPlan:
    """What becomes of one group: the channels kept, in the numbering of the uncut model, and why."""

    group: str
    selection: Selection  # holds the kept channels, the reason and the notes, so that they stand in one place

    def __init__(
        self,
        group: str,
        width: int | None = None,
        kept: tuple[int, ...] | None = None,
        reason: str | None = None,
        selection: Selection | None = None,
    ) -> None:
        """A selection, or a width, the kept channels and a reason, which replace those of a selection."""
        chosen = selection or Selection(width or 0, (), "")
        chosen = replace(
            chosen,
            channels=chosen.channels if width is None else width,
            kept=chosen.kept if kept is None else kept,
            reason=chosen.reason if reason is None else reason,
        )
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "selection", chosen)

    @property
    def width(self) -> int:
        return self.selection.channels

    @property
    def kept(self) -> tuple[int, ...]:
        return self.selection.kept

    @property
    def reason(self) -> str:
        return self.selection.reason

    def keeping(self, kept: tuple[int, ...], reason: str) -> GroupPlan:
        """The plan with other channels, and why; how the choice came about stays on record."""
        return GroupPlan(self.group, kept=kept, reason=reason, selection=self.selection)


@dataclass(frozen=True)
class Cost:
    """What a network costs before and after a plan."""

    macs_before: int
    macs_after: int
    parameters_before: int
    parameters_after: int


@dataclass(frozen=True)
class Plan:
    """What is kept of a whole network: a value to print, save, edit, compare and apply."""

    groups: tuple[GroupPlan, ...] = ()
    layout: Layout = field(default_factory=dict)  # enough to repeat the cut without tracing; empty after an edit
    fingerprint: str = ""  # of the uncut model's parameter names and shapes
    input: tuple[int, ...] = ()  # the shape of one input, without the batch: what the model is traced with
    cost: Cost | None = None  # None where it is not known, as after an edit
    notes: tuple[str, ...] = ()  # how the limits fare
    # What other widths would keep; only in a plan that was just made.
    candidates: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def widths(self) -> dict[str, int]:
        """How many channels of each group stay."""
        return {plan.group: len(plan.kept) for plan in self.groups}

    def with_kept(self, kept: Mapping[str, Sequence[int]], reason: str = "chosen by hand") -> Plan:
        """The plan with other channels of some groups kept: {group: channels}."""
        from cosep.surgery.plan import edited

        return edited(self, {name: tuple(sorted(channels)) for name, channels in kept.items()}, reason)

    def with_widths(self, widths: Mapping[str, int]) -> Plan:
        """The plan with other widths of some groups, {group: channels}, chosen by the criterion that made it."""
        from cosep.surgery.plan import widened

        return widened(self, widths)

    def differences(self, other: Plan) -> tuple[str, ...]:
        """In words, in which groups two plans differ."""
        from cosep.surgery.plan import differences

        return differences(self, other)

    def apply(self, model: nn.Module, example_input: Tensor | None = None) -> nn.Module:
        """The model cut to this plan; the caller's stays as it is. Nothing is rebuilt or trained."""
        from cosep.surgery.plan import applied

        return applied(self, model, example_input)

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, made to be read and edited."""
        from cosep.surgery.plan import write_plan

        return write_plan(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """A plan from a JSON file, edited or not."""
        from cosep.surgery.plan import read_plan

        return read_plan(Path(path))

    def __str__(self) -> str:
        from cosep.surgery.plan import plan_table

        return plan_table(self)

    def __repr__(self) -> str:
        cut = sum(len(plan.kept) < plan.width for plan in self.groups)
        return f"<Plan: {cut} of {len(self.groups)} groups cut, {sum(self.widths.values())} channels kept>"


@dataclass(frozen=True)
class Compensation:
    """What became of one consumer's weights: re-solved or left for plain cutting, and the error either way.

    Errors are squared, of the group's share of the consumer's output, relative to its variance, on images that were
    set aside from the fit. They are nan where nothing could be measured.
    """

    consumer: str
    applied: bool
    reason: str  # in words: "re-solved", or why it was left for plain cutting
    error_before: float  # of plain cutting
    error_after: float  # with the weights that the consumer has now


def as_index(values: tuple[int, ...]) -> Tensor:
    """A tuple of indices as an int64 tensor, also when it is empty."""
    return torch.tensor(values, dtype=torch.int64)
