"""What a user sees while a run goes on: a bar with the time left, and a line for every group that is done."""

from __future__ import annotations

import sys
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


class _Screen:
    """The bars of one run."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.groups: TaskID | None = None
        self.updates: TaskID | None = None
        self.macs = 0

    def callbacks(self) -> Callbacks:
        return Callbacks(on_start=self.start, on_stage=self.stage, on_group=self.group, on_update=self.update)

    def start(self, groups: tuple[Group, ...], done: int, before: dict[str, Any]) -> None:
        self.macs = before["macs"]
        self.groups = self.progress.add_task("groups", total=len(groups), completed=done)
        if done:
            self.progress.console.print(f"going on after {done} of {len(groups)} groups")

    def stage(self, group: str, name: str) -> None:
        if self.groups is not None:
            text = f"{group}  {WORDS.get(name, name)}" if group else WORDS.get(name, name)
            self.progress.update(self.groups, description=text)

    def update(self, done: int, total: int, loss: float) -> None:
        if self.updates is None:
            self.updates = self.progress.add_task("", total=total)
        self.progress.update(
            self.updates, completed=done, total=total, description=f"updates, loss {loss:.3f}", visible=done < total
        )

    def group(self, outcome: Outcome) -> None:
        self.progress.console.print(group_line(outcome, self.macs), highlight=False, markup=False, soft_wrap=True)
        if self.groups is not None:
            self.progress.advance(self.groups)


def group_line(outcome: Outcome, macs: float) -> str:
    """One group in one line: layer2.3.conv1  32 -> 16  knee  acc 92.9  MACs 61 %."""
    accuracy = "" if outcome.accuracy is None else f"  acc {100 * outcome.accuracy:.1f}"
    sizes = f"{outcome.width:>4} -> {outcome.kept:<4}"
    line = f"{outcome.group:<24} {sizes}  {outcome.reason}{accuracy}  MACs {100 * outcome.macs / macs:.0f} %"
    return printable(line)
