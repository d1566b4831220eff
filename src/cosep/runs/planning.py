"""From the network as it is to the channels that stay: candidates -> widths -> selections -> finished selections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from cosep.config import amount
from cosep.criteria import Candidates, NetworkView, Passes
from cosep.measurement import macs, parameters
from cosep.records import Cost, Group, GroupPlan, Plan, Selection
from cosep.reporting.folders import write_evidence
from cosep.runs.fabric import batches_of_rank, merged_over_ranks
from cosep.runs.probing import NetworkProbe
from cosep.runs.state import Job, State, calibration_pass
from cosep.selection import finished
from cosep.selection.rules import Target, Width, Widths
from cosep.surgery import apply_layout, copied, plan_for


def planned(job: Job, state: State, groups: Sequence[Group]) -> tuple[State, list[Selection]]:
    """What stays of the next groups, decided from the network as it is now, and the state with the limits' words."""
    found = candidates_of(job, state, groups)
    if job.config.order == "together":
        decided = widths_of(job, found)
        state = replace(state, limit_notes=decided.notes)
    else:
        decided = Widths({each.group: _alone(job, state, each) for each in found})
    selections = [
        _finished(job, group, each, decided.widths[group.name]) for group, each in zip(groups, found, strict=True)
    ]
    if job.run:
        for place, (group, each, selection) in enumerate(zip(groups, found, selections, strict=True)):
            _record(job, len(state.plans) + place, group, each, selection)
    return state, selections


def planned_ahead(job: Job) -> State:
    """The state before the first cut, one by one: where a limit or the rule ties the groups, with all their widths."""
    start = State(copied(job.original))
    if job.config.order == "together" or (job.rule.alone and not job.config.limits.on_size):
        return start
    decided = widths_of(job, candidates_of(job, State(job.original), job.groups))
    return replace(
        start,
        ahead={name: width.k for name, width in decided.widths.items()},
        reasons={name: width.reason for name, width in decided.widths.items()},
        limit_notes=decided.notes,
    )


def candidates_of(job: Job, state: State, groups: Sequence[Group]) -> list[Candidates]:
    """What the criterion says of each group, from as few passes over the network as it is as possible."""
    passes = Passes(
        batches=lambda images: calibration_pass(job, images),
        of_process=lambda batches: batches_of_rank(batches, job.fabric),
        merged=lambda moments: merged_over_ranks(moments, job.fabric),
        stage=job.stage,
    )
    network = NetworkView(
        state.model,
        state.layout,
        groups,
        config=job.config,
        classes=job.classes,
        passes=passes,
        whole=not state.plans,  # what could be wrong behind a layer is found before anything is cut
    )
    return [job.criterion(network.of(group)) for group in groups]


def widths_of(job: Job, found: Sequence[Candidates]) -> Widths:
    """The widths of all groups, decided together under the limits."""
    with job.stage("select"):
        probe = NetworkProbe(job.original, job.example, job.groups, round_to=job.config.surgery.round_to)
        return job.fabric.broadcast(job.rule(found, target_of(job), probe))


def target_of(job: Job) -> Target:
    """The limits in absolute numbers, and the caller's widths."""
    limits = job.config.limits
    most = {
        key: None if text is None else amount(f"limits.{name}", text, job.before[key])
        for name, key, text in (
            ("max_macs", "macs", limits.max_macs),
            ("max_params", "parameters", limits.max_params),
        )
    }
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


def decided_plan(job: Job, model: nn.Module) -> Plan:
    """What would stay of the whole network, and what that costs."""
    found = candidates_of(job, State(job.original), job.groups)
    decided = widths_of(job, found)
    chosen = [
        GroupPlan(group.name, selection=_finished(job, group, each, decided.widths[group.name]))
        for group, each in zip(job.groups, found, strict=True)
    ]
    made = plan_for(model, job.groups, chosen)
    small = apply_layout(job.original, made.layout)
    return replace(
        made,
        input=tuple(job.example.shape[1:]),
        cost=Cost(job.before["macs"], macs(small, job.example), job.before["parameters"], parameters(small)),
        notes=decided.notes,
        candidates={each.group: each for each in found},
    )
