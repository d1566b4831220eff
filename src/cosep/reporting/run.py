"""What a page is made of: the saved records of one run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cosep.records import GroupPlan, Outcome, Plan, Selection
from cosep.reporting.evidence import Evidence
from cosep.reporting.records import Report


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A finished run: what it was of, what was decided, the figures, and the evidence where there is some."""

    name: str  # of its folder
    plan: Plan
    report: Report
    about: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[int, Evidence] = field(default_factory=dict)  # by the group's place in the plan

    @property
    def title(self) -> str:
        """What was pruned, in as many words as are known; without the folders that things were in."""
        model, data = (short_name(str(self.about.get(key) or "")) for key in ("model", "data"))
        return f"{model} on {data}" if model and data else model or self.name

    @property
    def share_of_training(self) -> float | None:
        """The time of the run as a share of the time that training the uncut network took; None if that is unknown."""
        training = self.about.get("training_seconds")
        seconds = sum(self.report.seconds.values())
        if not isinstance(training, int | float) or not 0 < training < math.inf or not seconds:
            return None
        return seconds / training

    def class_name(self, label: int) -> str:
        """The data set's word for a class, or its number."""
        names = self.about.get("class_names") or ()
        return str(names[label]) if label < len(names) else f"class {label}"

    def groups(self) -> list[tuple[Outcome, GroupPlan, Evidence | None]]:
        """Outcome, plan and evidence of every group, in the order of execution."""
        return [
            (outcome, GroupPlan(plan.group, selection=_fitting(plan), unit=plan.unit), self.evidence.get(index))
            for index, (outcome, plan) in enumerate(zip(self.report.groups, self.plan.groups, strict=True))
        ]


def _fitting(plan: GroupPlan) -> Selection:
    """How a group was chosen, without what does not fit together: a choice of the caller's own may say anything."""
    chosen = plan.selection
    clusters, medoids = chosen.clusters, chosen.medoids
    if len(clusters) != plan.width or max(clusters) >= len(medoids) or max(medoids) >= plan.width:
        chosen = replace(chosen, clusters=(), medoids=(), representatives=())
    if any(len(curve) not in (0, len(chosen.candidates)) for curve in (chosen.scores, chosen.fit, chosen.losses)):
        chosen = replace(chosen, candidates=(), scores=(), fit=(), losses=())
    return chosen


def check_groups(report: Report, plan: Plan) -> str:
    """What keeps a report from being shown beside a plan, in words; "" if nothing does."""
    named, planned = [outcome.group for outcome in report.groups], [group.group for group in plan.groups]
    return "" if named == planned else "the report is of other groups than the plan"


def short_name(spec: str) -> str:
    """A model or data set as a command names it, without where it lies: cifar10:/data/c10 -> cifar10."""
    kind, _, place = spec.partition(":")
    if kind in ("cifar10", "cifar100"):
        return kind
    if kind == "imagefolder":
        return re.split(r"[/\\]", place.rstrip("/\\"))[-1] or kind
    return re.split(r"[/\\]", spec)[-1] if ".py:" in spec else spec
