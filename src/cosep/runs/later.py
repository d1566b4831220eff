"""A result that was changed after its figures were taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from cosep.measurement import accuracy
from cosep.runs.folder import weights_digest

OLDER = "the network was changed after it was measured: {} are of the network before that"


def present_report(model: nn.Module, report: Mapping[str, Any], evaluate: Iterable[Any] | None) -> dict[str, Any]:
    """The report of a result as it is now: where the weights are others, with a note of which figures are older.

    With `evaluate`, the test accuracy is measured again. Weights are counted in the report by their checksum.
    """
    digest = weights_digest(model)
    if report.get("weights_sha256") in (None, digest):
        return dict(report)
    after = dict(report["after"])
    change = dict(report["change"])
    older = "latency and held-out accuracy"
    if evaluate is None:
        older = "accuracies and latency"
        warnings.warn(
            f"{OLDER.format(older)}. The saved report says so. Give save(..., evaluate=test_loader) to measure the "
            "test accuracy again.",
            stacklevel=3,
        )
    else:
        after["accuracy"] = accuracy(model, evaluate)
        before = report["before"].get("accuracy")
        if "accuracy" in change:
            change["accuracy"] = None if before is None else after["accuracy"] - before
    notes = [*report.get("notes", ()), OLDER.format(older)]
    return {**report, "after": after, "change": change, "notes": notes, "weights_sha256": digest}
