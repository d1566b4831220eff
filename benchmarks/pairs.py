"""Two things timed in turns, so that other load on the machine meets both alike."""

from __future__ import annotations

import time
from collections.abc import Callable

Work = Callable[[], None]


def in_turns(one: Work, other: Work, repeats: int) -> tuple[list[float], list[float]]:
    """The seconds of each, pair by pair, after one warm-up."""
    seconds(one), seconds(other)
    times: dict[Work, list[float]] = {one: [], other: []}
    for turn in range(repeats):
        # The order within a pair alternates, so that neither is always the one with the warmer cache.
        for run in (one, other) if turn % 2 else (other, one):
            times[run].append(seconds(run))
    return times[one], times[other]


def ratios(one: list[float], other: list[float]) -> list[float]:
    """The ratio within each pair."""
    return [a / b for a, b in zip(one, other, strict=True)]


def seconds(run: Work) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
