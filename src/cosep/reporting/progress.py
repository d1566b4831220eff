"""What a user sees while a run goes on: bars with the time left on a terminal or in a notebook, else lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.errors import LiveError
from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from cosep.records import Group, Outcome, counted
from cosep.reporting.course import Course
from cosep.reporting.words import duration, printable
from cosep.runs.state import Callbacks

if TYPE_CHECKING:
    from cosep.runs.estimating import Estimate
    from cosep.runs.sweeping import Size

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
    "train": "training",
}

REDRAWN = 0.25  # seconds between two drawings in a notebook, while updates go by

_showing: ContextVar[bool] = ContextVar("showing", default=False)


@contextmanager
def watched(callbacks: Callbacks, wanted: bool | None) -> Iterator[Callbacks]:
    """Callbacks that also show the progress: always with True, never with False, else where somebody is looking.

    A run inside of something that shows its progress already is not shown twice.
    """
    console = Console(stderr=True)
    looking = console.is_terminal or console.is_jupyter
    if wanted is False or _showing.get() or not (wanted or looking):
        yield callbacks
        return
    with shown_on(console, groups=False) as told:
        yield joined(callbacks, told)


@contextmanager
def shown_on(console: Console, *, groups: bool) -> Iterator[Callbacks]:
    """Callbacks that draw on a console; `groups`: with a line for every group."""
    token = _showing.set(True)
    try:
        if console.is_jupyter:
            with Cell() as cell:
                yield cell.callbacks()
            return
        with _bars(console) as progress:
            yield (Lines(console) if progress is None else Screen(progress, groups=groups)).callbacks()
    finally:
        _showing.reset(token)


@contextmanager
def muted() -> Iterator[Callbacks]:
    """Callbacks that say nothing, and nothing is shown inside."""
    token = _showing.set(True)
    try:
        yield Callbacks()
    finally:
        _showing.reset(token)


@contextmanager
def training_shown(console: Console, name: str = "training") -> Iterator[Callable[[int, int, float], None] | None]:
    """What to call after every update of a training, to draw a bar of it; None where there is no terminal."""
    with _bars(console) as progress:
        if progress is None:
            yield None
            return
        screen = Screen(progress, groups=False)
        screen.stage("", name)
        yield screen.update


@contextmanager
def _bars(console: Console) -> Iterator[Progress | None]:
    """Bars on a console; None where it can draw none."""
    if not console.is_terminal:
        yield None
        return
    progress = Progress(TextColumn("{task.description}"), _Bar(), _Time(), console=console, transient=True)
    try:
        progress.start()
    except LiveError:  # the caller draws something there
        yield None
        return
    try:
        yield progress
    finally:
        progress.stop()


def joined(first: Callbacks, second: Callbacks) -> Callbacks:
    """Callbacks that call both."""

    def both(one: Callable[..., None] | None, other: Callable[..., None] | None) -> Callable[..., None] | None:
        if one is None or other is None:
            return one or other

        def call(*facts: Any) -> None:
            one(*facts)
            other(*facts)

        return call

    return Callbacks(**{f.name: both(getattr(first, f.name), getattr(second, f.name)) for f in fields(Callbacks)})


def words_of(stage: str, group: str = "") -> str:
    """A stage as a user reads it."""
    return f"{group}  {WORDS.get(stage, stage)}" if group else WORDS.get(stage, stage)


class _Bar(ProgressColumn):
    """How much is over: of the time of the whole run, or of the updates. Drawn anew as the time goes by."""

    max_refresh = None

    def render(self, task: Task) -> RenderableType:
        course: Course = task.fields["course"]
        if task.fields["row"] == "updates":
            done, of = course.updates or (0, 1)
            return ProgressBar(total=of, completed=done, width=30)
        if course.left is None:
            return ProgressBar(total=None, pulse=True, width=30)
        return ProgressBar(total=1.0, completed=course.share, width=30)


class _Time(ProgressColumn):
    """The clock and what is left; of updates their number and rate."""

    max_refresh = None

    def render(self, task: Task) -> Text:
        course: Course = task.fields["course"]
        if task.fields["row"] == "updates":
            return Text(updates_line(course), style="progress.data.speed")
        return Text(time_line(course), style="progress.elapsed")


def time_line(course: Course) -> str:
    """The clock of a run, and what is left."""
    left = course.left
    return _clock(course.elapsed) + ("" if left is None else f", about {duration(left)} left")


def updates_line(course: Course) -> str:
    """The updates of a training: how many, of how many, and how fast."""
    done, of = course.updates or (0, 0)
    rate = "" if course.rate is None else f", {course.rate:.3g} updates/s"
    return f"{done:,} of {of:,}{rate}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class Screen:
    """The bars of a run: what goes on, with a clock and the time left of all of it; and the updates of a training."""

    def __init__(self, progress: Progress, *, groups: bool) -> None:
        self.progress, self.shows_groups = progress, groups
        self.course = Course()
        self.now: TaskID = progress.add_task("starting", total=None, course=self.course, row="run")
        self.updates: TaskID | None = None
        self.macs = 0

    def callbacks(self) -> Callbacks:
        return Callbacks(
            on_start=self.start,
            on_estimate=self.estimate,
            on_stage=self.stage,
            on_group=self.group,
            on_size=self.size,
            on_update=self.update,
        )

    def start(self, groups: tuple[Group, ...], done: int, before: dict[str, Any]) -> None:
        self.macs = before["macs"]
        if done and self.shows_groups:
            self.progress.console.print(f"going on after {done} of {len(groups)} groups")

    def estimate(self, found: Estimate) -> None:
        self.course.expect(found.seconds, found.rounds)
        if self.shows_groups:
            self.progress.console.print(estimate_line(found), highlight=False)

    def stage(self, group: str, name: str) -> None:
        self.course.enter(name)
        self.progress.update(self.now, description=words_of(name, group), refresh=True)  # however short it is
        if self.updates is not None and name != "recover":
            self.progress.remove_task(self.updates)
            self.updates = None

    def update(self, done: int, total: int, loss: float) -> None:
        self.course.update(done, total)
        if self.updates is None:
            self.updates = self.progress.add_task("", total=None, course=self.course, row="updates")
        self.progress.update(self.updates, description=f"updates, loss {loss:.3f}")

    def group(self, outcome: Outcome) -> None:
        self.course.round()
        if self.shows_groups:
            line = group_line(outcome, self.macs)
            self.progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def size(self, size: Size) -> None:
        self.course.round()
        if self.shows_groups:
            self.progress.console.print(size_line(size), highlight=False, soft_wrap=True)


class Cell:
    """The same bars below a cell of a notebook, replaced as time goes by through IPython itself: no widgets needed."""

    def __init__(self) -> None:
        self.course = Course()
        self.words, self.loss = "starting", 0.0
        self._drawn, self._over = 0.0, threading.Event()
        self._handle: Any = None
        self._clock = threading.Thread(target=self._tick, daemon=True)  # moves while one stage lasts

    def __enter__(self) -> Cell:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML(self.html()), display_id=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._handle.update(self._html(""))

    def callbacks(self) -> Callbacks:
        return Callbacks(
            on_estimate=lambda found: self.course.expect(found.seconds, found.rounds),
            on_stage=self.stage,
            on_group=lambda outcome: self.course.round(),
            on_size=lambda size: self.course.round(),
            on_update=self.update,
        )

    def stage(self, group: str, name: str) -> None:
        self.course.enter(name)
        self.words = words_of(name, group)
        self.draw()

    def update(self, done: int, total: int, loss: float) -> None:
        self.course.update(done, total)
        self.loss = loss
        if time.monotonic() - self._drawn >= REDRAWN:
            self.draw()

    def draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._html(self.html()))

    def html(self) -> str:
        """What goes on, how much of the time is over, and the updates of a training."""
        known = "" if self.course.left is None else f' value="{self.course.share:.3f}"'
        rows = [f"{escape(printable(self.words))} <progress{known}></progress> {time_line(self.course)}"]
        if self.course.updates:
            done, of = self.course.updates
            rows.append(
                f'updates, loss {self.loss:.3f} <progress value="{done}" max="{of}"></progress> '
                f"{updates_line(self.course)}"
            )
        return "<br>".join(rows)

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            self.draw()


class Lines:
    """One line for every stage of the whole network, every group, and every tenth of a training."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.course = Course()
        self.macs = 0
        self.last = ""

    def callbacks(self) -> Callbacks:
        return Callbacks(
            on_start=self.start,
            on_estimate=self.estimate,
            on_stage=self.stage,
            on_group=self.group,
            on_size=self.size,
            on_update=self.update,
        )

    def say(self, text: str) -> None:
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def start(self, groups: tuple[Group, ...], done: int, before: dict[str, Any]) -> None:
        self.macs = before["macs"]
        going_on = f", going on after {done}" if done else ""
        units = " and ".join(f"{unit}s" for unit in ("head", "channel") if any(group.unit == unit for group in groups))
        groups_of = "group" if len(groups) == 1 else "groups"
        self.say(f"{len(groups)} {groups_of} of {units or 'channels'} may be cut{going_on}")

    def estimate(self, found: Estimate) -> None:
        self.course.expect(found.seconds, found.rounds)
        self.say(estimate_line(found))

    def stage(self, group: str, name: str) -> None:
        self.course.enter(name)
        if name != self.last and not group:
            self.say(words_of(name))
            self.last = name

    def update(self, done: int, total: int, loss: float) -> None:
        self.course.update(done, total)
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            rate = self.course.rate
            left = "" if done == total or not rate else f", about {duration((total - done) / rate)} left"
            self.say(f"update {done:,} of {total:,}, loss {loss:.3f}{left}")

    def group(self, outcome: Outcome) -> None:
        self.course.round()
        self.say(group_line(outcome, self.macs))

    def size(self, size: Size) -> None:
        self.course.round()
        self.say(size_line(size))


def size_line(size: Size) -> str:
    """One size of a sweep in a line."""
    accuracy = "" if size.score is None else f", accuracy {100 * size.score:.2f} %"
    return f"{100 * size.macs:.1f} % of the MACs, {size.milliseconds:.3g} ms{accuracy}"


def estimate_line(found: Estimate) -> str:
    """What a run will need, in a line."""
    memory = f" and {found.bytes / 1e9:.1f} GB of memory" if found.bytes else ""
    return f"this will take about {duration(found.in_all)}{memory}"


def group_line(outcome: Outcome, macs: float) -> str:
    """One group in one line: layer2.3.conv1  32 -> 16  knee  acc 92.9  MACs 61 %."""
    accuracy = "" if outcome.accuracy is None else f"  acc {100 * outcome.accuracy:.1f}"
    kept = counted(outcome.kept, "head") if outcome.unit == "head" else str(outcome.kept)
    sizes = f"{outcome.width:>4} -> {kept:<4}"
    line = f"{outcome.group:<24} {sizes}  {outcome.why}{accuracy}  MACs {100 * outcome.macs / macs:.0f} %"
    return printable(line)
