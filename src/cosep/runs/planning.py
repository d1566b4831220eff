"""From the network as it is to the channels that stay: candidates -> widths -> selections -> finished selections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from cosep.config import amount
from cosep.criteria import Candidates, NetworkView, Passes
from cosep.measurement import macs, parameters
from cosep.models.heap import give_back_freed_memory
from cosep.rebuilding import measure_damage
from cosep.records import Cost, Group, GroupPlan, Plan, Selection
from cosep.reporting.folders import write_evidence
from cosep.runs.fabric import batches_of_rank, merged_over_ranks
from cosep.runs.probing import NetworkProbe
from cosep.runs.reach import check_met, check_reach
from cosep.runs.search import as_found, found_share, searched_words
from cosep.runs.state import Job, State, calibration_pass
from cosep.selection import finished
from cosep.selection.rules import Target, Width, Widths
from cosep.surgery import apply_layout, copied, plan_for


def planned(job: Job, state: State, groups: Sequence[Group]) -> tuple[State, list[Selection]]:
    """What stays of the next groups, decided from the network as it is now, and the state with the limits' words."""
    if job.config.order == "together":
        found = candidates_of_original(job)
        decided = as_found(job, check_met(job, widths_of(job, state, found, target_of(job, state))))
        notes = (*decided.notes, *searched_words(job, state))
        state = replace(state, limit_notes=notes, damage=damage_at_half(job))
        forget_view(job)  # all is decided
    else:
        found = candidates_of(job, network_view(job, state, groups))
        decided = Widths({each.group: _alone(job, state, each) for each in found})
    selections = finished_selections(job, found, decided, groups)
    if job.run:
        for place, (group, each, selection) in enumerate(zip(groups, found, selections, strict=True)):
            _record(job, len(state.plans) + place, group, each, selection)
    return state, selections


def planned_ahead(job: Job) -> State:
    """The state before the first cut, one by one: where a limit or the rule ties the groups, with all their widths."""
    start = State(copied(job.original))
    check_reach(job, target_of(job, start))
    if job.config.order == "together" or (job.rule.alone and not job.config.limits.on_size):
        return start
    decided = check_met(job, widths_of(job, start, candidates_of_original(job), target_of(job, start)))
    return replace(
        start,
        ahead={name: width.k for name, width in decided.widths.items()},
        reasons={name: width.reason for name, width in decided.widths.items()},
        limit_notes=decided.notes,
        damage=damage_at_half(job),
    )


def network_view(job: Job, state: State, groups: Sequence[Group]) -> NetworkView:
    """The network as it is, as a criterion sees it: gathered when first asked for, as few passes as possible."""
    passes = Passes(
        batches=lambda images: calibration_pass(job, images),
        of_process=lambda batches: batches_of_rank(batches, job.fabric),
        merged=lambda moments: merged_over_ranks(moments, job.fabric),
        stage=job.stage,
    )
    return NetworkView(
        state.model,
        state.layout,
        groups,
        config=job.config,
        classes=job.classes,
        passes=passes,
        whole=not state.plans,  # what could be wrong behind a layer is found before anything is cut
    )


def original_view(job: Job) -> NetworkView:
    """The uncut network with all groups; what was gathered of it is kept as long as the run lasts."""
    if "view" not in job.memory:
        job.memory["view"] = network_view(job, State(job.original), job.groups)
    return job.memory["view"]


def forget_view(job: Job) -> None:
    """Let go of what was gathered of the uncut network: the rebuild needs the room."""
    if job.memory.pop("view", None) is not None:
        give_back_freed_memory()


def candidates_of(job: Job, network: NetworkView) -> list[Candidates]:
    """What the criterion says of each group."""
    return [job.criterion(network.of(group)) for group in network.groups]


def candidates_of_original(job: Job) -> list[Candidates]:
    """What the criterion says of each group of the uncut network; asked once."""
    if "candidates" not in job.memory:
        job.memory["candidates"] = candidates_of(job, original_view(job))
    return job.memory["candidates"]


def widths_of(job: Job, state: State, found: Sequence[Candidates], target: Target) -> Widths:
    """The widths of all groups, decided together under the limits."""
    if "probe" not in job.memory:
        job.memory["probe"] = NetworkProbe(
            job.original,
            job.example,
            job.groups,
            round_to=job.config.surgery.round_to,
            runtime=job.config.limits.runtime,
            damage=partial(damage_of, job, state, found),
        )
    with job.stage("select"):
        return job.fabric.broadcast(job.rule(found, target, job.memory["probe"]))


def damage_of(job: Job, state: State, found: Sequence[Candidates], widths: Mapping[str, int]) -> Mapping[str, float]:
    """How far the outputs move with each group alone at a width; what was measured is not measured again."""
    halves = _halves(found)
    known: dict[tuple[str, int], float] = job.memory.setdefault(
        "damage", {(name, halves[name]): value for name, value in state.damage.items()}
    )
    if not widths.items() <= known.keys():
        looked = original_view(job).looked_at()
        with job.stage("damage"):
            kept = {each.group: each.at(widths[each.group]).kept for each in found if each.group in widths}
            groups = [group for group in job.groups if group.name in kept]
            measured = measure_damage(
                job.original, groups, kept, looked.grams, looked.aside, pull=job.config.rebuild.pull
            )
        known.update({(name, widths[name]): value for name, value in job.fabric.broadcast(measured).items()})
    return {name: known[name, width] for name, width in widths.items()}


def damage_to_measure(job: Job, state: State) -> dict[str, int]:
    """The groups whose damage the widths will need, with half of what each needs; nothing where it is known by now."""
    if job.config.order != "together" or job.rule.name != "damage" or state.damage or state.plans:
        return {}
    free = [each for each in candidates_of_original(job) if each.group not in job.given and each.channels > 1]
    return {each.group: each.half for each in free}


def with_damage(job: Job, state: State, widths: Mapping[str, int]) -> State:
    """The state with the damage of these groups: a step of its own, so that a run that is stopped keeps it."""
    damage_of(job, state, candidates_of_original(job), widths)
    return replace(state, damage=damage_at_half(job))


def damage_at_half(job: Job) -> dict[str, float]:
    """The damage of each group alone at half of what it needs, where it was measured: what a run keeps and reports."""
    known: dict[tuple[str, int], float] = job.memory.get("damage", {})
    halves = _halves(job.memory.get("candidates", ()))
    return {name: known[name, half] for name, half in halves.items() if (name, half) in known}


def _halves(found: Sequence[Candidates]) -> dict[str, int]:
    return {each.group: each.half for each in found}


def target_of(job: Job, state: State) -> Target:
    """The limits in absolute numbers, and the caller's widths; without any limit, what a search has found."""
    limits = job.config.limits
    most = {
        key: None if text is None else amount(f"limits.{name}", text, job.before[key])
        for name, key, text in (
            ("max_macs", "macs", limits.max_macs),
            ("max_params", "parameters", limits.max_params),
        )
    }
    if not limits.on_size and (amount_found := found_share(job, state)) is not None:
        most["macs"] = amount_found * job.before["macs"]
    return Target(most["macs"], most["parameters"], limits.max_latency_ms, job.given)


def _alone(job: Job, state: State, candidates: Candidates) -> Width:
    """The width of one group when its turn comes: what was decided ahead, or what the rule says of it alone."""
    name = candidates.group
    probe = NetworkProbe(job.original, job.example, job.groups, round_to=job.config.surgery.round_to)
    if not job.rule.alone:
        return Width(state.ahead[name], state.reasons.get(name, ""))
    width = job.rule([candidates], Target(given=job.given), probe).widths[name]
    if name not in job.given and state.ahead.get(name, width.k) != width.k:
        return replace(width.set_to(state.ahead[name]), reason=state.reasons.get(name) or width.reason)
    return width


def finished_selections(
    job: Job, found: Sequence[Candidates], decided: Widths, groups: Sequence[Group] | None = None
) -> list[Selection]:
    """What stays of some groups (all of them) at the widths that were decided."""
    pairs = zip(job.groups if groups is None else groups, found, strict=True)
    return [_finished(job, group, each, decided.widths[group.name]) for group, each in pairs]


def target_for_share(job: Job, share: float) -> Target:
    """A share of the uncut network's MACs as a target."""
    return Target(macs=share * job.before["macs"], given=job.given)


def _finished(job: Job, group: Group, candidates: Candidates, width: Width) -> Selection:
    """The selection of a width, as every choice ends: rounded, balanced, and the same in every process."""
    with job.stage("select", group.name):
        selection = width.applied(candidates)
        selection = finished(selection, group, candidates.ranking, round_to=job.config.surgery.round_to)
    return job.fabric.broadcast(selection)


def _record(job: Job, place: int, group: Group, candidates: Candidates, selection: Selection) -> None:
    """Keep what the page shows of a group's choice."""
    seen = candidates.evidence
    if job.run and seen is not None and all(hasattr(seen, part) for part in ("moments", "space", "weights")):
        with job.stage("record", group.name):
            write_evidence(
                job.run, place, group.name, seen.moments, seen.histograms, seen.space, seen.weights, selection
            )


def decided_plan(job: Job, model: nn.Module, state: State) -> Plan:
    """What would stay of the whole network, and what that costs; `state` holds what a search for the amount found."""
    check_reach(job, target_of(job, state))
    found = candidates_of_original(job)
    decided = as_found(job, check_met(job, widths_of(job, state, found, target_of(job, state))))
    chosen = [
        GroupPlan(group.name, selection=_finished(job, group, each, decided.widths[group.name]), unit=group.unit)
        for group, each in zip(job.groups, found, strict=True)
    ]
    made = plan_for(model, job.groups, chosen)
    small = apply_layout(job.original, made.layout)
    return replace(
        made,
        input=tuple(job.example.shape[1:]),
        cost=Cost(job.before["macs"], macs(small, job.example), job.before["parameters"], parameters(small)),
        notes=(*decided.notes, *searched_words(job, state)),
        candidates={each.group: each for each in found},
    )
