"""The page of a sweep: accuracy against MACs and against measured time, with every size's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosep.reporting.html import assembled

SCRIPTS = ("charts.js", "sweep.js")


def sweep_page(sweep: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """A sweep, as `Sweep.to_document` gives it, as one HTML page."""
    model, data = (str(about.get(name) or "") for name in ("model", "data"))
    title = f"{model} on {data}" if model and data else model or "a network"
    return assembled(f"{title} at several sizes · cosep sweep", {"sweep": {**sweep, "title": title}}, SCRIPTS)
