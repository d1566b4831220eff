"""A result that was changed after its figures were taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from cosep.measurement import accuracy
from cosep.reporting.records import Report
from cosep.runs.folder import weights_digest

OLDER = "the network was changed after it was measured: {} are of the network before that"


def present_report(model: nn.Module, report: Report, evaluate: Iterable[Any] | None) -> Report:
    """The report of a result as it is now: where the weights are others, with a note of which figures are older.

    With `evaluate`, the test accuracy is measured again. A report knows its network by the checksum of its weights.
    """
    digest = weights_digest(model)
    if report.weights_sha256 in ("", digest):
        return report
    after, older = report.after, "latency and held-out accuracy"
    if evaluate is None:
        older = "accuracies and latency"
        warnings.warn(
            f"{OLDER.format(older)}. The saved report says so. Give save(..., evaluate=test_loader) to measure the "
            "test accuracy again.",
            stacklevel=3,
        )
    else:
        after = replace(after, accuracy=accuracy(model, evaluate))
    return replace(report, after=after, notes=(*report.notes, OLDER.format(older)), weights_sha256=digest)
