"""Plans: what is kept of a network, checked before anything is cut, and as a versioned JSON document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from cosep.errors import PlanError
from cosep.records import Group, GroupPlan, Plan, Selection, Side
from cosep.surgery.cut import layout_of, merged_layout

FORMAT = 1
_INTEGERS = ("kept", "candidates", "clusters", "medoids", "representatives")
_NUMBERS = ("scores", "fit", "losses")
# Beyond any layer. The numbers of a document become sizes later: what is absurd must end here.
MOST_CHANNELS = 2**24


def fingerprint(model: nn.Module) -> str:
    """A digest of the names and shapes of a model's parameters and buffers; its values do not matter."""
    lines = [
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in sorted(model.state_dict().items())
        if hasattr(tensor, "shape")
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def plan_for(model: nn.Module, groups: Iterable[Group], chosen: Iterable[GroupPlan]) -> Plan:
    """A checked plan for an uncut model, with the layout that repeats it without tracing."""
    by_name = {group.name: group for group in groups}
    plan = Plan(groups=tuple(chosen), fingerprint=fingerprint(model))
    check_plan(model, by_name.values(), plan)
    cuts = [layout_of(model, by_name[c.group], c.kept, {}) for c in plan.groups if len(c.kept) < c.width]
    return Plan(groups=plan.groups, layout=merged_layout(*cuts), fingerprint=plan.fingerprint)


def check_plan(model: nn.Module, groups: Iterable[Group], plan: Plan) -> None:
    """Refuse a plan that does not fit an uncut model and its groups."""
    if plan.fingerprint and plan.fingerprint != fingerprint(model):
        raise PlanError(
            "the plan was made for a model with other parameters than this one. "
            "Give the uncut model that it was made for, with the same number of classes."
        )
    by_name = {group.name: group for group in groups}
    seen: set[str] = set()
    for chosen in plan.groups:
        if chosen.group in seen:
            raise PlanError(f"the plan names group {chosen.group!r} twice.")
        seen.add(chosen.group)
        if chosen.group not in by_name:
            raise PlanError(f"the plan names group {chosen.group!r}, which the model does not have.")
        check_kept(by_name[chosen.group], chosen.kept, chosen.width)


def check_kept(group: Group, kept: Sequence[int], width: int | None = None) -> None:
    """Refuse kept channels that a group cannot have."""
    if width is not None and width != group.width:
        raise PlanError(f"the plan gives group {group.name!r} {width} channels; it has {group.width}.")
    if not kept:
        raise PlanError(f"the plan keeps no channel of group {group.name!r}; at least one must stay.")
    if any(not isinstance(c, int) or isinstance(c, bool) for c in kept) or list(kept) != sorted(set(kept)):
        raise PlanError(
            f"the kept channels of group {group.name!r} must be different whole numbers in ascending order."
        )
    if kept[0] < 0 or kept[-1] >= group.width:
        wrong = kept[0] if kept[0] < 0 else kept[-1]
        raise PlanError(
            f"the plan keeps channel {wrong} of group {group.name!r}, whose channels are 0 to {group.width - 1}."
        )
    if len(kept) == group.width:
        return
    if group.scope is None:
        raise PlanError(f"group {group.name!r} cannot be pruned: {group.why_not}.")
    per = group.width // group.blocks
    counts = [0] * group.blocks
    for c in kept:
        counts[c // per] += 1
    if len(set(counts)) > 1:
        raise PlanError(
            f"group {group.name!r} must keep equally many channels in each of its {group.blocks} blocks of {per}; "
            f"the plan keeps between {min(counts)} and {max(counts)}."
        )


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON document, with the evidence of each choice."""
    return {
        "format": FORMAT,
        "kind": "cosep plan",
        "fingerprint": plan.fingerprint,
        "groups": [
            {
                "group": g.group,
                "width": g.width,
                "kept": list(g.kept),
                "reason": g.reason,
                "selection": None if g.selection is None else _selection_to_document(g.selection),
            }
            for g in plan.groups
        ],
        "layout": [
            {"module": module, "side": side, "kept": list(kept)} for (module, side), kept in sorted(plan.layout.items())
        ],
    }


def plan_from_document(document: object) -> Plan:
    """The plan in a JSON document; anything that is not one is refused with what is wrong and where."""
    top = _mapping(document, "the plan")
    version = _get(top, "format", int, "the plan")
    if version > FORMAT:
        raise PlanError(
            f"the plan has format {_shown(version)}; this version reads up to {FORMAT}. Install a newer cosep."
        )
    if version != FORMAT:
        raise PlanError(f"the plan has format {_shown(version)}; formats start at {FORMAT}.")
    groups = []
    for i, item in enumerate(_get(top, "groups", list, "the plan")):
        where = f"groups[{i}]"
        entry = _mapping(item, where)
        width = _get(entry, "width", int, where)
        if width > MOST_CHANNELS:
            raise PlanError(f"{where}.width is {_shown(width)}; no layer has more than {MOST_CHANNELS} channels.")
        kept = _integers(_get(entry, "kept", list, where), f"{where}.kept", below=width)
        if not kept:
            raise PlanError(f"{where}.kept is empty; at least one channel must stay.")
        selection = entry.get("selection")
        groups.append(
            GroupPlan(
                group=_get(entry, "group", str, where),
                width=width,
                kept=kept,
                reason=_get(entry, "reason", str, where),
                selection=None if selection is None else _selection_from_document(selection, f"{where}.selection"),
            )
        )
    layout: dict[tuple[str, Side], tuple[int, ...]] = {}
    for i, item in enumerate(_get(top, "layout", list, "the plan")):
        where = f"layout[{i}]"
        entry = _mapping(item, where)
        side = _get(entry, "side", str, where)
        if side not in ("out", "in"):
            raise PlanError(f"{where}.side is {_shown(side)}; it must be 'out' or 'in'.")
        key: tuple[str, Side] = (_get(entry, "module", str, where), "out" if side == "out" else "in")
        if key in layout:
            raise PlanError(f"{where} repeats {key[0]} ({side}).")
        layout[key] = _integers(_get(entry, "kept", list, where), f"{where}.kept")
        if not layout[key]:
            raise PlanError(f"{where}.kept is empty; at least one position must stay.")
    if len({g.group for g in groups}) < len(groups):
        raise PlanError("the plan names a group twice.")
    return Plan(groups=tuple(groups), layout=layout, fingerprint=_get(top, "fingerprint", str, "the plan"))


def _selection_to_document(selection: Selection) -> dict[str, Any]:
    values = {f.name: getattr(selection, f.name) for f in fields(Selection)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _selection_from_document(document: object, where: str) -> Selection:
    entry = _mapping(document, where)
    channels = _get(entry, "channels", int, where)
    if not 0 <= channels <= MOST_CHANNELS:
        raise PlanError(f"{where}.channels is {_shown(channels)}; no layer has more than {MOST_CHANNELS}.")
    k = entry.get("k")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= MOST_CHANNELS):
        raise PlanError(f"{where}.k is {_shown(k)}; it must be a whole number or null.")
    values: dict[str, Any] = {"channels": channels, "reason": _get(entry, "reason", str, where), "k": k}
    for name in _INTEGERS:
        ascending = name == "kept"
        values[name] = _integers(_get(entry, name, list, where), f"{where}.{name}", ascending=ascending)
    for name in _NUMBERS:
        numbers = _get(entry, name, list, where)
        # A whole number may have more digits than a float can hold.
        if any(type(v) is not float and (type(v) is not int or abs(v) >= 2**63) for v in numbers):
            raise PlanError(f"{where}.{name} must hold numbers only.")
        values[name] = tuple(float(v) for v in numbers)
    notes = _get(entry, "notes", list, where)
    if any(not isinstance(v, str) for v in notes):
        raise PlanError(f"{where}.notes must hold text only.")
    return Selection(**values, notes=tuple(notes))


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PlanError(f"{where} is a {type(value).__name__}; a JSON object is needed.")
    return value


def _get(entry: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in entry:
        raise PlanError(f"{where} has no {name!r}. Is the file damaged, or not a plan?")
    value = entry[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PlanError(f"{where}.{name} is {type(value).__name__}; {kind.__name__} is needed.")
    return value


def _integers(
    values: Sequence[Any], where: str, *, below: int | None = None, ascending: bool = True
) -> tuple[int, ...]:
    if any(not isinstance(v, int) or isinstance(v, bool) or not 0 <= v < MOST_CHANNELS for v in values):
        raise PlanError(f"{where} must hold whole numbers from 0 on, below {MOST_CHANNELS}.")
    if ascending and list(values) != sorted(set(values)):
        raise PlanError(f"{where} must be different numbers in ascending order.")
    if below is not None and any(v >= below for v in values):
        raise PlanError(f"{where} has {max(values)}, beyond the group's {_shown(below)} channels.")
    return tuple(values)


def _shown(value: object) -> str:
    """A value of unknown size for a message."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 18 digits"
    return repr(value) if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
