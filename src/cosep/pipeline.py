"""The chain on one page: plan -> cut -> rebuild -> recover -> measure.

`prune` goes through it for all groups together or for one after the other; `plan` stops before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cosep.config import Order, PruneConfig, preset
from cosep.criteria import Criterion
from cosep.measurement import macs, measure, parameters
from cosep.records import Group, GroupPlan, Plan, Scope, Selection
from cosep.recovery import Progress, RecoveryHooks
from cosep.runs.estimating import estimated
from cosep.runs.opening import asked, only_deciding, opened_request
from cosep.runs.planning import damage_to_measure, decided_plan, planned, planned_ahead, with_damage
from cosep.runs.recovering import SHOWN_IMAGES, held_out_accuracy, keep, recovered
from cosep.runs.remaking import rebuilt, tried
from cosep.runs.results import PruneResult, finished_run, outcome_of, result_there
from cosep.runs.search import next_share
from cosep.runs.state import Batches, Callbacks, Choose, Job, Recover, State, calibration_pass, from_checkpoint
from cosep.selection.rules import WidthRule
from cosep.surgery import MaskedCheck, copied, cut_all_checked

CHECKED_IMAGES = 4


def prune(
    model: nn.Module | PruneResult,
    calibration: Batches,
    evaluate: Batches | None = None,
    *,
    max_macs: str | float | None = None,
    max_params: str | float | None = None,
    max_latency_ms: float | None = None,
    max_drop: float | None = None,
    epochs: float | None = None,
    best_effort: bool | None = None,
    scope: Scope | None = None,
    round_to: int | None = None,
    protect: str | Sequence[str] | None = None,
    order: Order | None = None,
    seed: int | None = None,
    config: PruneConfig | None = None,
    train: Batches | None = None,
    holdout: Batches | None = None,
    example_input: Tensor | None = None,
    run: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
    recovery: Recover | RecoveryHooks | None = None,
    criterion: str | Criterion | Callable[..., Any] | None = None,
    width_rule: str | WidthRule | Callable[..., Any] | None = None,
    widths: Mapping[str, int] | None = None,
    plan: Plan | None = None,
    choose: Choose | None = None,
) -> PruneResult:
    """A smaller network from a trained one; the caller's model is left as it is.

    model: the network, or the result of a pruning before, which is then pruned further: its plan and report are kept.
    calibration: batches of (inputs, labels) for the statistics, and for recovery too unless `train` is given; inputs
    alone are enough where nothing asks for labels, as by default.
    max_macs ... seed: the settings that people use first; they win over `config`, which has all of them.
    evaluate: test batches; only reported. holdout: batches that decide where a limit needs an accuracy.
    run: a folder to work in; the same call goes on there where it was stopped. about: facts to keep in its config.toml,
    such as the names of the model and the data. progress: show it; by default on a terminal and in a notebook.
    tensorboard: write the run's log also as TensorBoard events, in its folder.
    recovery: parts of the training that are your own, as
    `RecoveryHooks`; or all of it, a function that is called with the network and a number of updates.
    criterion, width_rule: names or functions of your own, in place of `select.criterion` and `select.width_rule`.
    widths: how many channels of a group to keep, where that is not for the rule to say. plan: a plan to carry out.
    choose: deprecated; give a criterion.
    """
    with opened_request(asked(locals())) as opening:
        if (there := result_there(opening)) is not None:
            return there
        job, state, partial = _started(opening.job(), evaluate)
        while True:
            if state.waiting:
                state, partial = _settled(job, recovered(job, state, partial)), None
            elif halves := damage_to_measure(job, state):
                state = with_damage(job, state, halves)
            elif (share := next_share(job, state)) is not None and not state.plans:
                state = tried(job, state, share)
            elif groups := _next_groups(job, state):
                state, selections = planned(job, state, groups)
                state = _settled(job, _cut(job, state, groups, selections))
            elif job.trains and job.config.recover.schedule == "final" and state.final is None and state.layout:
                state = replace(state, waiting=True, previous=replace(state, model=copied(state.model)))
            else:
                return finished_run(job, state, opening)
            keep(job, state)


def plan(
    model: nn.Module | PruneResult,
    calibration: Batches,
    *,
    max_macs: str | float | None = None,
    max_params: str | float | None = None,
    max_latency_ms: float | None = None,
    best_effort: bool | None = None,
    scope: Scope | None = None,
    round_to: int | None = None,
    protect: str | Sequence[str] | None = None,
    order: Order | None = None,
    seed: int | None = None,
    config: PruneConfig | None = None,
    example_input: Tensor | None = None,
    callbacks: Callbacks | None = None,
    progress: bool | None = None,
    criterion: str | Criterion | Callable[..., Any] | None = None,
    width_rule: str | WidthRule | Callable[..., Any] | None = None,
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """What would stay of a network and what that costs, decided for all groups from the uncut network; nothing is cut.

    The arguments are those of `prune`. Print the plan, save it, change it with `with_widths` or `with_kept`, cut a
    model with `apply`, or give it to `prune` to be rebuilt and recovered too.
    """
    request = asked(locals())
    with opened_request(replace(request, config=only_deciding(request.config or preset()))) as opening:
        job = opening.job()
        with job.stage("measure"):
            job = replace(job, before=measure(job.original, job.example).to_document())
        state = State(job.original)
        _estimate(job, state, None, deciding=True)
        while (share := next_share(job, state)) is not None:
            state = tried(job, state, share)
        return decided_plan(job, opening.model, state)


def _next_groups(job: Job, state: State) -> tuple[Group, ...]:
    """The groups that go through plan, cut and rebuild now: all of them, or the next one."""
    left = job.groups[len(state.plans) :]
    return left if job.config.order == "together" else left[:1]


def _cut(job: Job, state: State, groups: tuple[Group, ...], selections: Sequence[Selection]) -> State:
    """Cut the groups, checked numerically against a masked copy, and rebuild; one that fails the check stays whole."""
    chosen = [(group, each.kept) for group, each in zip(groups, selections, strict=True) if each.removed]
    with job.stage("cut", groups[0].name if len(groups) == 1 else ""):
        model, layout, checks = cut_all_checked(
            state.model, chosen, job.example, layout=state.layout, seed=job.config.seed, inputs=(_few_images(job),)
        )
    done = [_outcome(each, checks.get(group.name)) for group, each in zip(groups, selections, strict=True)]
    was_cut = any(check.equal for check in checks.values())
    pairs = list(zip(groups, done, strict=True))
    new = replace(
        state,
        model=model,
        layout=layout,
        plans=(*state.plans, *(GroupPlan(group.name, selection=each, unit=group.unit) for group, each in pairs)),
        outcomes=(*state.outcomes, *(outcome_of(group, each, checks.get(group.name)) for group, each in pairs)),
        waiting=was_cut and job.trains and job.config.recover.schedule == "per-layer",
        previous=replace(state, previous=None) if was_cut and job.takes_back else None,
    )
    return rebuilt(job, new, groups) if was_cut else new


def _few_images(job: Job) -> Tensor:
    """Some calibration images on which a cut is checked, beside random input."""
    inputs, _ = next(calibration_pass(job, CHECKED_IMAGES))
    return inputs


def _outcome(selection: Selection, check: MaskedCheck | None) -> Selection:
    """What came of a selection: all channels where the cut did not compute what its masked copy does."""
    if check is None or check.equal:
        return selection
    reason = f"the cut did not equal its masked copy ({check.reason}): kept whole"
    return replace(selection, kept=tuple(range(selection.channels)), reason=reason)


def _settled(job: Job, state: State) -> State:
    """The last figures of the groups just cut; where they cost more accuracy than allowed, the network from before."""
    fresh = [outcome for outcome in state.outcomes if not outcome.measured]
    if state.waiting or not fresh:
        return state
    only_shown = job.config.order == "one-by-one" and not job.takes_back
    found = held_out_accuracy(job, state.model, SHOWN_IMAGES if only_shown else 0)
    if state.previous is not None and (reason := _too_much(job, state, found)):
        back = state.previous
        found = held_out_accuracy(job, back.model)
        plan = state.plans[-1]
        whole = plan.keeping(tuple(range(plan.width)), reason)
        fresh = [replace(fresh[0], kept=plan.width, reason=reason)]
        state = replace(state, model=back.model, layout=back.layout, plans=(*back.plans, whole))
    with job.stage("measure", "" if job.config.order == "together" else fresh[-1].group):
        cost, size = macs(state.model, job.example), parameters(state.model)
    last = len(fresh) - 1  # one figure after the cut of all of them
    fresh = [
        replace(outcome, accuracy=found if i == last else None, macs=cost, parameters=size)
        for i, outcome in enumerate(fresh)
    ]
    for outcome in fresh:
        if job.run:
            job.run.log("group", **outcome.to_document())
        if job.callbacks.on_group:
            job.callbacks.on_group(outcome)
    return replace(state, outcomes=(*state.outcomes[: -len(fresh)], *fresh), previous=None)


def _too_much(job: Job, state: State, found: float | None) -> str:
    """Why the last group is left whole, in words; "" where it keeps to the limit."""
    limit, base = job.config.limits.max_drop, job.before.get("holdout_accuracy")
    if limit is None or base is None or found is None or 100 * (base - found) <= limit:
        return ""
    drop = 100 * (base - found)
    return f"cutting to {len(state.plans[-1].kept)} cost {drop:.1f} points in all, {limit:g} are allowed: kept whole"


def _estimate(job: Job, state: State, evaluate: Batches | None, *, deciding: bool = False) -> None:
    """Tell whoever asks what will be needed; with nobody to tell, nothing is timed."""
    if job.callbacks.on_estimate:
        job.callbacks.on_estimate(estimated(job, state, evaluate, deciding=deciding))


def _started(job: Job, evaluate: Batches | None) -> tuple[Job, State, Progress | None]:
    """Where a run begins: at its last checkpoint, or with the unpruned network's figures."""
    checkpoint = job.fabric.broadcast(job.run.restore() if job.run else None)
    progress = None
    if checkpoint:
        state, progress = from_checkpoint(checkpoint, job.original, job.config.recover, job.hooks)
        job.clock.seconds.update(checkpoint.document["seconds"])
        job = replace(job, before=checkpoint.document["before"])
        _estimate(job, state, evaluate)
    else:
        with job.stage("measure"):
            before = measure(job.original, job.example).to_document()
            before["holdout_accuracy"] = held_out_accuracy(job, job.original)
        job = replace(job, before=before)
        _estimate(job, State(job.original), evaluate)
        state = planned_ahead(job)
        if state.ahead:  # else nothing is there that a run could go on from, and repaired data may take the folder
            keep(job, state)
    if job.callbacks.on_start:
        job.callbacks.on_start(job.groups, len(state.plans), dict(job.before))
    return job, state, progress
