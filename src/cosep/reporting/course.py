"""Where a run is and how long it will still take: what was expected, corrected by what was seen. [pure]"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

# Stages that come one after the other where all groups go together: when one begins, those before it are over.
ORDER = ("observe", "look", "damage", "search", "rebuild", "batchnorm", "recover", "measure")
SLOWEST, FASTEST = 4.0, 0.25  # beyond these, what was seen says more of a disturbance than of the machine


class Course:
    """The time of a run, told stage by stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._entered = clock()
        self._now = ""
        self._expected: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._rounds, self._done, self._planned_at = 0, 0, self._began
        self._updates: tuple[int, int, int, float] | None = None  # first seen, done, of how many, when first seen
        self._trained = False  # whether the last update of a training was seen

    def expect(self, seconds: Mapping[str, float], rounds: int = 0) -> None:
        """What is still to come, in seconds of each stage; `rounds`: how many groups or sizes come one by one."""
        self._expected, self._spent = dict(seconds), {}
        self._rounds, self._done, self._planned_at = rounds, 0, self._clock()
        self._entered = self._clock()
        self._updates, self._trained = None, False

    def enter(self, stage: str) -> None:
        """A stage begins."""
        now = self._clock()
        self._spent[self._now] = self._spent.get(self._now, 0.0) + now - self._entered
        if stage != self._now:
            self._updates = None
        self._now, self._entered = stage, now

    def round(self) -> None:
        """One of those that come one by one is done."""
        self._done += 1

    def update(self, done: int, of: int) -> None:
        """An update of a training is done."""
        if self._updates is None or self._updates[2] != of or done < self._updates[1]:
            self._updates = (done, done, of, self._clock())
        else:
            self._updates = (self._updates[0], done, of, self._updates[3])
        self._trained = done >= of

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def rate(self) -> float | None:
        """Updates a second; None where there are none yet."""
        if self._updates is None or self._updates[1] == self._updates[0]:
            return None
        first, done, _, since = self._updates
        return (done - first) / max(1e-9, self._clock() - since)

    @property
    def updates(self) -> tuple[int, int] | None:
        """Updates done, and of how many."""
        return None if self._updates is None else (self._updates[1], self._updates[2])

    @property
    def left(self) -> float | None:
        """Seconds still to come; None where nobody knows."""
        if not self._expected:
            return None
        if self._rounds > self._done > 0:
            each = (self._clock() - self._planned_at) / self._done
            later = "recover" in self._expected and "recover" not in (*self._spent, self._now)
            return each * (self._rounds - self._done) + (self._left_of("recover") if later else 0.0)
        left = ("recover", "measure") if self._rounds and self._done else tuple(self._expected)
        return sum(self._left_of(stage) for stage in left if stage in self._expected)

    @property
    def share(self) -> float:
        """How much of the time is over, from 0 to 1."""
        left = self.left
        return 0.0 if left is None else self.elapsed / max(1e-9, self.elapsed + left)

    def _left_of(self, stage: str) -> float:
        spent = self._spent.get(stage, 0.0)
        if stage == "recover" and self._trained:
            return 0.0
        if stage == self._now:
            if stage == "recover" and self._updates and self.rate:
                return (self._updates[2] - self._updates[1]) / self.rate
            spent += self._clock() - self._entered
        elif self._is_over(stage):
            return 0.0
        return max(0.0, self._expected[stage] * self._pace() - spent)

    def _is_over(self, stage: str) -> bool:
        """Whether a later stage has begun; figures are measured here and there, but most of them at the end."""
        later = ORDER[ORDER.index(stage) + 1 : -1] if stage in ORDER[:-1] else ()
        return not self._rounds and any(name == self._now or name in self._spent for name in later)

    def _pace(self) -> float:
        """How much slower than expected it goes, from the stages that are over.

        Short ones say little of long ones: what was expected counts as if a half of all had gone that way.
        """
        over = [stage for stage in self._expected if self._is_over(stage) and self._spent.get(stage)]
        expected = sum(self._expected[stage] for stage in over)
        seen = sum(self._spent[stage] for stage in over)
        trusted = sum(self._expected.values()) / 2
        pace = (seen + trusted) / (expected + trusted) if expected else 1.0
        return min(SLOWEST, max(FASTEST, pace))
