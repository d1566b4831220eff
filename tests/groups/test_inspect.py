import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cosep.cli.app import app

FACTORY = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
"""


def test_groups_are_printed_as_a_table_with_reasons():
    shown = CliRunner().invoke(app, ["inspect", "resnet20"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "tied by an addition with layer1.0.conv2" in shown.stdout
    assert "feeds the classifier's output" in shown.stdout
    assert "9 of 13 groups are prunable in scope interior: 336 channels." in shown.stdout


def test_the_layers_that_make_the_same_heads_are_each_named_once():
    shown = CliRunner().invoke(app, ["inspect", "vit6"], env={"COLUMNS": "250"})
    row = next(line for line in shown.stdout.splitlines() if "3 heads" in line)
    for name in ("query", "key", "value", "output"):
        assert row.count(f"blocks.0.attention.{name}") == 1, row


LONG = """
from collections import OrderedDict
from torch import nn

def build():
    block = lambda ins: nn.Sequential(OrderedDict(a_convolution_with_a_long_name=nn.Conv2d(ins, 8, 3)))
    blocks = nn.Sequential(OrderedDict(the_first_of_the_blocks=block(3), the_second_of_the_blocks=block(8)))
    return nn.Sequential(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
"""


@pytest.mark.parametrize("model", ["resnet20", "long.py:build"])
def test_names_are_whole_on_a_screen_of_80_columns(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.py").write_text(LONG)
    shown = CliRunner().invoke(app, ["inspect", model, "--input", "3,64,64"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    joined, names = "", []
    for group, width, *_ in rows:  # a name that is too long goes on in the next line
        if width:
            names.append(joined)
            joined = ""
        joined += group
    names.append(joined)
    document = json.loads(CliRunner().invoke(app, ["inspect", model, "--input", "3,64,64", "--json"]).stdout)
    assert names[1:] == [group["name"] for group in document["groups"]]


def test_groups_are_printed_as_json_for_a_factory_in_a_file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FACTORY)
    shown = CliRunner().invoke(app, ["inspect", f"{path}:build", "--input", "3,8,8", "--json"])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert document["input"] == [3, 8, 8]
    assert [(g["name"], g["width"], g["prunable"], g["why_not"]) for g in document["groups"]] == [
        ("0", 8, True, ""),
        ("4", 4, False, "feeds the classifier's output"),
    ]


def test_an_error_is_one_line_and_exit_code_1():
    command = [sys.executable, "-c", "from cosep.cli import main; main()", "inspect", "resnet20", "--input", "5,32,32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "failed in conv1 on an input of shape (1, 5, 32, 32)" in done.stderr
