"""The chain on one page: plan -> cut -> rebuild -> recover -> measure.

`prune` goes through it for all groups together or for one after the other; `plan` stops before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cosep.config import PruneConfig
from cosep.criteria import Criterion
from cosep.measurement import macs, measure, parameters
from cosep.rebuilding import compensate, reestimate_batchnorm
from cosep.records import Compensation, Group, GroupPlan, Plan, Selection
from cosep.recovery import Progress
from cosep.runs.fabric import same_weights_everywhere
from cosep.runs.opening import Request, only_deciding, opened_request
from cosep.runs.planning import decided_plan, planned, planned_ahead
from cosep.runs.recovering import held_out_accuracy, keep, recovered
from cosep.runs.results import PruneResult, entry_of, finished_run, result_there
from cosep.runs.state import Batches, Callbacks, Choose, Job, Recover, State, calibration_pass, from_checkpoint
from cosep.selection.rules import WidthRule
from cosep.surgery import MaskedCheck, copied, cut_all_checked, cut_checked


def prune(
    model: nn.Module,
    calibration: Batches,
    evaluate: Batches | None = None,
    *,
    config: PruneConfig | None = None,
    train: Batches | None = None,
    holdout: Batches | None = None,
    example_input: Tensor | None = None,
    run: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    recovery: Recover | None = None,
    criterion: str | Criterion | Callable[..., Any] | None = None,
    width_rule: str | WidthRule | Callable[..., Any] | None = None,
    widths: Mapping[str, int] | None = None,
    plan: Plan | None = None,
    choose: Choose | None = None,
) -> PruneResult:
    """A smaller network from a trained one; the caller's model is left as it is.

    calibration: batches of (inputs, labels) for the statistics, and for recovery too unless `train` is given.
    evaluate: test batches; only reported. holdout: batches that decide where a limit needs an accuracy.
    run: a folder to work in; the same call goes on there where it was stopped. about: facts to keep in its config.toml,
    such as the names of the model and the data. recovery: your own, called with the network and a number of updates.
    criterion, width_rule: names or functions of your own, in place of `select.criterion` and `select.width_rule`.
    widths: how many channels of a group to keep, where that is not for the rule to say. plan: a plan to carry out.
    choose: deprecated; give a criterion.
    """
    with opened_request(Request(**locals())) as opening:
        if (there := result_there(opening)) is not None:
            return there
        job, state, progress = _started(opening.job())
        while True:
            if state.waiting:
                state, progress = _settled(job, recovered(job, state, progress)), None
            elif groups := _next_groups(job, state):
                state, selections = planned(job, state, groups)
                state = _settled(job, _cut(job, state, groups, selections))
            elif job.config.recover.schedule == "final" and state.final is None and state.layout:
                state = replace(state, waiting=True)
            else:
                return finished_run(job, state, opening.model, evaluate)
            keep(job, state)


def plan(
    model: nn.Module,
    calibration: Batches,
    *,
    config: PruneConfig | None = None,
    example_input: Tensor | None = None,
    callbacks: Callbacks | None = None,
    criterion: str | Criterion | Callable[..., Any] | None = None,
    width_rule: str | WidthRule | Callable[..., Any] | None = None,
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """What would stay of a network and what that costs, decided for all groups from the uncut network; nothing is cut.

    The arguments are those of `prune`. Print the plan, save it, change it with `with_widths` or `with_kept`, cut a
    model with `apply`, or give it to `prune` to be rebuilt and recovered too.
    """
    with opened_request(Request(**{**locals(), "config": only_deciding(config or PruneConfig())})) as opening:
        job = opening.job()
        with job.stage("measure"):
            job = replace(job, before=measure(job.original, job.example).to_document())
        return decided_plan(job, opening.model)


def _next_groups(job: Job, state: State) -> tuple[Group, ...]:
    """The groups that go through plan, cut and rebuild now: all of them, or the next one."""
    left = job.groups[len(state.plans) :]
    return left if job.config.order == "together" else left[:1]


def _cut(job: Job, state: State, groups: Sequence[Group], selections: Sequence[Selection]) -> State:
    """Cut the groups, checked numerically against a masked copy; one that fails the check stays whole."""
    model, layout, seed = state.model, state.layout, job.config.seed
    chosen = [(group, each.kept) for group, each in zip(groups, selections, strict=True) if each.removed]
    checks: dict[str, MaskedCheck] = {}
    repairs: dict[str, tuple[Compensation, ...]] = {}
    if job.config.order == "together":
        with job.stage("cut"):
            model, layout, checks = cut_all_checked(model, chosen, job.example, seed=seed)
    for group, kept in chosen if job.config.order == "one-by-one" else ():
        prepared, repairs[group.name] = _compensated(job, state, group, kept)
        with job.stage("cut", group.name):
            cut = cut_checked(prepared, group, kept, layout, job.example, seed=seed)
        checks[group.name] = cut.check
        if cut.done:
            model, layout = cut.model, cut.layout
    done = [_outcome(each, checks.get(group.name)) for group, each in zip(groups, selections, strict=True)]
    was_cut = any(check.equal for check in checks.values())
    new = replace(
        state,
        model=model,
        layout=layout,
        plans=(*state.plans, *(GroupPlan(g.name, selection=each) for g, each in zip(groups, done, strict=True))),
        entries=(
            *state.entries,
            *(
                entry_of(group, each, checks.get(group.name), repairs.get(group.name, ()))
                for group, each in zip(groups, done, strict=True)
            ),
        ),
        waiting=was_cut and job.config.recover.schedule == "per-layer",
        previous=replace(state, previous=None) if was_cut and job.config.limits.max_drop is not None else None,
    )
    return _rebuilt(job, new) if was_cut else new


def _outcome(selection: Selection, check: MaskedCheck | None) -> Selection:
    """What came of a selection: all channels where the cut did not compute what its masked copy does."""
    if check is None or check.equal:
        return selection
    reason = f"the cut did not equal its masked twin ({check.reason}): kept whole"
    return replace(selection, kept=tuple(range(selection.channels)), reason=reason)


def _compensated(
    job: Job, state: State, group: Group, kept: tuple[int, ...]
) -> tuple[nn.Module, tuple[Compensation, ...]]:
    """A copy of the network whose consumers make up for the channels of one group that will go."""
    prepared = copied(state.model)
    if not job.config.surgery.compensate:
        return prepared, ()
    with job.stage("compensate", group.name):
        return compensate(
            prepared,
            group,
            kept,
            state.layout,
            calibration_pass(job, job.config.surgery.images),
            job.config.surgery,
            seed=job.config.seed,
            cache=job.prefixes,
            inplace=True,
        )


def _rebuilt(job: Job, state: State) -> State:
    """The network after a cut with weights and statistics made anew in closed form: today those of BatchNorm."""
    if job.config.surgery.reestimate_batchnorm:
        with job.stage("batchnorm", state.plans[-1].group if job.config.order == "one-by-one" else ""):
            reestimate_batchnorm(state.model, calibration_pass(job, job.config.surgery.images))
    same_weights_everywhere(state.model, job.fabric)
    return state


def _settled(job: Job, state: State) -> State:
    """The last figures of the groups just cut; where they cost more accuracy than allowed, the network from before."""
    fresh = [entry for entry in state.entries if "macs" not in entry]
    if state.waiting or not fresh:
        return state
    found = held_out_accuracy(job, state.model)
    if state.previous is not None and (reason := _too_much(job, state, found)):
        back = state.previous
        found = held_out_accuracy(job, back.model)
        plan = state.plans[-1]
        whole = plan.keeping(tuple(range(plan.width)), reason)
        fresh = [{**fresh[0], "kept": plan.width, "reason": reason}]
        state = replace(state, model=back.model, layout=back.layout, plans=(*back.plans, whole))
    with job.stage("measure", "" if job.config.order == "together" else fresh[-1]["group"]):
        size = {"macs": macs(state.model, job.example), "parameters": parameters(state.model)}
    last = len(fresh) - 1  # one figure after the cut of all of them
    fresh = [{**entry, "accuracy": found if i == last else None, **size} for i, entry in enumerate(fresh)]
    for entry in fresh:
        if job.run:
            job.run.log("group", **entry)
        if job.callbacks.on_group:
            job.callbacks.on_group(entry)
    return replace(state, entries=(*state.entries[: -len(fresh)], *fresh), previous=None)


def _too_much(job: Job, state: State, found: float | None) -> str:
    """Why the last group is left whole, in words; "" where it keeps to the limit."""
    limit, base = job.config.limits.max_drop, job.before.get("holdout_accuracy")
    if limit is None or base is None or found is None or 100 * (base - found) <= limit:
        return ""
    drop = 100 * (base - found)
    return f"cutting to {len(state.plans[-1].kept)} cost {drop:.1f} points in all, {limit:g} are allowed: kept whole"


def _started(job: Job) -> tuple[Job, State, Progress | None]:
    """Where a run begins: at its last checkpoint, or with the unpruned network's figures."""
    checkpoint = job.fabric.broadcast(job.run.restore() if job.run else None)
    progress = None
    if checkpoint:
        state, progress = from_checkpoint(checkpoint, job.original)
        job.clock.seconds.update(checkpoint.document["seconds"])
        job = replace(job, before=checkpoint.document["before"])
    else:
        with job.stage("measure"):
            before = measure(job.original, job.example).to_document()
            before["holdout_accuracy"] = held_out_accuracy(job, job.original)
        job = replace(job, before=before)
        state = planned_ahead(job)
        keep(job, state)
    if job.callbacks.on_start:
        job.callbacks.on_start(job.groups, len(state.plans), dict(job.before))
    return job, state, progress
