"""The figures of one model, and of two beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from cosep.measurement.accuracy import score
from cosep.measurement.cost import macs, parameters, weight_bytes
from cosep.records import Comparison, Measurement


def measure(model: nn.Module, example_input: Tensor, batches: Iterable[Any] | None = None) -> Measurement:
    """The figures of a model that need no clock; the accuracy only if there are batches (inputs, labels)."""
    scored = None if batches is None else score(model, batches)
    return Measurement(
        macs=macs(model, example_input),
        parameters=parameters(model),
        bytes=weight_bytes(model),
        accuracy=scored.accuracy if scored else None,
        by_class=scored.by_class if scored else None,
    )


def compare(before: Measurement, after: Measurement) -> Comparison:
    """What the second measurement has left of the first; both latencies must be of one call of `latency`."""
    return Comparison.between(before, after)
