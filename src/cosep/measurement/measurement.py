"""The figures of one model, and of two beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from cosep.measurement.accuracy import accuracy
from cosep.measurement.cost import macs, parameters, weight_bytes
from cosep.measurement.latency import Latency


@dataclass(frozen=True)
class Measurement:
    """The figures of one model; None where nobody measured."""

    macs: int  # of one sample
    parameters: int
    bytes: int  # of all its tensors
    accuracy: float | None = None  # in [0, 1]
    latency: Latency | None = None

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Measurement:
        """The measurement that `to_document` wrote."""
        values = dict(document)
        if values.get("latency") is not None:
            values["latency"] = Latency(**values["latency"])
        return cls(**values)


@dataclass(frozen=True)
class Comparison:
    """What changed between two measurements: shares of the first, and None where one of the two was not measured."""

    macs: float | None  # after / before
    parameters: float | None
    bytes: float | None
    accuracy: float | None  # after - before, in [-1, 1]
    speedup: float | None  # time before / time after

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return asdict(self)


def measure(model: nn.Module, example_input: Tensor, batches: Iterable[Any] | None = None) -> Measurement:
    """The figures of a model that need no clock; the accuracy only if there are batches (inputs, labels)."""
    return Measurement(
        macs=macs(model, example_input),
        parameters=parameters(model),
        bytes=weight_bytes(model),
        accuracy=None if batches is None else accuracy(model, batches),
    )


def compare(before: Measurement, after: Measurement) -> Comparison:
    """What the second measurement has left of the first."""
    gain = None
    if before.accuracy is not None and after.accuracy is not None:
        gain = after.accuracy - before.accuracy
    return Comparison(
        macs=_share(after.macs, before.macs),
        parameters=_share(after.parameters, before.parameters),
        bytes=_share(after.bytes, before.bytes),
        accuracy=gain,
        speedup=_speedup(before.latency, after.latency),
    )


def _share(after: int, before: int) -> float | None:
    return after / before if before else None


def _speedup(before: Latency | None, after: Latency | None) -> float | None:
    """Of the medians, and only if both were timed under the same conditions."""
    if before is None or after is None:
        return None
    conditions = ("batch", "threads", "memory_format", "device", "runtime")
    if any(getattr(before, name) != getattr(after, name) for name in conditions):
        return None
    return before.median_ms / after.median_ms
