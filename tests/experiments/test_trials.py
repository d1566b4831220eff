"""The experiments that prune, as they are typed, on the digits: quick, resumed, and beside the paper's figures."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

import cosep

FOLDER = Path(__file__).parents[2] / "experiments"
NOT_TRAINED = ("--set", 'recover.schedule="none"')


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """Run a script in this process; what it printed, and the cells that it wrote."""
    monkeypatch.syspath_prepend(str(FOLDER))
    torch.manual_seed(0)
    weights = tmp_path / "digits.safetensors"
    save_model(cosep.load_model("digits_cnn", classes=10), str(weights))

    def run(name, *words):
        model = ("--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / name)
        cpu = ("--set", 'device.accelerator="cpu"', "--quick")
        monkeypatch.setattr(sys, "argv", [name, *map(str, (*model, *cpu, *words))])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        cells = json.loads((tmp_path / name / f"{name}.json").read_text())["cells"]
        return capsys.readouterr().out, cells

    return run


def test_headline_gives_all_rows_the_widths_of_the_first_and_is_not_run_twice(script):
    words = ("--rows", "default,paper,default random")
    out, cells = script("headline", *words)
    assert len({json.dumps(cell["widths"]) for name, cell in cells.items() if name != "base"}) == 1
    assert "| unpruned |" in out
    assert "| default random |" in out
    again, same = script("headline", *words)
    assert same == cells
    assert "default/0" not in again  # only the table


def test_each_degree_has_one_set_of_widths_for_all_its_representatives(script):
    out, cells = script("degree_representative", *NOT_TRAINED)
    for degree in "23":
        assert len({json.dumps(c["widths"]) for name, c in cells.items() if name.startswith(degree)}) == 1
    assert out.count("\n| ") >= 5


def test_metrics_find_their_own_widths_and_are_not_mixed_with_those_of_other_settings(script):
    out, cells = script("metric", *NOT_TRAINED)
    assert {"jm/0", "hellinger/0", "wasserstein/0", "jm-histogram/0"} < cells.keys()
    assert "silhouette of the equation" in out
    with pytest.raises(SystemExit, match="Choose another --out"):
        script("metric")


def test_schedules_spend_the_same_updates(script):
    _, cells = script("schedule", "--set", "recover.epochs=0.5")
    updates = {cell["updates"] for name, cell in cells.items() if name != "base"}
    assert len(updates) == 1
    assert updates.pop() > 0
