"""The page of one run: headline, the network at a glance, and each group with the evidence for its cut."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from cosep.records import GroupPlan, Latency, Outcome, RecoveryRecord, Selection, Unit, counted, in_unit, known
from cosep.reporting.evidence import Evidence
from cosep.reporting.html import assembled, packed
from cosep.reporting.rebuilt import damage_document, rebuild_document, tried_document
from cosep.reporting.records import Report
from cosep.reporting.run import RunRecord, short_name
from cosep.reporting.words import (
    change,
    count,
    curve_of,
    duration,
    is_warning,
    percent,
    points,
    reason_in_words,
    sentence,
    separates,
    size,
    warnings_in_words,
)

SCRIPTS = ("charts.js", "network.js", "course.js", "rebuilt.js", "run.js")
MATRIX_ENTRIES = 1_800_000  # bytes of all the profile matrices together: the page stays below 6 MB
LEAST_COLUMNS = 8
CURVE_POINTS = 600
LOST_ROWS = 100
METRICS = {
    "jm": ("JM separability", 2.0),
    "jm-histogram": ("JM separability, from histograms", 2.0),
    "hellinger": ("Hellinger distance", 1.0),
    "wasserstein": ("Wasserstein distance", None),
}


# What the curve over the number of channels is, by what drew it: its title, what a point is called, what it means.
CURVES = {
    "silhouette": {
        "title": "Mean simplified silhouette for every number of clusters",
        "word": "silhouette",
        "lossWord": "k-medoids loss",
        "about": "",
    },
    "elimination": {
        "title": "How much k channels can reproduce of what the next layers compute",
        "word": "share reproduced",
        "lossWord": "share lost",
        "about": "With the weights that stay solved anew, on the calibration images; errors count by how far they move "
        "the classes' scores. Channels go one after the other, always the one that costs least.",
    },
    "scores": {
        "title": "Share of all scores that the best k channels hold",
        "word": "share of scores",
        "lossWord": "loss",
        "about": "",
    },
}


def run_page(run: RunRecord) -> str:
    """The run as one HTML page."""
    groups = run.groups()
    channels = sum(plan.width for _, plan, evidence in groups if evidence)
    columns = max(MATRIX_ENTRIES // max(channels, 1), LEAST_COLUMNS)
    data: dict[str, Any] = {"run": run_document(run)}
    for index, (outcome, plan, evidence) in enumerate(groups):
        data[f"group-{index}"] = group_document(run, outcome, plan, evidence, columns)
    return assembled(f"{run.title} · cosep report", data, SCRIPTS)


def run_document(run: RunRecord) -> dict[str, Any]:
    """What the page says of the whole run."""
    report = run.report
    plans = run.plan.groups
    return {
        "title": run.title,
        "name": run.name,
        "summary": summary(run),
        "headline": headline(report, run.share_of_training),
        "groups": [
            {
                "name": outcome.group,
                "width": plan.width,
                "kept": len(plan.kept),
                "unit": plan.unit,
                "reason": in_unit(plan.reason, plan.unit),
                "accuracy": outcome.accuracy,
                "macs": outcome.macs,
                "parameters": outcome.parameters,
                "trained": outcome.recovery is not None,
            }
            for outcome, plan, _ in run.groups()
        ],
        "units": [list(each) for each in amounts(plans)],
        "before": {
            "macs": report.before.macs,
            "parameters": report.before.parameters,
            "accuracy": report.holdout_accuracy.before,
        },
        "not_pruned": [[skip.group, with_unit(skip.width, skip.unit), skip.why] for skip in report.not_pruned],
        "limits": [sentence(note) for note in (*report.limits, *report.notes) if not is_warning(note)],
        "layers": [asdict(layer) for layer in report.layers],
        "input": list(run.plan.input),
        "left": report.change.macs,
        "separates": separates(report.settings),
        "warnings": warnings_in_words(report),
        "by_class": class_document(run),
        "made": [] if report.made is None else [[name, value] for name, value in asdict(report.made).items()],
        "next": next_steps(run),
        "recovery": recovery_document(report.recovery),
        "rebuild": rebuild_document(report),
        "damage": damage_document(report),
        "tried": tried_document(report),
        "seconds": [[stage, seconds] for stage, seconds in report.seconds.items()],
        "settings": flat(report.settings),
        "about": [[key, placeless(value)] for key, value in run.about.items() if key not in ("class_names", "input")],
        "classes": [run.class_name(label) for label in range(_classes(run))],
    }


def class_document(run: RunRecord) -> list[list[Any]]:
    """Name, accuracy before and after of every class of the test data, those that lost most first."""
    before, after = run.report.before.by_class, run.report.after.by_class
    if before is None or after is None or len(before) != len(after):
        return []
    rows = [
        [run.class_name(label), one, other]
        for label, (one, other) in enumerate(zip(before, after, strict=True))
        if one is not None and other is not None
    ]
    return sorted(rows, key=lambda row: row[2] - row[1])


def next_steps(run: RunRecord) -> list[list[str]]:
    """What to do with the network now: in words, and as a command or a line of Python."""
    folder = shlex.quote(run.name)
    steps = [["Load it in Python", f"model = cosep.load({run.name!r}, build)  # build: what makes the uncut network"]]
    if run.about.get("model"):
        steps += [
            ["Time it on this machine", f"cosep bench {folder}"],
            ["Write it for other runtimes", f"cosep export {folder} --onnx model.onnx"],
        ]
    return [*steps, ["Draw the figures of this run", f"cosep report {folder} --figures figures/"]]


def placeless(value: object) -> str:
    """A fact as text; of a path, only its last part: a page is made to be handed on."""
    text = short_name(str(value))
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] if re.search(r"[/\\]", text) else text


def summary(run: RunRecord) -> str:
    """The result in two sentences."""
    report, plans = run.report, run.plan.groups
    gone = " and ".join(f"{total - kept:,} of {total:,} prunable {unit}s" for unit, total, kept in amounts(plans))
    cut = sum(len(plan.kept) < plan.width for plan in plans)
    said = (
        f"{gone or 'None of 0 prunable channels'} were removed, in {cut} of {len(plans)} groups. "
        f"The network is left with {percent(report.change.macs or 0)} of its multiply-accumulates and "
        f"{percent(report.change.parameters or 0)} of its parameters"
    )
    found = _accuracies(report)
    if found is None:
        return f"{said}; its accuracy was not measured."
    name, before, after = found
    return f"{said}; {name} went from {percent(before, 2)} to {percent(after, 2)} ({points(after - before)})."


def amounts(plans: Sequence[GroupPlan]) -> list[tuple[Unit, int, int]]:
    """What there was and what stays of heads and of channels, as far as the groups have them."""
    found: list[tuple[Unit, int, int]] = []
    units: tuple[Unit, ...] = ("head", "channel")
    for unit in units:
        own = [plan for plan in plans if plan.unit == unit]
        if own:
            found.append((unit, sum(plan.width for plan in own), sum(len(plan.kept) for plan in own)))
    return found


def with_unit(width: int, unit: Unit) -> int | str:
    """A width for a column of numbers, in which heads say that they are heads."""
    return counted(width, unit) if unit == "head" else width


def headline(report: Report, of_training: float | None = None) -> list[dict[str, Any]]:
    """The tiles at the top: label, after, before, change, what is left (a share, for a bar) and small print."""
    before, after, left = report.before, report.after, report.change
    tiles: list[dict[str, Any]] = []
    found = _accuracies(report)
    if found:
        name, one, other = found
        held = report.holdout_accuracy
        note = ""
        if name == "test accuracy" and held.before is not None and held.after is not None:
            note = f"held out: {percent(held.before, 2)} before, {percent(held.after, 2)} after"
        tiles.append(
            _tile(name[:1].upper() + name[1:], percent(other, 2), percent(one, 2), points(other - one), None, note)
        )
    else:
        tiles.append(_tile("Accuracy", "not measured", "", "", None, "no test or held-out data were given"))
    for label, one_size, other_size, share, write, note in (
        ("MACs", before.macs, after.macs, left.macs, count, "multiply-accumulates for one input"),
        ("Parameters", before.parameters, after.parameters, left.parameters, count, ""),
        ("File size", before.bytes, after.bytes, left.bytes, size, "of all weights and buffers"),
    ):
        text = change(share) if share is not None else ""
        tiles.append(_tile(label, write(other_size), write(one_size), text, share, note))
    tiles.append(_latency_tile(before.latency, after.latency, left.speedup))
    seconds = report.seconds
    if seconds:
        longest = max(seconds, key=lambda stage: seconds[stage])
        total = sum(seconds.values())
        share_text = f"longest stage: {longest}, {percent(seconds[longest] / total, 0)} of it" if total else ""
        if of_training is not None:
            share_text += f"; {percent(of_training)} of the time of the training"
        tiles.append(_tile("Time it took", duration(total), "", "", None, share_text))
    return tiles


def group_document(
    run: RunRecord, outcome: Outcome, plan: GroupPlan, evidence: Evidence | None, columns: int
) -> dict[str, Any]:
    """What the page shows once a group is chosen."""
    settings = run.report.settings
    selection = plan.selection
    clusters = selection.clusters if selection else ()
    return {
        "unit": plan.unit,
        "words": reason_in_words(plan, outcome, run.report),
        "facts": facts(run, outcome, plan),
        "kept": list(plan.kept),
        "curve": curve_document(selection, settings, plan.unit) if selection and selection.candidates else None,
        "clusters": list(clusters),
        "medoids": list(selection.medoids) if selection else [],
        "representatives": list(selection.representatives) if selection else [],
        "space": space_document(evidence) if evidence else None,
        "matrix": matrix_document(run, plan, evidence, columns) if evidence else None,
        "lost": lost_document(run, plan, evidence) if evidence else None,
        "recovery": recovery_document(outcome.recovery),
    }


def facts(run: RunRecord, outcome: Outcome, plan: GroupPlan) -> list[list[str]]:
    """The group's figures, as label and text."""
    before = run.report.before
    found = [[f"{plan.unit}s kept", f"{len(plan.kept)} of {plan.width} ({percent(len(plan.kept) / plan.width)})"]]
    found.append(["rule", in_unit(plan.reason, plan.unit)])
    if outcome.accuracy is not None:
        found.append(["held-out accuracy now", percent(outcome.accuracy, 2)])
    found.append(["network's MACs now", f"{count(outcome.macs)} ({percent(outcome.macs / before.macs)})"])
    share = percent(outcome.parameters / before.parameters)
    found.append(["network's parameters now", f"{count(outcome.parameters)} ({share})"])
    difference = known(outcome.masked_difference)
    if difference is not None:
        found.append(["cut against a masked copy", f"outputs differ by at most {difference:.1g}"])
    return found


def curve_document(selection: Selection, settings: Mapping[str, Any], unit: Unit = "channel") -> dict[str, Any]:
    """The curve, its fit and the loss at every k, thinned where there are very many; what was chosen always stays."""
    total = len(selection.candidates)
    step = -(-total // CURVE_POINTS)
    chosen = (selection.k, len(selection.kept))
    stays = [i for i in range(total) if i % step == 0 or i == total - 1 or selection.candidates[i] in chosen]
    select = settings.get("select", {})
    curve = curve_of(selection, settings)
    return {
        "k": [selection.candidates[i] for i in stays],
        "score": _picked(selection.scores, stays),
        "fit": _picked(selection.fit, stays),
        "loss": _picked(selection.losses, stays),
        "knee": selection.k if selection.reason == "knee" else None,
        "given": selection.k if selection.reason == "width given" else None,
        "stays": len(selection.kept) if len(selection.kept) in selection.candidates else None,
        "degree": select.get("degree"),
        "total": total,
        "silhouette": curve == "silhouette",
        **{name: in_unit(words, unit) for name, words in CURVES[curve].items()},
    }


def space_document(evidence: Evidence) -> dict[str, Any]:
    """The map: coordinates, weights and mean separability of every channel."""
    return {
        "x": evidence.coordinates[:, 0].tolist(),
        "y": evidence.coordinates[:, 1].tolist(),
        "shares": list(evidence.shares),
        "weight": evidence.weights.tolist(),
        "separability": evidence.separability.tolist(),
        "metric": METRICS.get(evidence.metric, (evidence.metric, None))[0],
    }


def matrix_document(run: RunRecord, plan: GroupPlan, evidence: Evidence, columns: int) -> dict[str, Any]:
    """The profile matrix in 256 steps, rows in the order of `row_order`, at most so many columns."""
    profiles = evidence.profiles.float()
    shown = torch.arange(profiles.shape[1])
    if len(shown) > columns:
        shown = profiles.var(dim=0, correction=0).argsort(descending=True, stable=True)[:columns].sort().values
    rows = row_order(plan, evidence)
    name, bound = METRICS.get(evidence.metric, (evidence.metric, None))
    high = bound or float(profiles.max()) or 1.0
    steps = (profiles[rows][:, shown] / high * 255).round().clamp(0, 255).to(torch.uint8)
    pairs = evidence.pairs
    return {
        "rows": rows.tolist(),
        "pairs": [list(pairs[column]) for column in evidence.columns[shown].tolist()],
        "data": packed(steps.numpy().tobytes()),
        "high": high,
        "metric": name,
        "total": len(pairs),
        "classes": len(evidence.classes),
        "spanning": evidence.spanning,
    }


def row_order(plan: GroupPlan, evidence: Evidence) -> Tensor:
    """Channels by cluster, neighbouring clusters together; in a cluster those that stay first, then by separability."""
    channels = range(len(evidence.weights))
    along = evidence.coordinates[:, 0].tolist()
    selection = plan.selection
    if selection is None or not selection.clusters:
        return torch.tensor(sorted(channels, key=lambda c: (along[c], c)))
    kept, scores = set(plan.kept), evidence.separability.tolist()
    place = {cluster: along[medoid] for cluster, medoid in enumerate(selection.medoids)}

    def key(channel: int) -> tuple[float, int, bool, float, int]:
        cluster = selection.clusters[channel]
        return place[cluster], cluster, channel not in kept, -scores[channel], channel

    return torch.tensor(sorted(channels, key=key))


def lost_document(run: RunRecord, plan: GroupPlan, evidence: Evidence) -> dict[str, Any]:
    """Pairs of classes whose best separator was removed, those that lost most first."""
    whole = len(plan.kept) == plan.width
    best, score = evidence.best.tolist(), evidence.best_score.tolist()
    after, after_score = (best, score) if whole else (evidence.best_kept.tolist(), evidence.best_kept_score.tolist())
    lost = [i for i in range(len(best)) if best[i] != after[i]]
    lost.sort(key=lambda i: (after_score[i] - score[i], i))
    pairs = evidence.pairs
    total = max(len(best), 1)
    return {
        "total": len(best),
        "count": len(lost),
        "before": sum(score) / total,
        "after": sum(after_score) / total,
        "metric": METRICS.get(evidence.metric, (evidence.metric, None))[0],
        "rows": [[*pairs[i], best[i], score[i], after[i], after_score[i]] for i in lost[:LOST_ROWS]],
    }


def recovery_document(recovery: RecoveryRecord | None) -> dict[str, Any] | None:
    """The loss during a recovery."""
    if recovery is None:
        return None
    return {
        "updates": recovery.updates,
        "outcome": recovery.outcome,
        "losses": [known(loss) for loss in recovery.losses],
        "accuracy": recovery.accuracy,
        "kept": recovery.kept,
    }


def flat(settings: Mapping[str, Any]) -> list[list[str]]:
    """Settings as (section, name, value) in text."""
    rows: list[list[str]] = []
    for section, values in settings.items():
        if isinstance(values, Mapping):
            rows += [[section, name, str(value)] for name, value in values.items()]
        else:
            rows.append(["", section, str(values)])
    return rows


def _tile(label: str, after: str, before: str, changed: str, share: float | None, note: str) -> dict[str, Any]:
    return {"label": label, "after": after, "before": before, "change": changed, "share": share, "note": note}


def _latency_tile(before: Latency | None, after: Latency | None, speedup: float | None) -> dict[str, Any]:
    if before is None or after is None:
        return _tile("Latency", "not measured", "", "", None, "")
    threads = f"{after.threads} {'thread' if after.threads == 1 else 'threads'}"
    ratio = f" ({after.speedup_p10:.2f} to {after.speedup_p90:.2f})"
    return _tile(
        "Latency",
        f"{after.median_ms:.2f} ms",
        f"{before.median_ms:.2f} ms",
        f"{speedup:.2f}× as fast{ratio}" if speedup is not None else "",
        None if speedup is None else 1 / speedup,
        f"median of {after.repeats} rounds in turn; 10th to 90th percentile {before.p10_ms:.2f} to "
        f"{before.p90_ms:.2f} ms before, {after.p10_ms:.2f} to {after.p90_ms:.2f} ms after; batch {after.batch}, "
        f"{threads}, {after.device}{after.where}",
    )


def _accuracies(report: Report) -> tuple[str, float, float] | None:
    """The accuracy to show: on the test set, else on held-out data."""
    held = report.holdout_accuracy
    for name, before, after in (
        ("test accuracy", report.before.accuracy, report.after.accuracy),
        ("held-out accuracy", held.before, held.after),
    ):
        if before is not None and after is not None:
            return name, before, after
    return None


def _classes(run: RunRecord) -> int:
    shown = [max(evidence.classes) + 1 for evidence in run.evidence.values()]
    return max([len(run.about.get("class_names") or ()), *shown])


def _picked(values: Sequence[float], places: Sequence[int]) -> list[float]:
    return [values[i] for i in places] if values else []
