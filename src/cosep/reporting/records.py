"""The report of a run: a frozen record, its form on disk, and how the form of the version before becomes this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cosep.errors import ArtifactError
from cosep.records import (
    Comparison,
    FormerlyDict,
    LayerFigures,
    Made,
    Measurement,
    Outcome,
    RebuildRecord,
    RecoveryRecord,
    Tried,
    Unit,
    known,
    present_names,
)
from cosep.storage.schemas import COUNT, FINITE, NUMBER, POSITIVE, SCALAR, Each, Maybe, Where, misfit

REPORT_FORMAT = 2
FORMER_FORMAT = 1

Settings = Mapping[str, Any]  # section -> name -> value, as `cosep.config.settings` gives them


@dataclass(frozen=True)
class HeldOut:
    """The accuracy on held-out data, where there were some."""

    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class NotPruned:
    """A group that was left alone, and why."""

    group: str
    width: int
    why: str
    unit: Unit = "channel"


@dataclass(frozen=True)
class Step:
    """An earlier pruning of the network that a report is of."""

    before: Measurement
    after: Measurement
    cut: int  # groups
    groups: int
    time: str = ""  # when it was made, UTC; "" where nobody recorded it

    @classmethod
    def of(cls, report: Report) -> Step:
        """What stays of a report in that of a later step."""
        cut = sum(outcome.cut for outcome in report.groups)
        return cls(report.before, report.after, cut, len(report.groups), report.made.time if report.made else "")

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return {**asdict(self), "before": self.before.to_document(), "after": self.after.to_document()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Step:
        """The step that `to_document` wrote."""
        figures = {name: Measurement.from_document(document[name]) for name in ("before", "after")}
        return cls(**figures, cut=document["cut"], groups=document["groups"], time=document["time"])


@dataclass(frozen=True)
class Report(FormerlyDict):
    """The figures of a run: before and after, each group, what was left alone, and how long each stage took."""

    settings: Settings
    before: Measurement
    after: Measurement
    holdout_accuracy: HeldOut
    groups: tuple[Outcome, ...]  # in order of execution
    not_pruned: tuple[NotPruned, ...]
    recovery: RecoveryRecord | None  # of the whole network at the end
    limits: tuple[str, ...]  # what became of each limit, in words
    seconds: Mapping[str, float]  # by stage
    made: Made | None = None  # None for reports of versions that did not record it
    notes: tuple[str, ...] = ()  # what a reader should know beside the figures
    rebuild: RebuildRecord | None = None  # None where no weights were solved anew
    damage: Mapping[str, float] = field(default_factory=dict)  # of each group alone, at half of what it needs
    tried: tuple[Tried, ...] = ()  # the sizes that were tried where no limit said how much to cut
    layers: tuple[LayerFigures, ...] = ()  # in the order in which they run; () where nobody measured them
    weights_sha256: str = ""  # of the network that the figures are of; "" where it was not recorded
    earlier: tuple[Step, ...] = ()  # what was done to the network before, where it had been pruned already

    @property
    def change(self) -> Comparison:
        """What the pruned network has left of the unpruned one."""
        return Comparison.between(self.before, self.after)

    @property
    def recoveries(self) -> tuple[RecoveryRecord, ...]:
        """Every training in the run, in order."""
        found = (*(outcome.recovery for outcome in self.groups), self.recovery)
        return tuple(recovery for recovery in found if recovery is not None)

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file; `from_document` reads them."""
        return {
            "format": REPORT_FORMAT,
            "settings": dict(self.settings),
            "before": self.before.to_document(),
            "after": self.after.to_document(),
            "change": self.change.to_document(),
            "holdout_accuracy": asdict(self.holdout_accuracy),
            "groups": [outcome.to_document() for outcome in self.groups],
            "not_pruned": [asdict(group) for group in self.not_pruned],
            "recovery": self.recovery.to_document() if self.recovery else None,
            "limits": list(self.limits),
            "seconds": dict(self.seconds),
            "made": asdict(self.made) if self.made else None,
            "notes": list(self.notes),
            "rebuild": self.rebuild.to_document() if self.rebuild else None,
            "damage": dict(self.damage),
            "tried": [asdict(each) for each in self.tried],
            "layers": [_plain_layer(each) for each in self.layers],
            "weights_sha256": self.weights_sha256,
            "earlier": [step.to_document() for step in self.earlier],
        }

    @classmethod
    def from_document(cls, document: object, source: str = "the report") -> Report:
        """The report in a document of this version or of the one before; `source` names it in the error otherwise."""
        if wrong := check_report(document):
            raise ArtifactError(f"{source} is no report of a run: {wrong}. Was it saved without one?")
        assert isinstance(document, dict)
        held, made, recovery = (document.get(name) for name in ("holdout_accuracy", "made", "recovery"))
        assert isinstance(held, dict)
        return cls(
            settings=document["settings"],
            before=Measurement.from_document(document["before"]),
            after=Measurement.from_document(document["after"]),
            holdout_accuracy=HeldOut(known(held.get("before")), known(held.get("after"))),
            groups=tuple(Outcome.from_document(entry) for entry in document["groups"]),
            not_pruned=tuple(
                NotPruned(skip["group"], skip["width"], skip["why"], skip.get("unit") or "channel")
                for skip in document["not_pruned"]
            ),
            recovery=RecoveryRecord.from_document(recovery) if recovery else None,
            limits=tuple(document["limits"]),
            seconds=document["seconds"],
            made=Made(**{name: made[name] for name in Made.__annotations__}) if made else None,
            notes=tuple(document.get("notes") or ()),
            rebuild=RebuildRecord.from_document(rebuilt) if (rebuilt := document.get("rebuild")) else None,
            damage=document.get("damage") or {},
            tried=tuple(Tried(each["share"], each["drop"]) for each in document.get("tried") or ()),
            layers=tuple(LayerFigures.from_document(each) for each in document.get("layers") or ()),
            weights_sha256=document.get("weights_sha256") or "",
            earlier=tuple(Step.from_document(each) for each in document.get("earlier") or ()),
        )

    def former_document(self) -> dict[str, Any]:
        """The dict that a report was in the version before."""
        document = {name: value for name, value in self.to_document().items() if name not in _NEW}
        document["not_pruned"] = [
            {name: skip[name] for name in ("group", "width", "why")} for skip in document["not_pruned"]
        ]
        return {**document, "format": FORMER_FORMAT, "groups": [outcome.former_document() for outcome in self.groups]}


def _fits(parts: list[Any], place: int) -> bool:
    """Whether a layer reads only the input and layers before it."""
    return all(-1 <= source < place for source in parts[place]["sources"] or ())


def _plain_layer(figures: LayerFigures) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(figures).items()}


_NEW = (
    "made",
    "notes",
    "rebuild",
    "damage",
    "tried",
    "layers",
    "weights_sha256",
    "earlier",
)  # what the version before did not know


def check_report(document: object) -> str:
    """What keeps a document from being read as a report, in words; "" if nothing does."""
    if found := misfit(document, {"format": int}, "the report"):
        return found
    assert isinstance(document, dict)
    number = document["format"]
    if number not in (FORMER_FORMAT, REPORT_FORMAT):
        return f"it has format {number}, and this cosep reads {FORMER_FORMAT} and {REPORT_FORMAT}"
    entries = document.get("groups")
    if isinstance(entries, list):
        entries = [present_names(entry) if isinstance(entry, dict) else entry for entry in entries]
        document = {**document, "groups": entries}
    return misfit(document, _REPORT, "the report")


_LATENCY = {
    **dict.fromkeys(("median_ms", "p10_ms", "p90_ms", "throughput", "speedup", "speedup_p10", "speedup_p90"), POSITIVE),
    **dict.fromkeys(("batch", "threads", "repeats"), COUNT),
    **dict.fromkeys(("memory_format", "device", "runtime"), str),
}
_FIGURES = {"accuracy": Maybe(NUMBER), "latency": Maybe(_LATENCY), "by_class": Maybe([Maybe(NUMBER)])}
_RECOVERY = {"updates": COUNT, "outcome": str, "losses": [float], "accuracy": Maybe(NUMBER), "kept": Maybe(bool)}
_LAYER = {
    **dict.fromkeys(("layer", "towards", "reason"), str),
    "applied": bool,
    **dict.fromkeys(("error_before", "error_after"), Maybe(NUMBER)),
    **dict.fromkeys(("rows", "columns"), COUNT),
}
_BLOCK = {
    "layers": [str],
    "applied": bool,
    "reason": str,
    **dict.fromkeys(("error_before", "error_after"), Maybe(NUMBER)),
}
_PAIR = Where([COUNT], lambda pair: len(pair) == 2, "before and after")
_PART = {
    **dict.fromkeys(("layer", "kind", "why"), str),
    **dict.fromkeys(("inputs", "outputs", "macs"), _PAIR),
    "milliseconds": Where([FINITE], lambda pair: len(pair) == 2, "before and after"),
    "groups": [str],
    "sources": Maybe([int]),
}
_UNIT = Maybe(Where(str, lambda unit: unit in ("channel", "head"), "channel or head"))
_OUTCOME = {
    "group": str,
    "width": COUNT,
    "kept": COUNT,
    "reason": str,
    "notes": [str],
    "masked_difference": Maybe(float),
    "accuracy": Maybe(NUMBER),
    "macs": FINITE,
    "parameters": FINITE,
    "recovery": Maybe(_RECOVERY),
    "unit": _UNIT,
}
_BEFORE = {**dict.fromkeys(("macs", "parameters", "bytes"), POSITIVE), **_FIGURES}
_AFTER = {**dict.fromkeys(("macs", "parameters", "bytes"), FINITE), **_FIGURES}
_REPORT = {
    "settings": Where(
        {"select": {"degree": int, "representative": str}, "profile": {"max_classes": int}, "seed": int},
        lambda settings: all(
            not misfit(value, SCALAR, "") or not misfit(value, Each(SCALAR), "") for value in settings.values()
        ),
        "settings, by stage",
    ),
    "before": _BEFORE,
    "after": _AFTER,
    "earlier": Maybe([{"before": _BEFORE, "after": _AFTER, "cut": COUNT, "groups": COUNT, "time": str}]),
    "holdout_accuracy": {"before": Maybe(NUMBER), "after": Maybe(NUMBER)},
    "groups": [_OUTCOME],
    "not_pruned": [{"group": str, "width": COUNT, "why": str, "unit": _UNIT}],
    "notes": Maybe([str]),
    "rebuild": Maybe(
        {
            "layers": [_LAYER],
            "blocks": Maybe([_BLOCK]),
            "notes": [str],
            "divergence": Maybe(NUMBER),
            "divergence_cut": Maybe(NUMBER),
        }
    ),
    "damage": Maybe(Each(FINITE)),
    "tried": Maybe([{"share": FINITE, "drop": FINITE}]),
    "layers": Maybe(Where([_PART], lambda parts: all(_fits(parts, place) for place in range(len(parts))), "layers")),
    "weights_sha256": Maybe(str),
    "recovery": Maybe(_RECOVERY),
    "limits": [str],
    "seconds": Each(FINITE),
    "made": Maybe(dict.fromkeys(Made.__annotations__, str)),
}
