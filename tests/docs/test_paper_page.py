"""docs/paper.md names files, commands and options: every one of them exists."""

import json
import re

import pytest
import typer

from cosep.cli.app import app
from tests.docs.blocks import ROOT, help_of

PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([^`\n]+)`", PAGE)
COMMANDS = sorted({text for text in NAMED if text.startswith("cosep ")})
SCRIPTS = sorted({text for text in NAMED if text.startswith("python ")})
FILES = sorted({text for text in NAMED if re.fullmatch(r"(src|experiments|docs)/[\w/.-]+\.\w+", text)})


def test_the_page_names_what_the_paper_has():
    assert (len(COMMANDS) > 5, len(SCRIPTS) > 8, len(FILES) > 15) == (True, True, True)
    published = json.loads((ROOT / "experiments" / "paper.json").read_text(encoding="utf-8"))
    for row in published["headline"]:
        assert row["model"] in PAGE
        assert row["dataset"].removesuffix("-1K") in PAGE


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_page_names_exists(name):
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(src/[\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", PAGE))))
def test_a_name_in_a_file_is_defined_there(name):
    path, names = name
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not [n for n in re.findall(r"`(\w+)`", names) if not re.search(rf"^(def|class) {n}\b", text, re.MULTILINE)]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_the_page_names_and_its_options_exist(line):
    _, name, *words = line.split()
    command = typer.main.get_command(app).commands[name]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("line", [text for text in NAMED if text.startswith("--")])
def test_an_option_that_the_page_names_alone_is_one_of_prune(line):
    command = typer.main.get_command(app).commands["prune"]
    assert line.split()[0] in {flag for parameter in command.params for flag in parameter.opts}


def test_the_scripts_that_the_page_names_and_their_options_exist():
    for script in sorted({line.split()[1] for line in SCRIPTS}):
        help_text = help_of(script)
        words = {word for line in SCRIPTS if line.split()[1] == script for word in line.split()[2:]}
        missing = [word for word in words if word.startswith("--") and word not in help_text]
        assert not missing, (script, missing)
