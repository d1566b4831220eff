"""What a user sees while a run goes on: a bar with the time left, or lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cosep.cli.common import console, printable
from cosep.records import Group, Outcome
from cosep.reporting.words import duration
from cosep.runs.state import Callbacks

WORDS = {
    "observe": "observing",
    "profile": "comparing channels",
    "select": "selecting",
    "record": "recording",
    "look": "looking at what layers read",
    "damage": "measuring what each group is worth",
    "search": "trying sizes",
    "cut": "cutting",
    "rebuild": "rebuilding",
    "batchnorm": "re-estimating BatchNorm",
    "recover": "recovering",
    "measure": "measuring",
}


@contextmanager
def shown(*, quiet: bool, run: Path) -> Iterator[Callbacks]:
    """Callbacks that draw the progress; Ctrl-C says how to go on."""
    try:
        if quiet:
            yield Callbacks()
        elif not console.is_terminal:
            yield _Lines().callbacks()
        else:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=console, transient=True) as progress:
                yield _Screen(progress).callbacks()
    except KeyboardInterrupt:
        print(f"cosep: stopped; the same command goes on in {run}", file=sys.stderr)
        sys.exit(130)


def words_of(stage: str, group: str = "") -> str:
    """A stage as a user reads it."""
    return f"{group}  {WORDS.get(stage, stage)}" if group else WORDS.get(stage, stage)


class _Screen:
    """The bars of one run: what goes on, with a clock that moves from the start, and the updates of a training."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.now: TaskID = progress.add_task("starting", total=None)
        self.updates: TaskID | None = None
        self.macs, self.groups, self.done = 0, 0, 0

    def callbacks(self) -> Callbacks:
        return Callbacks(on_start=self.start, on_stage=self.stage, on_group=self.group, on_update=self.update)

    def start(self, groups: tuple[Group, ...], done: int, before: dict[str, Any]) -> None:
        self.macs, self.groups, self.done = before["macs"], len(groups), done
        if done:
            self.progress.console.print(f"going on after {done} of {len(groups)} groups")

    def stage(self, group: str, name: str) -> None:
        self.progress.update(self.now, description=words_of(name, group))

    def update(self, done: int, total: int, loss: float) -> None:
        if self.updates is None:
            self.updates = self.progress.add_task("", total=total)
        self.progress.update(
            self.updates, completed=done, total=total, description=f"updates, loss {loss:.3f}", visible=done < total
        )

    def group(self, outcome: Outcome) -> None:
        self.progress.console.print(group_line(outcome, self.macs), highlight=False, markup=False, soft_wrap=True)
        self.done += 1
        self.progress.update(self.now, completed=self.done, total=self.groups)


class _Lines:
    """One line for every stage of the whole network, every group, and every tenth of a training."""

    def __init__(self) -> None:
        self.macs = 0
        self.last = ""
        self.began = 0.0

    def callbacks(self) -> Callbacks:
        return Callbacks(on_start=self.start, on_stage=self.stage, on_group=self.group, on_update=self.update)

    def say(self, text: str) -> None:
        console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def start(self, groups: tuple[Group, ...], done: int, before: dict[str, Any]) -> None:
        self.macs = before["macs"]
        going_on = f", going on after {done}" if done else ""
        self.say(f"{len(groups)} groups of channels may be cut{going_on}")

    def stage(self, group: str, name: str) -> None:
        if name != self.last and not group:
            self.say(words_of(name))
            self.last = name
        if name == "recover":
            self.began = time.monotonic()

    def update(self, done: int, total: int, loss: float) -> None:
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            now = time.monotonic()
            left = "" if done == total else f", about {duration((now - self.began) / done * (total - done))} left"
            self.say(f"update {done:,} of {total:,}, loss {loss:.3f}{left}")

    def group(self, outcome: Outcome) -> None:
        self.say(group_line(outcome, self.macs))


def group_line(outcome: Outcome, macs: float) -> str:
    """One group in one line: layer2.3.conv1  32 -> 16  knee  acc 92.9  MACs 61 %."""
    accuracy = "" if outcome.accuracy is None else f"  acc {100 * outcome.accuracy:.1f}"
    sizes = f"{outcome.width:>4} -> {outcome.kept:<4}"
    line = f"{outcome.group:<24} {sizes}  {outcome.reason}{accuracy}  MACs {100 * outcome.macs / macs:.0f} %"
    return printable(line)
