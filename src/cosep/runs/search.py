"""How much, unasked: the smallest size whose measured loss before any training stays within a tolerance.

One measurement of damage serves every size. A bisection over the share of MACs cuts and rebuilds the network at five or
six of them, and the loss of each is measured on held-out images (or on calibration images that no fit has seen).
"""

from __future__ import annotations

from dataclasses import replace

from cosep.records import Tried
from cosep.runs.state import Job, State
from cosep.selection.rules import Widths

# Points that may be lost before training: training gives most of them back (see docs/results.md for the measurement).
TOLERANCE = 3.0
TOLERANCE_UNTRAINED = 1.0
STEPS = 6
LARGEST, SMALLEST = 1.0, 0.15  # shares of the MACs between which is searched


def searches(job: Job) -> bool:
    """Whether a run has to find out by itself how much to cut."""
    limits = job.config.limits
    return (
        job.config.order == "together"
        and job.rule.name == "damage"
        and not limits.on_size
        and not {group.name for group in job.groups} <= job.given.keys()
    )


def tolerance(job: Job) -> float:
    """The points that may be lost before training."""
    if job.config.limits.max_drop is not None:
        return job.config.limits.max_drop
    return TOLERANCE if job.trains else TOLERANCE_UNTRAINED


def next_share(job: Job, state: State) -> float | None:
    """The share of MACs to try next; None where the search is at its end, or there is none."""
    if not searches(job) or len(state.tried) >= STEPS:
        return None
    low, high = _bounds(job, state)
    return (low + high) / 2


def found_share(job: Job, state: State) -> float | None:
    """The share of MACs that a finished search settled on; None where there was none."""
    if not searches(job):
        return None
    return _bounds(job, state)[1]


def _bounds(job: Job, state: State) -> tuple[float, float]:
    """The largest share known to lose too much, and the smallest known to be good."""
    low, high = SMALLEST, LARGEST
    for each in state.tried:
        if each.drop <= tolerance(job):
            high = min(high, each.share)
        else:
            low = max(low, each.share)
    return low, high


def with_tried(state: State, share: float, drop: float) -> State:
    """The state after one more size was tried."""
    return replace(state, tried=(*state.tried, Tried(share, drop)))


def as_found(job: Job, decided: Widths) -> Widths:
    """Widths whose reasons name the size that was found where no limit was given."""
    if not searches(job):
        return decided
    named = {
        name: replace(width, reason=width.reason.replace("limit on MACs", "size that was found"))
        for name, width in decided.widths.items()
    }
    return replace(decided, widths=named)


def searched_words(job: Job, state: State) -> tuple[str, ...]:
    """What is said of the search: the curve that the amount was read from."""
    if not state.tried:
        return ()
    share = found_share(job, state)
    points = ", ".join(f"{100 * t.share:.0f} % {t.drop:+.1f}" for t in sorted(state.tried, key=lambda t: -t.share))
    return (
        f"no limit was given: the smallest size that loses at most {tolerance(job):g} points before training has "
        f"{100 * (share or 1):.0f} % of the MACs (MACs and points lost: {points})",
    )
