"""Frozen values that the stages hand to one another. Nouns only: no record computes more than a view of itself."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Side = Literal["out", "in"]
Scope = Literal["interior", "all"]
Towards = Literal["output", "sum"]
Unit = Literal["channel", "head"]


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
class HeadMoments:
    """Count, mean and scatter matrix of the values of every head in every class, in float64."""

    count: Tensor  # (classes,) int64
    mean: Tensor  # (classes, heads, span)
    scatter: Tensor  # (classes, heads, span, span)


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
    unit: Unit = "channel"  # what one of them is: a head of attention has a span of places in every layer
    between: int = 0  # multiply-accumulates between the layers that go with the channels: attention's own products
    blocks: int = 1  # kept channels must be equally many in each of this many equal consecutive blocks


@dataclass(frozen=True)
class LayerCost:
    """One layer's part of a cost: what goes with its inputs times its outputs, and what with its outputs alone."""

    inputs: int
    outputs: int
    product: float
    each: float = 0.0


# The indices of the uncut model that are still alive on each cut side of each module: all that is needed to cut again.
Layout = Mapping[tuple[str, Side], tuple[int, ...]]


@dataclass(frozen=True, init=False)
class GroupPlan:
    """What becomes of one group: the channels kept, in the numbering of the uncut model, and why."""

    group: str
    selection: Selection  # holds the kept channels, the reason and the notes, so that they stand in one place
    unit: Unit  # what one of its channels is

    def __init__(
        self,
        group: str,
        width: int | None = None,
        kept: tuple[int, ...] | None = None,
        reason: str | None = None,
        selection: Selection | None = None,
        unit: Unit = "channel",
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
        object.__setattr__(self, "unit", unit)

    @property
    def width(self) -> int:
        return self.selection.channels

    @property
    def kept(self) -> tuple[int, ...]:
        return self.selection.kept

    @property
    def reason(self) -> str:
        return self.selection.reason

    @property
    def why(self) -> str:
        """The reason and the notes, in words that fit what the group is of."""
        return in_unit("; ".join((self.reason, *self.selection.notes)), self.unit)

    def keeping(self, kept: tuple[int, ...], reason: str) -> GroupPlan:
        """The plan with other channels, and why; how the choice came about stays on record."""
        return GroupPlan(self.group, kept=kept, reason=reason, selection=self.selection, unit=self.unit)


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
    earlier: tuple[Plan, ...] = ()  # of the steps that led to the network that this one is of, the first of them first
    # What other widths would keep; only in a plan that was just made.
    candidates: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def steps(self) -> tuple[Plan, ...]:
        """This plan behind those of the earlier steps: what was done to the network that nobody had cut yet."""
        return *self.earlier, replace(self, earlier=())

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
class LayerRebuild:
    """What became of one layer: re-solved or left, and its error against the uncut network, either way.

    Errors are squared, relative to the variance of what the layer is solved towards, on images that the fit did not
    see. They are nan where nothing was measured.
    """

    layer: str
    towards: Towards  # the uncut network's own output there, or the sum in which it ends
    applied: bool
    reason: str  # in words: "re-solved", or why not
    error_before: float  # as cut, with BatchNorm's statistics measured again
    error_after: float  # with the weights that it has now
    rows: int = 0  # behind the solution
    columns: int = 0  # of the solution

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LayerRebuild:
        """The record that was written as plain values."""
        found = {name: _nan_for_none(document.get(name)) for name in ("error_before", "error_after")}
        return cls(**{**{name: document[name] for name in _LAYER_FACTS}, **found})


_LAYER_FACTS = ("layer", "towards", "applied", "reason", "rows", "columns")


@dataclass(frozen=True)
class BlockRebuild:
    """What became of layers that were refined together, by gradient steps after their solutions.

    Errors are squared, of the block's output behind its activation and relative to its variance, on images that no step
    has seen. They are nan where nothing was measured.
    """

    layers: tuple[str, ...]
    applied: bool
    reason: str  # in words: "refined", or why not
    error_before: float
    error_after: float

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BlockRebuild:
        """The record that was written as plain values."""
        before, after = (_nan_for_none(document.get(name)) for name in ("error_before", "error_after"))
        return cls(tuple(document["layers"]), document["applied"], document["reason"], before, after)


def _nan_for_none(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class RebuildRecord:
    """What became of the layers, and how far the outputs are from the uncut network's: KL at temperature 4."""

    layers: tuple[LayerRebuild, ...] = ()
    divergence: float | None = None  # of the rebuilt network; None where only parts were rebuilt, one by one
    divergence_cut: float | None = None  # of the plainly cut one, with BatchNorm measured again
    notes: tuple[str, ...] = ()
    blocks: tuple[BlockRebuild, ...] = ()  # refined after their layers were solved

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file; an error that nobody measured is None there."""
        document: dict[str, Any] = _plain(asdict(self))
        for part in (*document["layers"], *document["blocks"]):
            part |= {name: known(part[name]) for name in ("error_before", "error_after")}
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RebuildRecord:
        """The record that `to_document` wrote."""
        return cls(
            tuple(LayerRebuild.from_document(layer) for layer in document["layers"]),
            known(document.get("divergence")),
            known(document.get("divergence_cut")),
            tuple(document["notes"]),
            tuple(BlockRebuild.from_document(block) for block in document.get("blocks", ())),
        )


@dataclass(frozen=True)
class LayerFigures:
    """A layer before and after, or a place where several layers come together; in the order in which they run.

    Its time is that from when it begins until the next layer begins: with the normalisation, activation and addition
    behind it. The times of all layers together are the time of the network.
    """

    layer: str  # "" where several come together
    kind: str  # the layer's class, or what is made of them: "sum", "product", "concatenation" or torch's name for it
    sources: tuple[int, ...] | None  # places of those whose outputs it reads, -1: the input; None where not known
    inputs: tuple[int, int] = (0, 0)  # channels, before and after
    outputs: tuple[int, int] = (0, 0)
    macs: tuple[int, int] = (0, 0)  # of one sample
    milliseconds: tuple[float, float] = (0.0, 0.0)  # for the example, batch size 1 as a rule
    groups: tuple[str, ...] = ()  # to which its outputs belong
    why: str = ""  # why it has as many outputs as it has, in words

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LayerFigures:
        """The figures that were written as plain values."""
        pairs = {name: tuple(document[name]) for name in ("inputs", "outputs", "macs", "milliseconds", "groups")}
        sources = document["sources"]
        return cls(
            layer=document["layer"],
            kind=document["kind"],
            sources=None if sources is None else tuple(sources),
            why=document["why"],
            **pairs,
        )


@dataclass(frozen=True)
class Tried:
    """One size of the network: the share of its MACs, and the points of accuracy lost before any training."""

    share: float
    drop: float


class FormerlyDict:
    """A record that was a dict of plain values: its string keys still answer, with a warning, for one more version."""

    def former_document(self) -> dict[str, Any]:
        """The dict that this record used to be."""
        raise NotImplementedError

    def __getitem__(self, key: str) -> Any:
        return self._former(key)[key]

    def __contains__(self, key: str) -> bool:
        return key in self._former(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self._former(key).get(key, default)

    def keys(self) -> list[str]:
        """As of a dict."""
        return list(self._former("..."))

    def _former(self, key: str) -> dict[str, Any]:
        kind = type(self).__name__
        warnings.warn(
            f"a {kind} is no dict any more, and [{key!r}] will stop working in the next version: read its attributes, "
            f"or `to_document()` for plain values.",
            DeprecationWarning,
            stacklevel=3,
        )
        return self.former_document()


@dataclass(frozen=True)
class Latency:
    """The times of one model, in milliseconds a batch, and how much faster it was than the first model beside it."""

    batch: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    throughput: float  # samples a second, at the median
    speedup: float  # the median, over the rounds, of (first model's time) / (this model's time); 1 for the first itself
    speedup_p10: float
    speedup_p90: float
    repeats: int
    threads: int
    memory_format: str
    device: str
    runtime: str  # "torch" or "onnxruntime"
    mean_ms: float | None = None  # of all times; None in reports of before it was taken
    sd_ms: float | None = None  # standard deviation of the seeds' means; of the single times where there is one seed
    seeds: int = 1  # inputs that were drawn; `repeats` rounds with each

    @property
    def conditions(self) -> tuple[object, ...]:
        """What two times must have in common before one may be divided by the other."""
        return self.batch, self.threads, self.memory_format, self.device, self.runtime

    @property
    def where(self) -> str:
        """The runtime in words, to be put behind a figure: nothing where it is PyTorch."""
        return ", in ONNX Runtime" if self.runtime == "onnxruntime" else ""

    def __str__(self) -> str:
        return (
            f"{self.median_ms:.3f} ms ({self.p10_ms:.3f} to {self.p90_ms:.3f}) a batch of {self.batch}, "
            f"{self.threads} {'thread' if self.threads == 1 else 'threads'}, {self.memory_format}, {self.runtime} on "
            f"{self.device}"
        )


def _latency(document: Mapping[str, Any]) -> Latency:
    return Latency(**{name: document[name] for name in Latency.__annotations__ if name in document})


@dataclass(frozen=True)
class Measurement:
    """The figures of one model; None where nobody measured."""

    macs: int  # of one sample
    parameters: int
    bytes: int  # of all its tensors
    accuracy: float | None = None  # in [0, 1]
    latency: Latency | None = None
    by_class: tuple[float | None, ...] | None = None  # the accuracy in each class; None for one without a sample

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Measurement:
        """The measurement that `to_document` wrote."""
        latency, by_class = document.get("latency"), document.get("by_class")
        return cls(
            macs=document["macs"],
            parameters=document["parameters"],
            bytes=document["bytes"],
            accuracy=known(document.get("accuracy")),
            latency=None if latency is None else _latency(latency),
            by_class=None if by_class is None else tuple(known(value) for value in by_class),
        )


@dataclass(frozen=True)
class Comparison:
    """What the second of two models has left of the first, as shares; None where one of the two was not measured."""

    macs: float | None  # after / before: what remains
    parameters: float | None
    bytes: float | None
    accuracy: float | None  # after - before, in [-1, 1]
    speedup: float | None  # that of the second model's latency: the median of the ratios within the rounds

    @classmethod
    def between(cls, before: Measurement, after: Measurement) -> Comparison:
        """What the second measurement has left of the first; both latencies must have been taken in turn."""
        gain = None
        if before.accuracy is not None and after.accuracy is not None:
            gain = after.accuracy - before.accuracy
        one, other = before.latency, after.latency
        return cls(
            macs=_share(after.macs, before.macs),
            parameters=_share(after.parameters, before.parameters),
            bytes=_share(after.bytes, before.bytes),
            accuracy=gain,
            speedup=other.speedup if one and other and one.conditions == other.conditions else None,
        )

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return asdict(self)


@dataclass(frozen=True)
class Made:
    """When, with what and on what a report was made."""

    time: str  # UTC, as 2026-11-18 02:15
    cosep: str  # versions
    torch: str
    python: str
    hardware: str


@dataclass(frozen=True)
class RecoveryRecord:
    """What became of one recovery."""

    updates: int
    outcome: str  # "done", or in words why it stopped early
    losses: tuple[float, ...]  # thinned
    accuracy: float | None = None  # on held-out data afterwards, where the whole network was trained
    kept: bool = True  # False where the network from before it was better, and is the result

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RecoveryRecord:
        """The record that `to_document` wrote."""
        return cls(
            document["updates"],
            document["outcome"],
            tuple(document["losses"]),
            known(document.get("accuracy")),
            document.get("kept", True),
        )


@dataclass(frozen=True)
class Outcome(FormerlyDict):
    """What became of one group: the decision, what was done about it, and the network's figures once it was done."""

    group: str
    width: int
    kept: int  # how many channels; which ones is in the plan
    reason: str
    notes: tuple[str, ...] = ()  # what was changed after the choice (rounding, balancing) and why
    masked_difference: float | None = None  # between the cut and a masked copy, relative to the largest value
    accuracy: float | None = None  # of the network so far, on held-out data
    macs: int = 0  # of the network so far
    parameters: int = 0
    recovery: RecoveryRecord | None = None  # of the training right after this group, where there was one
    unit: Unit = "channel"  # what one of its channels is

    @property
    def cut(self) -> bool:
        """Whether channels were removed."""
        return self.kept < self.width

    @property
    def why(self) -> str:
        """The reason, in words that fit what the group is of."""
        return in_unit(self.reason, self.unit)

    @property
    def measured(self) -> bool:
        """Whether the network's figures after this group are there: they come last."""
        return self.parameters > 0

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return _plain(asdict(self))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Outcome:
        """The outcome that `to_document` wrote, or the entry that the version before wrote."""
        now = present_names(document)
        recovery = now.get("recovery")
        return cls(
            group=now["group"],
            width=now["width"],
            kept=now["kept"],
            reason=now["reason"],
            notes=tuple(now["notes"]),
            masked_difference=now.get("masked_difference"),
            accuracy=known(now.get("accuracy")),
            macs=now.get("macs", 0),
            parameters=now.get("parameters", 0),
            recovery=None if recovery is None else RecoveryRecord.from_document(recovery),
            unit=now.get("unit") or "channel",
        )

    def former_document(self) -> dict[str, Any]:
        """As an entry of the report of the version before."""
        former = {now: before for before, now in FORMER_NAMES.items()}
        found = {former.get(name, name): value for name, value in self.to_document().items() if name != "unit"}
        if self.recovery is None:
            del found["recovery"]
        return {**found, "compensation": []}


# What the entries of the version before called things.
FORMER_NAMES = {"twin_difference": "masked_difference"}


def counted(count: int, unit: Unit) -> str:
    """A number of channels or heads, in words."""
    return f"{count:,} {unit}" + "s" * (count != 1)


def in_unit(text: str, unit: Unit) -> str:
    """Words that speak of channels, for a group of another unit."""
    if unit == "channel":
        return text
    return re.sub(
        r"\b([Cc])hannel(s?)\b", lambda found: (unit if found[1] == "c" else unit.capitalize()) + found[2], text
    )


def in_all(amounts: Iterable[tuple[Unit, int]]) -> str:
    """What so many heads and channels are together, in words: heads first."""
    sums: dict[Unit, int] = {}
    for unit, count in amounts:
        sums[unit] = sums.get(unit, 0) + count
    units: tuple[Unit, ...] = ("head", "channel")
    return " and ".join(counted(sums[unit], unit) for unit in units if unit in sums) or counted(0, "channel")


def present_names(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the version before under the names of this one; one of this version as it is."""
    return {FORMER_NAMES.get(name, name): value for name, value in entry.items()}


def _share(after: int, before: int) -> float | None:
    return after / before if before else None


def known(value: float | None) -> float | None:
    """A figure, or None where it is nan or infinite: then nobody knows it."""
    return value if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Lists for tuples, as a JSON file gives them back."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def as_index(values: tuple[int, ...]) -> Tensor:
    """A tuple of indices as an int64 tensor, also when it is empty."""
    return torch.tensor(values, dtype=torch.int64)
