"""The table at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from cosep.cli.common import count, percent
from cosep.records import Latency

if TYPE_CHECKING:
    from cosep.reporting.records import Report


def summary_table(report: Report) -> Table:
    """Before and after, side by side, and what that means."""
    before, after, left = report.before, report.after, report.change
    table = Table(title=None)
    for column in ("", "before", "after", "in short"):
        table.add_column(column, justify="left" if not column else "right")
    held = report.holdout_accuracy
    for name, one, other in (
        ("test accuracy", before.accuracy, after.accuracy),
        ("held-out accuracy", held.before, held.after),
    ):
        if one is not None and other is not None:
            table.add_row(name, percent(one), percent(other), f"{100 * (other - one):+.2f} points")
    for name, of_one, of_other, share in (
        ("MACs", before.macs, after.macs, left.macs),
        ("parameters", before.parameters, after.parameters, left.parameters),
        ("bytes of weights", before.bytes, after.bytes, left.bytes),
    ):
        table.add_row(name, count(of_one), count(of_other), "" if share is None else f"{100 * share:.1f} % left")
    if before.latency and after.latency:
        threads = f"{after.latency.threads} {'thread' if after.latency.threads == 1 else 'threads'}"
        table.add_row(
            f"latency, batch {after.latency.batch}, {threads}{after.latency.where}",
            f"{before.latency.median_ms:.2f} ms",
            f"{after.latency.median_ms:.2f} ms",
            "" if left.speedup is None else f"{left.speedup:.2f}x as fast",
        )
        ratios = f"{after.latency.speedup_p10:.2f}x to {after.latency.speedup_p90:.2f}x"
        times = spread(before.latency), spread(after.latency)
        table.add_row("  10 to 90 % of rounds", *times, "" if left.speedup is None else ratios)
    return table


def spread(latency: Latency) -> str:
    """Between which times most rounds lay."""
    return f"{latency.p10_ms:.2f} to {latency.p90_ms:.2f} ms"
