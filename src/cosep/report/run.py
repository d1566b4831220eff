"""What a page is made of: the saved records of one run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cosep.records import GroupPlan, Plan
from cosep.report.evidence import Evidence


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A finished run: what it was of, what was decided, the figures, and the evidence where there is some."""

    name: str  # of its folder
    plan: Plan
    report: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[int, Evidence] = field(default_factory=dict)  # by the group's place in the plan

    @property
    def title(self) -> str:
        """What was pruned, in as many words as are known; without the folders that things were in."""
        model, data = (short_name(str(self.about.get(key) or "")) for key in ("model", "data"))
        return f"{model} on {data}" if model and data else model or self.name

    def class_name(self, label: int) -> str:
        """The data set's word for a class, or its number."""
        names = self.about.get("class_names") or ()
        return str(names[label]) if label < len(names) else f"class {label}"

    def groups(self) -> list[tuple[Mapping[str, Any], GroupPlan, Evidence | None]]:
        """Entry of the report, plan and evidence of every group, in the order of execution."""
        entries = self.report.get("groups", ())
        return [
            (entry, plan, self.evidence.get(index))
            for index, (entry, plan) in enumerate(zip(entries, self.plan.groups, strict=True))
        ]


def short_name(spec: str) -> str:
    """A model or data set as a command names it, without where it lies: cifar10:/data/c10 -> cifar10."""
    kind, _, place = spec.partition(":")
    if kind in ("cifar10", "cifar100"):
        return kind
    if kind == "imagefolder":
        return re.split(r"[/\\]", place.rstrip("/\\"))[-1] or kind
    return re.split(r"[/\\]", spec)[-1] if ".py:" in spec else spec
