"""The table at the end of a run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from cosep.cli.common import count, percent


def summary_table(report: dict[str, Any]) -> Table:
    """Before and after, side by side."""
    before, after, change = report["before"], report["after"], report["change"]
    table = Table(title=None)
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    if before.get("accuracy") is not None and after.get("accuracy") is not None:
        points = 100 * (after["accuracy"] - before["accuracy"])
        table.add_row("test accuracy", percent(before["accuracy"]), percent(after["accuracy"]), f"{points:+.2f} points")
    held = report["holdout_accuracy"]
    if held.get("before") is not None and held.get("after") is not None:
        points = 100 * (held["after"] - held["before"])
        table.add_row("held-out accuracy", percent(held["before"]), percent(held["after"]), f"{points:+.2f} points")
    for name, key in (("MACs", "macs"), ("parameters", "parameters"), ("bytes of weights", "bytes")):
        table.add_row(name, count(before[key]), count(after[key]), f"{100 * change[key]:.1f} %")
    one, other = before.get("latency"), after.get("latency")
    if one and other:
        where = f"latency, batch {one['batch']}, {one['threads']} threads"
        times = f"{one['median_ms']:.2f} ms", f"{other['median_ms']:.2f} ms"
        speedup = change.get("speedup")
        table.add_row(where, *times, "" if speedup is None else f"{speedup:.2f}x faster")
    return table
