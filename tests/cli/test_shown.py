"""What a user sees first: a short help, and words while a run goes on."""

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.cli.progress import WORDS, _Lines, _Screen
from cosep.records import Outcome


@pytest.mark.parametrize("command", ["prune", "plan", "sweep", "compare"])
def test_the_help_shows_what_people_use_first_and_help_all_the_rest(command):
    short = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"}).stdout
    flags = set(re.findall(r"--[a-z][a-z-]+", short[short.index("Options") :])) - {"--help", "--help-all"}
    assert {"--data", "--weights", "--max-macs"} <= flags
    assert len(flags) <= 14
    assert len(short.splitlines()) <= 60
    assert short.index("--max-macs") < short.index("--scope")
    whole = CliRunner().invoke(app, [command, "--help-all"], env={"COLUMNS": "100"})
    assert whole.exit_code == 0
    assert {"--criterion", "--degree", "--mean", "--best-effort"} <= set(re.findall(r"--[a-z][a-z-]+", whole.stdout))


OUTCOME = Outcome("layer1.conv1", 16, 8, "a reason", macs=60, parameters=9, accuracy=0.9)


def test_without_a_terminal_every_stage_group_and_tenth_of_the_training_is_a_line(capsys, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("cosep.cli.progress.console", Console(file=written, width=200))
    told = _Lines().callbacks()
    told.on_start((object(),) * 3, 0, {"macs": 100})
    for stage in ("look", "damage", "rebuild", "rebuild", "recover"):
        told.on_stage("", stage)
    told.on_group(OUTCOME)
    for done in range(1, 41):
        told.on_update(done, 40, 1.5)
    lines = written.getvalue().splitlines()
    assert [lines.count(WORDS[stage]) for stage in ("look", "damage", "rebuild", "recover")] == [1, 1, 1, 1]
    assert any("layer1.conv1" in line and "16 -> 8" in line for line in lines)
    updates = [line for line in lines if line.startswith("update ")]
    assert len(updates) == 10
    assert "left" in updates[0]
    assert updates[-1] == "update 40 of 40, loss 1.500"


def test_on_a_terminal_a_clock_moves_from_the_start_and_the_stage_is_named():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress = Progress(console=console)
    screen = _Screen(progress).callbacks()
    assert not progress.finished
    screen.on_stage("", "damage")  # before the groups are known
    assert [task.description for task in progress.tasks] == [WORDS["damage"]]
    screen.on_start((object(),) * 2, 0, {"macs": 100})
    screen.on_update(5, 20, 0.25)
    assert (progress.tasks[1].completed, progress.tasks[1].total) == (5, 20)
    screen.on_group(OUTCOME)
    screen.on_group(OUTCOME)
    assert progress.tasks[0].finished


def test_every_stage_has_words():
    from pathlib import Path

    import cosep

    source = "".join(path.read_text() for path in Path(cosep.__file__).parent.rglob("*.py"))
    stages = set(re.findall(r"""\bstage\("([a-z]+)\"""", source))
    assert stages
    assert stages <= set(WORDS)
