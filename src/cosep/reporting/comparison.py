"""The page that puts runs side by side: accuracy against cost, widths, and seeds with their spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cosep.comparison.naming import named_method
from cosep.reporting.html import assembled
from cosep.reporting.run import RunRecord

if TYPE_CHECKING:
    from cosep.comparison.trials import Trial

SCRIPTS = ("charts.js", "comparison.js")
# Settings in which runs of one configuration may differ: chance, and where and how often things are done.
CHANCE = ("seed", "select.seed", "checkpoint_seconds", "device")


def comparison_page(runs: Sequence[RunRecord]) -> str:
    """Several runs as one HTML page."""
    return assembled(f"{len(runs)} runs compared · cosep report", {"comparison": comparison_document(runs)}, SCRIPTS)


def comparison_document(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """What the comparison page shows. Runs that differ only by chance are one configuration."""
    settings = [_settings(run) for run in runs]
    keys = [json.dumps(s, sort_keys=True) for s in settings]
    order = list(dict.fromkeys(keys))
    rows = [_row(run, order.index(key)) for run, key in zip(runs, keys, strict=True)]
    groups = list(dict.fromkeys(name for row in rows for name in row["groups"]))
    configurations = []
    for number, _ in enumerate(order):
        members = [row for row in rows if row["configuration"] == number]
        configurations.append(
            {
                "label": _label(number, members),
                "runs": len(members),
                "spread": {key: spread([m[key] for m in members]) for key in FIGURES},
                "widths": [_width(members, name) for name in groups],
                "max_classes": _spanning(runs[keys.index(order[number])]),
            }
        )
    return {
        "accuracy": "test accuracy" if any(row["test"] for row in rows) else "held-out accuracy",
        "runs": rows,
        "groups": groups,
        "configurations": configurations,
        "differences": differences([json.loads(key) for key in order]),
    }


def trials_page(runs: Sequence[RunRecord], trials: Sequence[Trial], unpruned: float | None) -> str:
    """The runs of `cosep compare` as one page: methods by name, seeds with their spread, paired differences."""
    document = trials_document(runs, trials, unpruned)
    return assembled(f"{len(document['configurations'])} methods compared · cosep", {"comparison": document}, SCRIPTS)


def trials_document(runs: Sequence[RunRecord], trials: Sequence[Trial], unpruned: float | None) -> dict[str, Any]:
    """As `comparison_document`, with a method for a configuration and the accuracies that the trials were tested to."""
    from cosep.comparison.trials import standings

    methods = list(dict.fromkeys(trial.method for trial in trials))
    rows = []
    for run, trial in zip(runs, trials, strict=True):
        row = _row(run, methods.index(trial.method))
        change = None if unpruned is None else trial.accuracy - unpruned
        rows.append({**row, "test": True, "before": unpruned, "after": trial.accuracy, "change": change})
    groups = list(dict.fromkeys(name for row in rows for name in row["groups"]))
    configurations = []
    for number, method in enumerate(methods):
        members = [row for row in rows if row["configuration"] == number]
        configurations.append(
            {
                "label": f"{_letter(number)} · {named_method(method)}",
                "runs": len(members),
                "spread": {key: spread([m[key] for m in members]) for key in FIGURES},
                "widths": [_width(members, name) for name in groups],
                "max_classes": None,
            }
        )
    return {
        "accuracy": "test accuracy",
        "runs": rows,
        "groups": groups,
        "configurations": configurations,
        "differences": [],
        "paired": [
            {**asdict(standing), "beyond_noise": standing.beyond_noise, "ours": standing.method == methods[0]}
            for standing in standings(trials)
        ],
    }


FIGURES = ("before", "after", "change", "macs", "parameters", "bytes", "speedup", "seconds")


def spread(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Mean, standard deviation (of at least two), smallest, largest and number of the values that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "sd": None, "low": None, "high": None, "n": 0}
    return {
        "mean": fmean(known),
        "sd": stdev(known) if len(known) > 1 else None,
        "low": min(known),
        "high": max(known),
        "n": len(known),
    }


def differences(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Settings that are not the same in all configurations: name, then the value in each."""
    names = list(dict.fromkeys(name for one in settings for name in one))
    found = []
    for name in names:
        values = [str(one.get(name, "–")) for one in settings]
        if len(set(values)) > 1:
            found.append([name, *values])
    return found


def _settings(run: RunRecord) -> dict[str, Any]:
    """What makes a run's configuration: model, data, and every setting but those of chance; names joined by dots."""
    flat: dict[str, Any] = {"model": run.about.get("model", ""), "data": run.about.get("data", "")}
    for section, values in run.report.settings.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{name}": value for name, value in values.items()}
        else:
            flat[section] = values
    return {name: value for name, value in flat.items() if name not in CHANCE and name.split(".")[0] not in CHANCE}


def _spanning(run: RunRecord) -> int | None:
    """How many classes span the space: M, or all of them where there are fewer."""
    limit = run.report.settings.get("profile", {}).get("max_classes")
    classes = int(run.about.get("classes") or len(run.about.get("class_names") or ()))
    return min(limit, classes) if limit and classes else limit


def _row(run: RunRecord, configuration: int) -> dict[str, Any]:
    report = run.report
    test, held, left = report.after.accuracy, report.holdout_accuracy, report.change
    before = held.before if test is None else report.before.accuracy
    after = held.after if test is None else test
    return {
        "name": run.name,
        "title": run.title,
        "configuration": configuration,
        "seed": report.settings.get("seed"),
        "test": test is not None,
        "before": before,
        "after": after,
        "change": None if before is None or after is None else after - before,
        "macs": left.macs,
        "parameters": left.parameters,
        "bytes": left.bytes,
        "speedup": left.speedup,
        "macs_after": report.after.macs,
        "parameters_after": report.after.parameters,
        "seconds": sum(report.seconds.values()) or None,
        "groups": {plan.group: [len(plan.kept), plan.width, plan.unit] for plan in run.plan.groups},
    }


def _width(members: Sequence[Mapping[str, Any]], group: str) -> dict[str, float | int | None]:
    """The share of a group's channels that the runs of a configuration kept."""
    found = [row["groups"][group] for row in members if group in row["groups"]]
    return spread([kept / width for kept, width, _ in found])


def _label(number: int, members: Sequence[Mapping[str, Any]]) -> str:
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    return f"{_letter(number)} · {members[0]['name']}{more}"


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)
