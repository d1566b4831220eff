"""What a page is made of: the saved records of one run."""

from __future__ import annotations

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
        """What was pruned, in as many words as are known."""
        model, data = self.about.get("model"), self.about.get("data")
        return f"{model} on {data}" if model and data else str(model or self.name)

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
