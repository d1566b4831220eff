"""What a user sees while a run goes on: on a terminal that is really there, in a log, and in Python."""

import io
import os
import pty
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from rich.console import Console
from torch import nn

import cosep
from cosep.records import Group, Outcome
from cosep.reporting.course import Course
from cosep.reporting.progress import WORDS, Lines, joined, shown_on, training_shown
from cosep.runs.estimating import Estimate

OUTCOME = Outcome("layer1.conv1", 16, 8, "a reason", macs=60, parameters=9, accuracy=0.9)
FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "select": {"criterion": "l2", "width_rule": "uniform"},
    "device": {"accelerator": "cpu"},
}


@contextmanager
def terminal():
    """A pseudo-terminal as standard error, and what was written to it."""
    theirs, ours = pty.openpty()
    seen = []

    def read():
        while True:
            try:
                part = os.read(theirs, 4096)
            except OSError:  # closed at the other end
                return
            if not part:
                return
            seen.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    before = sys.stderr
    with os.fdopen(ours, "w", encoding="utf-8") as file:
        sys.stderr = file
        try:
            yield seen
        finally:
            sys.stderr = before
            file.flush()
    reader.join(5)
    os.close(theirs)


def text_of(seen):
    """Words on a terminal, without what moves its cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode(errors="replace"))


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.more, self.fc = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.more(torch.relu(self.conv(x)))).mean((2, 3)))


def pruned(**more):
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    images = torch.randn(48, 1, 8, 8, generator=chance) + labels.view(-1, 1, 1, 1)
    batches = list(zip(images.split(8), labels.split(8), strict=True))
    config = cosep.replace_settings(cosep.preset(), FAST)
    return cosep.prune(Net(), batches, config=config, max_macs="80%", epochs=20, holdout=batches, **more)


def test_python_shows_bars_on_a_terminal_by_default():
    with terminal() as seen:
        pruned()
    text = text_of(seen)
    for stage in ("rebuild", "recover"):
        assert WORDS[stage] in text
    assert re.search(r"\d+ of 120, [0-9.e+]+ updates/s", text)
    assert re.search(r"0:00:0\d, about [0-9.]+ s left", text)
    assert "updates, loss" in text


@pytest.mark.parametrize("asked", [False, "not a terminal"])
def test_python_is_silent_where_nobody_looks_or_wants_it(asked, capsys):
    if asked is False:
        with terminal() as seen:
            pruned(progress=False)
        assert text_of(seen) == ""
    else:
        pruned()
    assert capsys.readouterr() == ("", "")


def test_python_writes_lines_where_they_are_asked_for(capsys):
    pruned(progress=True)
    said = capsys.readouterr().err
    assert "this will take about" in said
    assert "GB of memory" in said
    assert "update 120 of 120" in said


def test_a_notebook_shows_bars_below_the_cell_and_takes_them_away(monkeypatch, capsys):
    shown = []

    class Handle:
        def update(self, page):
            shown.append(page)

    def display(page, display_id):
        assert display_id is True
        shown.append(page)
        return Handle()

    fake = ModuleType("IPython.display")
    fake.HTML, fake.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("cosep.reporting.progress.REDRAWN", 0.0)
    pruned()
    assert all(any(page.startswith(words) for page in shown) for words in ("starting", "cutting", "recovering"))
    assert re.search(r'<progress value="0\.\d+"></progress> 0:00:\d\d, about [\d.]+ s left', "".join(shown))
    assert re.search(r'updates, loss [\d.]+ <progress value="2" max="\d+"></progress> 2 of \d+, ', "".join(shown))
    assert shown[-1] == ""
    count = len(shown)
    pruned(progress=False)
    assert len(shown) == count
    assert capsys.readouterr() == ("", "")


def test_what_shows_its_progress_is_not_shown_twice():
    told = []
    with terminal() as seen, shown_on(Console(stderr=True), groups=True) as callbacks:
        pruned(callbacks=joined(callbacks, cosep.Callbacks(on_stage=lambda group, stage: told.append(stage))))
    assert "conv" in text_of(seen)  # a line for every group
    assert text_of(seen).count("this will take about") == 1
    assert "recover" in told


def test_a_training_has_a_bar_with_its_rate():
    with terminal() as seen, training_shown(Console(stderr=True)) as told:
        for done in range(1, 31):
            told(done, 30, 0.5)
    assert re.search(r"30 of 30, [0-9.e+]+ updates/s", text_of(seen))
    with training_shown(Console(file=io.StringIO())) as told:
        assert told is None


def test_without_a_terminal_every_stage_group_and_tenth_of_the_training_is_a_line():
    written = io.StringIO()
    told = Lines(Console(file=written, width=200)).callbacks()
    layer = Group("layer1.conv1", 16, ("layer1.conv1",), (), (), 9, "interior")
    told.on_start((layer, replace(layer, name="attention", width=3, unit="head"), layer), 0, {"macs": 100})
    for stage in ("look", "damage", "rebuild", "rebuild", "recover"):
        told.on_stage("", stage)
    told.on_group(OUTCOME)
    for done in range(1, 41):
        told.on_update(done, 40, 1.5)
    lines = written.getvalue().splitlines()
    assert [lines.count(WORDS[stage]) for stage in ("look", "damage", "rebuild", "recover")] == [1, 1, 1, 1]
    assert "3 groups of heads and channels may be cut" in lines
    assert any("layer1.conv1" in line and "16 -> 8" in line for line in lines)
    updates = [line for line in lines if line.startswith("update ")]
    assert len(updates) == 10
    assert "left" in updates[0]
    assert updates[-1] == "update 40 of 40, loss 1.500"


class Hand:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_time_left_is_what_was_expected_corrected_by_what_was_seen():
    clock = Hand()
    course = Course(clock)
    assert course.left is None
    course.expect({"look": 10.0, "rebuild": 20.0, "recover": 30.0})
    assert course.left == 60
    course.enter("look")
    clock.now = 5.0  # the clock moves within a stage
    assert course.left == 55
    clock.now = 20.0  # it took twice as long as expected
    course.enter("rebuild")
    # Half of all that was expected, 30 s, counts as gone that way: (20 + 30) / (10 + 30) as slow.
    assert course.left == pytest.approx(1.25 * 50)
    assert course.share == pytest.approx(20 / 82.5)
    clock.now = 30.0  # and this one is over early
    course.enter("recover")
    assert course.left == pytest.approx(30 * (30 / 30))
    course.update(1, 101)
    clock.now = 40.0
    course.update(51, 101)
    assert course.rate == pytest.approx(5)
    assert course.left == pytest.approx(10)
    course.update(101, 101)
    course.enter("measure")
    assert course.left == 0  # whatever was expected of the training, it is over


def test_a_short_stage_that_took_long_says_little_of_the_long_ones():
    clock = Hand()
    course = Course(clock)
    course.expect({"look": 0.2, "search": 7.0, "recover": 60.0, "measure": 0.3})
    course.enter("look")
    clock.now = 1.6  # eight times as long: starting up
    course.enter("search")
    assert course.left == pytest.approx(67.3, rel=0.05)


def test_one_by_one_the_groups_that_are_done_say_how_long_the_others_take():
    clock = Hand()
    course = Course(clock)
    course.expect({"rebuild": 400.0}, rounds=4)
    clock.now = 3.0
    course.round()
    assert course.left == 9


def test_an_estimate_comes_before_the_work_and_counts_what_is_asked_for():
    found: list[Estimate] = []
    order = []
    pruned(
        callbacks=cosep.Callbacks(
            on_estimate=lambda each: (found.append(each), order.append("estimate")),
            on_stage=lambda group, stage: order.append(stage),
        )
    )
    assert order.index("estimate") < order.index("rebuild")
    assert {"rebuild", "recover", "measure"} <= found[0].seconds.keys()
    assert 0 < found[0].in_all < 600
    assert found[0].bytes > 1e7
