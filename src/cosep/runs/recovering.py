"""Recovery within a run: its budget, what is stored and told on the way, and its entry in the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from cosep.config import RecoverConfig
from cosep.measurement import accuracy
from cosep.records import RecoveryRecord
from cosep.recovery import Progress, recover
from cosep.runs.fabric import same_weights_everywhere
from cosep.runs.judging import points_gained
from cosep.runs.preflight import blocks_around
from cosep.runs.state import Batches, Job, State, to_checkpoint

LEAST_UPDATES = 200  # of a training whose length nobody gave: fewer mean nothing
SHOWN_IMAGES = 500  # held out, behind the accuracy after each of many cuts where only the page shows it


def recovered(job: Job, state: State, progress: Progress | None) -> State:
    """Train the network after its last cut, or at the end with the budget of all the groups that were cut."""
    final = job.config.recover.schedule == "final"
    updates, _ = updates_of(job, state)
    group = "" if final else state.plans[-1].group
    with job.stage("recover", group):
        record = _trained(job, state, updates, progress)
    same_weights_everywhere(state.model, job.fabric)  # BatchNorm's buffers follow each process's own batches
    if final:
        return _better(job, state, replace(record, accuracy=held_out_accuracy(job, state.model)))
    outcomes = (*state.outcomes[:-1], replace(state.outcomes[-1], recovery=record))
    return replace(state, outcomes=outcomes, waiting=False)


def updates_of(job: Job, state: State) -> tuple[int, str]:
    """How long the next recovery is, and why, in words; a length that the caller gave is kept to."""
    final, recover = job.config.recover.schedule == "final", job.config.recover
    if job.updates_in_all is not None:
        share = job.updates_in_all if final else _share_of_group(job, state, job.updates_in_all)
        return share, f"recover.epochs is {recover.epochs:g}"
    if not final:
        return job.updates_a_group, "the share of one group"
    cuts = sum(len(plan.kept) < plan.width for plan in state.plans)
    updates = job.updates_a_group * cuts
    usual = RecoverConfig()
    if updates < LEAST_UPDATES and (recover.group_epochs, recover.share) == (usual.group_epochs, usual.share):
        return LEAST_UPDATES, f"the least by default; the data and {cuts} cut groups would give {updates}"
    each = f"{recover.group_epochs:g} passes over {100 * recover.share:g} % of the data"
    return updates, f"{each} for each of {cuts} cut groups"


def planned_updates(job: Job, state: State) -> int:
    """How many updates are still to come, about: that a group is cut is not known before its turn."""
    if job.updates_in_all is not None:
        return job.updates_in_all
    left = len(job.groups) - len(state.plans)
    cuts = sum(len(plan.kept) < plan.width for plan in state.plans)
    if job.config.recover.schedule == "per-layer":
        return (left + state.waiting) * job.updates_a_group
    return max(job.updates_a_group * (cuts + left), LEAST_UPDATES if job.updates_a_group else 0)


def _share_of_group(job: Job, state: State, in_all: int) -> int:
    """The updates of the group that was cut last: what is left, shared with the groups that may still be cut.

    So what a group left whole did not use goes to those behind it. One by one, only widths that were given or decided
    ahead say which ones these are.
    """
    spent = sum(outcome.recovery.updates for outcome in state.outcomes if outcome.recovery)
    known = {**state.ahead, **job.given}
    left = [group for group in job.groups[len(state.plans) :] if known.get(group.name, 0) < group.width]
    return max(1, round((in_all - spent) / (1 + len(left))))


def length_in_words(job: Job, state: State) -> tuple[str, ...]:
    """What the report says of how long was trained at the end; nothing where there was no such training."""
    if state.final is None or job.recovery:
        return ()
    _, why = updates_of(job, state)
    passes = state.final.updates / job.batches_a_pass
    return (f"trained for {state.final.updates:,} updates, {passes:.3g} passes over the training data ({why})",)


def _better(job: Job, state: State, record: RecoveryRecord) -> State:
    """The network after the training or the one from before it, whichever is better on images that decide."""
    before = state.previous
    done = replace(state, waiting=False, final=record, previous=None)
    if before is None:
        return done
    with job.stage("measure"):
        gained, where = points_gained(job, before.model, state.model)
    if gained >= 0:
        return done
    outcome = f"taken back: on {where} it lost {-gained:.2f} points more than the network had lost without it"
    if not job.recovery and not (job.hooks and job.hooks.optimizer):  # the rate is ours
        outcome += f"; a rate (recover.lr) below {job.config.recover.lr:g} may do better"
    return replace(done, model=before.model, final=replace(record, outcome=outcome, kept=False))


def _trained(job: Job, state: State, updates: int, progress: Progress | None) -> RecoveryRecord:
    """Train in place, and what became of it."""
    if job.recovery:
        job.recovery(state.model, updates)
        return RecoveryRecord(updates, "the caller's own recovery", ())
    done = recover(
        state.model,
        job.train,
        updates,
        job.config.recover,
        fabric=job.fabric,
        batches_a_pass=job.batches_a_pass,
        seed=job.config.seed,
        first_batch=sum(outcome.recovery.updates for outcome in state.outcomes if outcome.recovery),
        teacher=job.original if job.config.recover.distill or job.config.recover.features else None,
        blocks=blocks_around(job.groups),
        progress=progress,
        checkpoint=_storing(job, state),
        on_update=_telling(job, progress.losses if progress else ()),
        hooks=job.hooks,
    )
    return RecoveryRecord(done.updates, done.outcome, _thinned(done.losses))


def keep(job: Job, state: State, progress: Progress | None = None) -> None:
    """Store the position of a run that has a folder."""
    if job.run:
        job.run.store(to_checkpoint(job, state, progress))


def held_out_accuracy(job: Job, model: nn.Module, images: int = 0) -> float | None:
    """The accuracy on the held-out images, or on about the first so many; None without held-out data.

    The first process's in all of them, since cuts are taken back by it.
    """
    if job.holdout is None:
        return None
    with job.clock.timed("measure"):
        found = accuracy(model, _about_first(job.holdout, images) if images else job.holdout)
    return float(job.fabric.broadcast(found))


def accuracy_after(job: Job, state: State) -> float | None:
    """The held-out accuracy of the finished network; not measured again where it was after the last cut."""
    if job.config.order == "together" and state.final is None and state.outcomes:
        return state.outcomes[-1].accuracy
    return held_out_accuracy(job, state.model)


def _about_first(batches: Batches, images: int) -> Iterator[Any]:
    """Whole batches, until they hold so many images."""
    seen = 0
    for batch in batches:
        yield batch
        seen += len(batch[0])
        if seen >= images:
            return


def _storing(job: Job, state: State) -> Callable[[int, Callable[[], Progress]], None]:
    """Store a recovery's progress now and then."""
    last = time.monotonic()

    def checkpoint(_done: int, progress: Callable[[], Progress]) -> None:
        nonlocal last
        if job.run and time.monotonic() - last >= job.config.checkpoint_seconds:
            keep(job, state, progress())
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


def _thinned(values: tuple[float, ...], most: int = 200) -> tuple[float, ...]:
    """The curve in at most so many points, each the mean of as many values."""
    size = -(-len(values) // most) or 1
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    return tuple(round(sum(part) / len(part), 6) for part in parts)
