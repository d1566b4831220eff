"""What a user sees first: a short help, and words while a run goes on."""

import re

import pytest
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.reporting.progress import WORDS


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


def test_every_stage_has_words():
    from pathlib import Path

    import cosep

    source = "".join(path.read_text() for path in Path(cosep.__file__).parent.rglob("*.py"))
    stages = set(re.findall(r"""\bstage\("([a-z]+)\"""", source))
    assert stages
    assert stages <= set(WORDS)
