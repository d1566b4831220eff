"""A run in a few lines: what a result says of itself on a screen or in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from cosep.records import counted
from cosep.reporting.words import count, is_warning, percent, points, warnings_in_words

if TYPE_CHECKING:
    from cosep.reporting.records import Report

Row = tuple[str, str, str, str]  # what, before, after, in short


def summary_rows(report: Report) -> list[Row]:
    """The figures before and after, four rows."""
    before, after, left, held = report.before, report.after, report.change, report.holdout_accuracy
    rows: list[Row] = [("accuracy", "not measured", "", "")]
    for name, one, other in (
        ("held-out accuracy", held.before, held.after),
        ("test accuracy", before.accuracy, after.accuracy),
    ):
        if one is not None and other is not None:
            rows[0] = (name, percent(one, 2), percent(other, 2), points(other - one))
    for name, size, smaller, share in (
        ("MACs", before.macs, after.macs, left.macs),
        ("parameters", before.parameters, after.parameters, left.parameters),
    ):
        rows.append((name, count(size), count(smaller), "" if share is None else f"{100 * share:.1f} % left"))
    if before.latency and after.latency:
        gain = "" if left.speedup is None else f"{left.speedup:.2f}x as fast"
        times = [f"{each.median_ms:.2f} ms" for each in (before.latency, after.latency)]
        rows.append((f"latency{after.latency.where}", times[0], times[1], gain))
    else:
        rows.append(("latency", "not measured", "", ""))
    return rows


def headline(report: Report) -> str:
    """How many groups were cut."""
    cut = sum(outcome.cut for outcome in report.groups)
    return f"{cut} of {len(report.groups)} groups cut"


def short_summary(report: Report) -> str:
    """Five lines: what was cut, and the figures before and after."""
    lines = [f"PruneResult: {headline(report)}"]
    for name, before, after, short in summary_rows(report):
        arrow = f" -> {after:<12} {short}" if after else ""
        lines.append(f"  {name:<18} {before:>12}{arrow}".rstrip())
    return "\n".join(lines)


def whole_summary(report: Report) -> str:
    """The five lines, every group, how the limits fare, and what must not be overlooked."""
    lines = [short_summary(report), ""]
    width = max((len(outcome.group) for outcome in report.groups), default=0)
    kept = {o.group: counted(o.kept, "head") if o.unit == "head" else str(o.kept) for o in report.groups}
    room = max((5, *map(len, kept.values())))
    lines += [f"  {o.group:<{width}} {o.width:>5} -> {kept[o.group]:<{room}} {o.why}" for o in report.groups]
    said = [note for note in (*report.limits, *report.notes) if not is_warning(note)]
    lines += [f"  {note}" for note in said]
    lines += [f"  warning: {warning}" for warning in warnings_in_words(report)]
    return "\n".join(lines)


def html_summary(report: Report) -> str:
    """The same as a small table for a notebook."""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in summary_rows(report))
    said = "".join(f"<p>&#9888; {escape(warning)}</p>" for warning in warnings_in_words(report))
    head = "<tr><th></th><th>before</th><th>after</th><th>in short</th></tr>"
    return f"<div><p><b>{escape(headline(report))}</b></p><table>{head}{body}</table>{said}</div>"
