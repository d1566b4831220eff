"""What a user sees first: a short help, and words while a run goes on."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

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


@pytest.mark.parametrize("quiet", [False, True])
def test_a_command_says_at_once_that_it_starts_before_torch_is_imported(quiet):
    code = (
        "import sys, importlib.abc\n"
        "class Interrupting(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print('<torch>', end='', file=sys.stderr, flush=True)\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from cosep_command import main\n"
        "main()\n"
    )
    theirs, ours = pty.openpty()
    command = [sys.executable, "-c", code, "prune", *(["--quiet"] if quiet else [])]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=ours)
    os.close(ours)
    said = ""
    with suppress(OSError), open(theirs, "rb", buffering=0) as terminal:  # the end of a terminal is an error in Linux
        while part := terminal.read(4096):
            said += part.decode()
    assert done.returncode == 130
    assert said == ("<torch>cosep: stopped\r\n" if quiet else "starting<torch>\r\x1b[Kcosep: stopped\r\n")
