"""Plans: what is kept of a network, checked before anything is cut, and as a versioned JSON document."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import PlanError
from cosep.groups import find_groups
from cosep.layers import written_out
from cosep.models.modes import device_of
from cosep.records import Cost, Group, GroupPlan, Plan, Selection, Side, Unit, counted
from cosep.surgery.cut import apply_layout, layout_of, merged_layout

FORMAT = 2
_INTEGERS = ("candidates", "clusters", "medoids", "representatives")
_NUMBERS = ("scores", "fit", "losses")
_OUTCOME = ("channels", "kept", "reason", "notes")  # of a selection: what was decided, beside the evidence
# Beyond any layer. The numbers of a document become sizes later: what is absurd must end here.
MOST_CHANNELS = 2**24
MOST_STEPS = 100


def fingerprint(model: nn.Module) -> str:
    """A digest of the names and shapes of a model's tensors, attention written out; their values do not matter."""
    lines = [
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in sorted(written_out(model).state_dict().items())
        if hasattr(tensor, "shape")
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def plan_for(
    model: nn.Module, groups: Iterable[Group], chosen: Iterable[GroupPlan], *, like: Plan | None = None
) -> Plan:
    """A checked plan for an uncut model, with the layout that repeats it without tracing; `like` gives the rest."""
    by_name = {group.name: group for group in groups}
    plan = replace(like or Plan(), groups=tuple(chosen), layout={}, fingerprint=fingerprint(model))
    check_plan(model, by_name.values(), plan)
    cuts = [layout_of(model, by_name[c.group], c.kept, {}) for c in plan.groups if len(c.kept) < c.width]
    named = (GroupPlan(c.group, selection=c.selection, unit=by_name[c.group].unit) for c in plan.groups)
    return replace(plan, groups=tuple(named), layout=merged_layout(*cuts))


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
        raise PlanError(f"the plan gives group {group.name!r} {counted(width, group.unit)}; it has {group.width}.")
    if not kept:
        raise PlanError(f"the plan keeps no {group.unit} of group {group.name!r}; at least one must stay.")
    if any(not isinstance(c, int) or isinstance(c, bool) for c in kept) or list(kept) != sorted(set(kept)):
        raise PlanError(
            f"the kept {group.unit}s of group {group.name!r} must be different whole numbers in ascending order."
        )
    if kept[0] < 0 or kept[-1] >= group.width:
        wrong = kept[0] if kept[0] < 0 else kept[-1]
        raise PlanError(
            f"the plan keeps {group.unit} {wrong} of group {group.name!r}, "
            f"whose {group.unit}s are 0 to {group.width - 1}."
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
            f"group {group.name!r} must keep equally many {group.unit}s in each of its {group.blocks} blocks of {per}; "
            f"the plan keeps between {min(counts)} and {max(counts)}."
        )


def applied(plan: Plan, model: nn.Module, example_input: Tensor | None = None) -> nn.Module:
    """The model cut to a plan, traced anew where the plan does not know its layout.

    Of a network that was pruned several times, the model may be that before any of the steps.
    """
    steps = steps_for(plan, model)
    if steps is not None and len(steps) > 1:
        for step in steps:
            model = applied(step, model, example_input)
        return model
    if not plan.layout and any(len(each.kept) < each.width for each in plan.groups):
        if example_input is None:
            if not plan.input:
                raise PlanError("the plan does not say what an input looks like. Give an example_input.")
            weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
            example_input = torch.zeros(1, *plan.input, dtype=weight.dtype, device=device_of(model))
        plan = plan_for(model, find_groups(model, example_input), plan.groups, like=plan)
    if plan.fingerprint and plan.fingerprint != fingerprint(model):
        check_plan(model, (), replace(plan, groups=()))
    return apply_layout(model, plan.layout)


def steps_for(plan: Plan, model: nn.Module) -> tuple[Plan, ...] | None:
    """The steps of a plan that this model has not behind it; None where it is of another network."""
    own = fingerprint(model)
    places = [place for place, step in enumerate(plan.steps) if step.fingerprint == own]
    return plan.steps[places[0] :] if places else None


def edited(plan: Plan, kept: Mapping[str, tuple[int, ...]], reason: str) -> Plan:
    """The plan with other channels kept; what it costs is not known any more."""
    known = {each.group: each for each in plan.groups}
    for name, channels in kept.items():
        if name not in known:
            raise PlanError(f"the plan has no group {name!r}; it has {', '.join(known)}.")
        width = known[name].width
        if not channels or channels[0] < 0 or channels[-1] >= width or len(set(channels)) < len(channels):
            unit = known[name].unit
            raise PlanError(f"the kept {unit}s of {name!r} must be different numbers from 0 to {width - 1}.")
    groups = (each.keeping(kept[each.group], reason) if each.group in kept else each for each in plan.groups)
    return replace(plan, groups=tuple(groups), layout={}, cost=None)


def widened(plan: Plan, widths: Mapping[str, int]) -> Plan:
    """The plan with other widths, as the criterion that made it would choose; only while it still knows that."""
    if missing := [name for name in widths if name not in plan.candidates]:
        raise PlanError(
            f"the plan does not know which other channels of {missing[0]!r} to keep: it was read from a file, or has "
            "no such group. Use with_kept, or give cosep.plan the widths."
        )
    kept = {name: plan.candidates[name].at(width).kept for name, width in widths.items()}
    return edited(plan, kept, "width given")


def differences(one: Plan, other: Plan) -> tuple[str, ...]:
    """In words, in which groups two plans differ."""
    first, second = ({each.group: each for each in plan.groups} for plan in (one, other))
    found = []
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            found.append(f"{name}: only in the {'first' if name in first else 'second'} plan")
        elif first[name].kept != second[name].kept:
            a, b = set(first[name].kept), set(second[name].kept)
            found.append(f"{name}: {counted(len(a), first[name].unit)} and {len(b)}, {len(a & b)} of them the same")
    return tuple(found)


def plan_table(plan: Plan) -> str:
    """The plan as text: a line for each group, and what it will cost."""
    with_heads = any(each.unit == "head" for each in plan.groups)
    rows = [("group", "width" if with_heads else "channels", "kept", "why")]
    for each in plan.groups:
        width = counted(each.width, each.unit) if each.unit == "head" else str(each.width)
        rows.append((each.group, width, str(len(each.kept)), each.why))
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d}".rstrip() for a, b, c, d in rows]
    if plan.cost:
        c = plan.cost
        for what, before, after in (
            ("MACs", c.macs_before, c.macs_after),
            ("parameters", c.parameters_before, c.parameters_after),
        ):
            lines.append(f"{what}: {before:,} before, {after:,} after ({100 * after / max(before, 1):.1f} % left)")
    return "\n".join((*lines, *plan.notes))


def write_plan(plan: Plan, path: Path) -> Path:
    """Write a plan as JSON to be read and edited; its layout follows from the kept channels and is left out."""
    document = plan_to_document(replace(plan, layout={}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_readable(document), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _readable(document: Mapping[str, Any]) -> str:
    """A document as text, each list of numbers on one line: a person takes channels out of it, or puts some in."""
    text = json.dumps(document, indent=1) + "\n"
    # A string of JSON holds no line break, so that a bracket before one opens a list; without quotes it is of numbers.
    return re.sub(r"\[\n([^\[\]{}\"]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def read_plan(path: Path) -> Plan:
    """A plan from a JSON file. Someone may have edited it, so its layout and cost are not taken from there."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not valid JSON: {error}.") from error
    return replace(plan_from_document(document), layout={}, cost=None)


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
                **({"unit": g.unit} if g.unit != "channel" else {}),
                "kept": list(g.kept),
                "reason": g.reason,
                "notes": list(g.selection.notes),
                "evidence": _evidence_to_document(g.selection),
            }
            for g in plan.groups
        ],
        "input": list(plan.input),
        "cost": asdict(plan.cost) if plan.cost else None,
        "notes": list(plan.notes),
        "layout": [
            {"module": module, "side": side, "kept": list(kept)} for (module, side), kept in sorted(plan.layout.items())
        ],
        **({"earlier": [plan_to_document(step) for step in plan.earlier]} if plan.earlier else {}),
    }


def plan_from_document(document: object) -> Plan:
    """The plan in a JSON document; anything that is not one is refused with what is wrong and where."""
    top = _mapping(document, "the plan")
    steps = top.get("earlier") or []
    if (
        not isinstance(steps, list)
        or len(steps) > MOST_STEPS
        or any("earlier" in _mapping(s, "earlier") for s in steps)
    ):
        raise PlanError(f"earlier must hold at most {MOST_STEPS} plans without earlier ones of their own.")
    return replace(_one_plan(top), earlier=tuple(_one_plan(step) for step in steps))


def _one_plan(top: Mapping[str, Any]) -> Plan:
    version = _get(top, "format", int, "the plan")
    if version > FORMAT:
        raise PlanError(
            f"the plan has format {_shown(version)}; this version reads up to {FORMAT}. Install a newer cosep."
        )
    if version < 1:
        raise PlanError(f"the plan has format {_shown(version)}; formats start at 1.")
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
        groups.append(
            GroupPlan(
                group=_get(entry, "group", str, where),
                width=width,
                kept=kept,
                reason=_get(entry, "reason", str, where),
                selection=_selection_from_document(entry, width, where, version),
                unit=_unit(entry, where),
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
    shape = _integers(_get(top, "input", list, "the plan") if top.get("input") else [], "input", ascending=False)
    return Plan(
        groups=tuple(groups),
        layout=layout,
        fingerprint=_get(top, "fingerprint", str, "the plan"),
        input=shape,
        cost=_cost_from_document(top.get("cost")),
        notes=_texts(top.get("notes") or [], "notes"),
    )


def _evidence_to_document(selection: Selection) -> dict[str, Any]:
    """How a selection came about; what it says stands beside the group's name."""
    values = {f.name: getattr(selection, f.name) for f in fields(Selection) if f.name not in _OUTCOME}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _selection_from_document(group: Mapping[str, Any], width: int, where: str, version: int) -> Selection:
    """The evidence of a group; format 1 has it, and the notes, under `selection`, which may be null."""
    name = "selection" if version == 1 else "evidence"
    if version == 1 and group.get(name) is None:
        return Selection(width, (), "")
    part = f"{where}.{name}"
    entry = _mapping(_get(group, name, dict, where), part)
    k = entry.get("k")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= MOST_CHANNELS):
        raise PlanError(f"{part}.k is {_shown(k)}; it must be a whole number or null.")
    values: dict[str, Any] = {"channels": width, "kept": (), "reason": "", "k": k}
    for key in _INTEGERS:
        values[key] = _integers(_get(entry, key, list, part), f"{part}.{key}", ascending=False)
    for key in _NUMBERS:
        numbers = _get(entry, key, list, part)
        # A whole number may have more digits than a float can hold.
        if any(type(v) is not float and (type(v) is not int or abs(v) >= 2**63) for v in numbers):
            raise PlanError(f"{part}.{key} must hold numbers only.")
        values[key] = tuple(float(v) for v in numbers)
    owner, place = (entry, part) if version == 1 else (group, where)
    return Selection(**values, notes=_texts(_get(owner, "notes", list, place), f"{place}.notes"))


def _unit(entry: Mapping[str, Any], where: str) -> Unit:
    """What one of a group's channels is; plans of groups of channels do not say it."""
    found = entry.get("unit", "channel")
    if found not in ("channel", "head"):
        raise PlanError(f"{where}.unit is {_shown(found)}; it must be 'channel' or 'head'.")
    return "head" if found == "head" else "channel"


def _texts(values: object, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or any(not isinstance(v, str) for v in values):
        raise PlanError(f"{where} must hold text only.")
    return tuple(values)


def _cost_from_document(document: object) -> Cost | None:
    if document is None:
        return None
    entry = _mapping(document, "cost")
    names = [f.name for f in fields(Cost)]
    if any(not isinstance(entry.get(n), int) or not 0 <= entry[n] < 2**63 for n in names):
        raise PlanError(f"cost must hold whole numbers for {', '.join(names)}.")
    return Cost(**{name: entry[name] for name in names})


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
