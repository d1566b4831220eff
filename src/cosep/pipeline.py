"""prune(): the method from end to end. `_prune_group` is the method on one page, one line a stage."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.config import PruneConfig, preset, replace_settings, settings
from cosep.data.batches import check_loader
from cosep.errors import ConfigError
from cosep.groups import find_groups
from cosep.groups.numbering import channel_norms, consumer_norms, output_columns
from cosep.measurement import accuracy, compare, latency, macs, measure, parameters
from cosep.measurement.measurement import Measurement
from cosep.models.modes import laid_out_like
from cosep.observation import check_moments, observe, observe_histograms
from cosep.profiles import separability_space
from cosep.rebuilding import compensate, reestimate_batchnorm
from cosep.records import ClassMoments, Compensation, Group, GroupPlan, Plan, Selection
from cosep.recovery import Progress, recover
from cosep.reporting.folders import draw_page, write_evidence
from cosep.runs.fabric import batches_of_rank, launched, merged_over_ranks, same_weights_everywhere
from cosep.runs.folder import Run, opened, weights_digest
from cosep.runs.preflight import (
    LATENCY_REPEATS,
    accepted_model,
    blocks_around,
    budget,
    check_data,
    checked_widths,
    chosen_groups,
    classes_of,
    first_input,
    limited_widths,
)
from cosep.runs.state import (
    Batches,
    Callbacks,
    Choose,
    Clock,
    Job,
    Recover,
    State,
    calibration_pass,
    from_checkpoint,
    to_checkpoint,
)
from cosep.selection import balance, round_up, select, with_width
from cosep.storage.artifacts import is_saved, load, read_documents, save
from cosep.storage.folder import settle
from cosep.surgery import TwinCheck, copied, cut_checked, fingerprint

REPORT_FORMAT = 1


@dataclass(frozen=True, eq=False)
class PruneResult:
    """A smaller network, what was cut and why, and the figures."""

    model: nn.Module
    plan: Plan
    report: dict[str, Any]

    def save(self, folder: str | Path) -> Path:
        """Write the network, the plan and the report; `cosep.load` reads them back."""
        return save(folder, self.model, self.plan, self.report)


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
    choose: Choose | None = None,
    widths: Mapping[str, int] | None = None,
) -> PruneResult:
    """A smaller network from a trained one; the caller's model is left as it is.

    calibration: batches of (inputs, labels) for the statistics, and for recovery too unless `train` is given.
    evaluate: test batches; only reported. holdout: batches that decide where a limit needs an accuracy.
    run: a folder to work in; the same call goes on there where it was stopped. about: facts to keep in its config.toml,
    such as the names of the model and the data. recovery: your own, called with the network and a number of updates.
    choose: your own choice of channels, called with the network as it is, a group and the cuts so far.
    widths: how many channels of a group to keep, where that is not to be found from the group itself.
    """
    config = config or preset()
    callbacks = callbacks or Callbacks()
    model = accepted_model(model, config, trains=recovery is None)
    loaders = {"calibration": calibration, "train": train, "holdout": holdout, "evaluate": evaluate}
    for name, loader in loaders.items():
        if loader is not None or name == "calibration":
            check_loader(loader, name)
    if evaluate is not None and any(evaluate is part for part in (calibration, train, holdout)):
        warnings.warn(
            "evaluate is the same object as calibration, train or holdout: its accuracy is not that of unseen data. "
            "Give the test set as evaluate.",
            stacklevel=2,
        )
    if config.limits.max_drop < 100 and holdout is None:
        raise ConfigError(
            "limits.max_drop needs held-out data to measure the drop on, and `holdout` is None. "
            "Give batches that are neither trained on nor reported."
        )
    with ExitStack() as stack:
        # The caller's random numbers go on as if nothing had happened here.
        stack.enter_context(torch.random.fork_rng(devices=()))
        fabric = launched(config.device)
        folder = None
        if run is not None and fabric.is_global_zero:
            description = {"about": {**(about or {}), "weights_sha256": weights_digest(model)}, **settings(config)}
            description |= {"widths": dict(widths)} if widths else {}
            folder = stack.enter_context(opened(Path(run), description))
        if fabric.broadcast(folder is not None and is_saved(folder.folder)):
            assert run is not None
            plan, report = read_documents(run)
            result = PruneResult(load(run, model), plan, report)
            fabric.barrier()  # tidying moves files, so every process must have read them
            if folder:
                _tidied(folder)  # it may have been killed before it did
            return result
        original = fabric.to_device(copied(model))
        if config.device.channels_last:
            original = original.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        example = fabric.to_device(first_input(calibration) if example_input is None else example_input)[:1]
        classes = classes_of(original, example)
        config = replace_settings(config, {"observe": {"images": config.observe.images_for(classes)}})
        check_data(original, example, classes, loaders)
        train, batches_a_pass, updates_a_group = budget(calibration if train is None else train, config)
        groups, skipped = chosen_groups(find_groups(original, example), config)
        job = Job(
            config=config,
            fabric=fabric,
            original=original,
            example=example,
            classes=classes,
            groups=groups,
            skipped=skipped,
            calibration=calibration,
            train=train,
            holdout=holdout,
            batches_a_pass=batches_a_pass,
            updates_a_group=updates_a_group,
            callbacks=callbacks,
            recovery=recovery,
            choose=choose,
            run=folder,
            clock=Clock(),
            widths=checked_widths(widths or {}, groups),
        )
        job, state, progress = _started(job)
        if callbacks.on_start:
            callbacks.on_start(job.groups, len(state.plans), dict(job.before))
        while True:
            if state.waiting:
                state = _recovered(job, state, progress)
                progress = None
            elif len(state.plans) < len(job.groups):
                state = _prune_group(job, state, job.groups[len(state.plans)])
            elif config.recover.schedule == "final" and state.final is None and state.layout:
                state = replace(state, waiting=True)
            else:
                break
            _keep(job, state)
        return _finished(job, state, model, evaluate)


def _prune_group(job: Job, state: State, group: Group) -> State:
    """The method for one group, with statistics of the network as it is now."""
    if job.choose:
        selection = job.choose(state.model, group, state.layout)
    else:
        selection = _selected(job, state, group, record=job.run is not None)
    notes = list(selection.notes)
    check: TwinCheck | None = None
    repairs: tuple[Compensation, ...] = ()
    model, layout, seed = state.model, state.layout, job.config.seed
    if len(selection.kept) < group.width:
        prepared = copied(model)
        if job.config.surgery.compensate:
            with job.stage("compensate", group.name):
                prepared, repairs = compensate(
                    prepared,
                    group,
                    selection.kept,
                    layout,
                    calibration_pass(job, job.config.surgery.images),
                    job.config.surgery,
                    seed=seed,
                    cache=job.prefixes,
                    inplace=True,
                )
        with job.stage("cut", group.name):
            cut = cut_checked(prepared, group, selection.kept, layout, job.example, seed=seed)
        check = cut.check
        if check.equal:
            model, layout = cut.model, cut.layout
            if job.config.surgery.reestimate_batchnorm:
                with job.stage("batchnorm", group.name):
                    reestimate_batchnorm(model, calibration_pass(job, job.config.surgery.images))
            same_weights_everywhere(model, job.fabric)
        else:
            reason = f"the cut did not equal its masked twin ({check.reason}): kept whole"
            selection = replace(selection, kept=tuple(range(group.width)), reason=reason)
    entry = {
        "group": group.name,
        "width": group.width,
        "kept": len(selection.kept),
        "reason": selection.reason,
        "notes": notes,
        "twin_difference": check.max_difference if check else None,
        "compensation": [asdict(repair) for repair in repairs],
    }
    plan = GroupPlan(group.name, group.width, selection.kept, selection.reason, selection)
    was_cut = layout is not state.layout
    per_layer = was_cut and job.config.recover.schedule == "per-layer"
    limited = was_cut and job.config.limits.max_drop < 100
    new = State(
        model,
        layout,
        (*state.plans, plan),
        (*state.entries, entry),
        waiting=per_layer,
        previous=replace(state, previous=None) if limited else None,
    )
    return new if per_layer else _settled(job, new)


def _selected(job: Job, state: State, group: Group, *, record: bool) -> Selection:
    """Observe, profile, select; then the width that a limit asks for, equal blocks and rounding."""
    with job.stage("observe", group.name):
        # What could be wrong behind a layer is found before anything is cut. After that, passes end early. That may
        # leave a model's own lists half filled, so it is a copy that is watched.
        whole = not state.plans
        watched = state.model if whole else copied(state.model)
        moments = merged_over_ranks(
            observe(
                watched,
                batches_of_rank(calibration_pass(job, job.config.observe.images), job.fabric),
                group.producers,
                classes=job.classes,
                config=job.config.observe,
                partial=True,
                whole=whole,
            ),
            job.fabric,
        )
        for found in moments.values():
            check_moments(found)
        histograms = None
        if job.config.profile.metric == "jm-histogram":
            histograms = observe_histograms(
                copied(watched),
                calibration_pass(job, job.config.observe.images),
                group.producers,
                moments,
                config=job.config.observe,
            )
    with job.stage("profile", group.name):
        columns = [(p, column) for p in group.producers for column in output_columns(group, p, state.layout)]
        parts = [moments[p].of_channels(column) for p, column in columns]
        binned = [histograms[p].of_channels(column) for p, column in columns] if histograms else None
        salience = _salience(state, group, parts)
        space = separability_space(
            parts, job.config.profile, histograms=binned, salience=salience if job.config.profile.magnitude else None
        )
    with job.stage("select", group.name):
        weights = channel_norms(state.model, group, state.layout)
        scores = salience if job.config.select.representative == "salient" else None
        selection = select(space, weights=weights, scores=scores, config=job.config.select)
        if group.name in job.widths:
            selection = with_width(
                selection, space, job.widths[group.name], weights=weights, scores=scores, config=job.config.select
            )
        selection = round_up(selection, math.lcm(job.config.surgery.round_to, group.blocks), weights)
        selection = balance(selection, group.blocks, weights)
    if job.run and record:
        with job.stage("record", group.name):
            write_evidence(job.run, len(state.plans), group.name, parts, binned, space, weights, selection)
    return job.fabric.broadcast(selection)


def _salience(state: State, group: Group, moments: Sequence[ClassMoments]) -> Tensor:
    """What each channel passes on to the group's consumers: their weights' norm times its root mean square (width,)."""
    images = moments[0].count.sum()
    power = sum((m.scatter + m.count.unsqueeze(1) * m.mean.square()).sum(0) / images for m in moments)
    return consumer_norms(state.model, group, state.layout) * torch.as_tensor(power).sqrt().cpu()


def _recovered(job: Job, state: State, progress: Progress | None) -> State:
    """Train the network after its last cut, or at the end with the budget of all the groups that were cut."""
    final = job.config.recover.schedule == "final"
    cuts = sum(len(plan.kept) < plan.width for plan in state.plans)
    updates = job.updates_a_group * (cuts if final else 1)
    group = "" if final else state.plans[-1].group
    with job.stage("recover", group):
        if job.recovery:
            job.recovery(state.model, updates)
            entry = {"updates": updates, "outcome": "the caller's own recovery", "losses": []}
        else:
            done = recover(
                state.model,
                job.train,
                updates,
                job.config.recover,
                fabric=job.fabric,
                batches_a_pass=job.batches_a_pass,
                seed=job.config.seed,
                first_batch=_updates_so_far(state),
                teacher=job.original if job.config.recover.distill or job.config.recover.features else None,
                blocks=blocks_around(job.groups),
                progress=progress,
                checkpoint=_storing(job, state),
                on_update=_telling(job, progress.losses if progress else ()),
            )
            entry = {"updates": done.updates, "outcome": done.outcome, "losses": _thinned(done.losses)}
    same_weights_everywhere(state.model, job.fabric)  # BatchNorm's buffers follow each process's own batches
    if final:
        return replace(state, waiting=False, final={**entry, "accuracy": _held_out_accuracy(job, state.model)})
    entries = (*state.entries[:-1], {**state.entries[-1], "recovery": entry})
    return _settled(job, replace(state, entries=entries, waiting=False))


def _settled(job: Job, state: State) -> State:
    """The group's last figures; where it costs more accuracy than allowed, the network from before it."""
    entry = dict(state.entries[-1])
    entry["accuracy"] = _held_out_accuracy(job, state.model)
    limit, base = job.config.limits.max_drop, job.before.get("holdout_accuracy")
    if state.previous and 100 * (base - entry["accuracy"]) > limit:
        plan = state.plans[-1]
        drop = 100 * (base - entry["accuracy"])
        reason = f"cutting to {len(plan.kept)} cost {drop:.1f} points in all, {limit:g} are allowed: kept whole"
        whole = replace(plan, kept=tuple(range(plan.width)), reason=reason)
        entry |= {"kept": plan.width, "reason": reason, "accuracy": _held_out_accuracy(job, state.previous.model)}
        state = replace(state.previous, plans=(*state.previous.plans, whole), entries=state.entries)
    with job.stage("measure", entry["group"]):
        entry["macs"] = macs(state.model, job.example)
        entry["parameters"] = parameters(state.model)
    if job.run:
        job.run.log("group", **entry)
    if job.callbacks.on_group:
        job.callbacks.on_group(entry)
    return replace(state, entries=(*state.entries[:-1], entry), previous=None)


def _started(job: Job) -> tuple[Job, State, Progress | None]:
    """Where a run begins: at its last checkpoint, or with the unpruned network's figures and the limits' widths."""
    checkpoint = job.fabric.broadcast(job.run.restore() if job.run else None)
    if checkpoint:
        state, progress = from_checkpoint(checkpoint, job.original)
        stored = checkpoint.document
        job.clock.seconds.update(stored["seconds"])
        job = replace(job, before=stored["before"], widths=stored["widths"], limit_notes=tuple(stored["limit_notes"]))
        return job, state, progress
    with job.stage("measure"):
        before = measure(job.original, job.example).to_document()
        before["holdout_accuracy"] = _held_out_accuracy(job, job.original)
    job = replace(job, before=before)
    fits = limited_widths(job, lambda group: _selected(job, State(job.original), group, record=False))
    job = replace(
        job, widths={**(fits[-1].widths if fits else {}), **job.widths}, limit_notes=tuple(fit.note for fit in fits)
    )
    state = State(copied(job.original))
    _keep(job, state)
    return job, state, None


def _finished(job: Job, state: State, model: nn.Module, evaluate: Batches | None) -> PruneResult:
    """The figures of both networks, the plan and, in a run folder, the artifact."""
    before = {key: value for key, value in job.before.items() if key != "holdout_accuracy"}
    with job.stage("measure"):
        if evaluate is not None:
            before["accuracy"] = accuracy(job.original, evaluate)
        after = measure(state.model, job.example, evaluate)
        times = latency({"before": job.original, "after": state.model}, job.example, repeats=LATENCY_REPEATS)
    measured = {
        "before": Measurement.from_document({**before, "latency": asdict(times["before"])}),
        "after": replace(after, latency=times["after"]),
    }
    plan = Plan(state.plans, state.layout, fingerprint(model))
    report = {
        "format": REPORT_FORMAT,
        "settings": settings(job.config),
        "before": measured["before"].to_document(),
        "after": measured["after"].to_document(),
        "change": compare(measured["before"], measured["after"]).to_document(),
        "holdout_accuracy": {
            "before": job.before["holdout_accuracy"],
            "after": _held_out_accuracy(job, state.model),
        },
        "groups": list(state.entries),
        "not_pruned": [{"group": g.name, "width": g.width, "why": g.why_not} for g in job.skipped],
        "recovery": state.final,
        "limits": list(job.limit_notes),
        "seconds": {stage: round(seconds, 3) for stage, seconds in job.clock.seconds.items()},
    }
    pruned = laid_out_like(state.model.to(next(model.parameters()).device), model)
    result = PruneResult(pruned, plan, report)
    if job.run:
        # Logged before, so that the manifest can vouch for the log; if saving fails, the next start takes it back.
        # Overwriting, for a run that was killed while it saved may have left a part of the same artifact.
        job.run.log("finished", seconds=report["seconds"])
        save(job.run.folder, result.model, plan, report, beside=job.run.seals(), overwrite=True)
        _tidied(job.run)
    job.fabric.barrier()
    return result


def _tidied(run: Run) -> None:
    """Leave a run folder whose result is saved as every finished one: with its page, and nothing else left over."""
    settle(run.folder)
    draw_page(run.folder)
    run.drop_checkpoint()


def _keep(job: Job, state: State, progress: Progress | None = None) -> None:
    if job.run:
        job.run.store(to_checkpoint(job, state, progress))


def _storing(job: Job, state: State) -> Callable[[int, Callable[[], Progress]], None]:
    """Store a recovery's progress now and then."""
    last = time.monotonic()

    def checkpoint(_done: int, progress: Callable[[], Progress]) -> None:
        nonlocal last
        if job.run and time.monotonic() - last >= job.config.checkpoint_seconds:
            _keep(job, state, progress())
            last = time.monotonic()

    return checkpoint


def _telling(job: Job, earlier: tuple[float, ...]) -> Callable[[int, int, float], None]:
    """Tell the caller of updates, and of passes over the training data; `earlier` losses are those before a restart."""
    losses = list(earlier[len(earlier) - len(earlier) % job.batches_a_pass :])

    def on_update(done: int, updates: int, loss: float) -> None:
        losses.append(loss)
        if job.callbacks.on_update:
            job.callbacks.on_update(done, updates, loss)
        if done % job.batches_a_pass == 0 or done == updates:
            passes = -(-done // job.batches_a_pass)
            mean = sum(losses) / len(losses)
            if job.run:
                job.run.log("epoch", number=passes, updates=done, loss=mean)
            if job.callbacks.on_epoch:
                job.callbacks.on_epoch(passes, mean)
            losses.clear()

    return on_update


def _held_out_accuracy(job: Job, model: nn.Module) -> float | None:
    if job.holdout is None:
        return None
    with job.clock.timed("measure"):
        return accuracy(model, job.holdout)


def _thinned(values: tuple[float, ...], most: int = 200) -> list[float]:
    """The curve in at most so many points, each the mean of as many values."""
    size = -(-len(values) // most) or 1
    return [round(sum(part) / len(part), 6) for i in range(0, len(values), size) if (part := values[i : i + size])]


def _updates_so_far(state: State) -> int:
    return sum(entry["recovery"]["updates"] for entry in state.entries if "recovery" in entry)
