"""The experiments' scripts as they are typed, on the digits: quick, resumed, and beside the paper's figures."""

import json
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

import cosep
from cosep.data import load_data
from cosep.reporting.figures import write_figures
from cosep.reporting.folders import read_runs

FOLDER = Path(__file__).parents[2] / "experiments"
FACTORIES = """
from torch import nn
from cosep.data import load_data

class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.one, self.other = nn.Conv2d(1, 8, 3), nn.Conv2d(1, 8, 3)
        self.last, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.last(self.one(x) * self.other(x).sigmoid()).relu().mean((2, 3)))

def network(classes=10):
    return Two(classes)

def four_digits():
    batches = [(x[y < 4], y[y < 4]) for x, y in load_data("digits").calibration]
    return {"train": batches, "test": batches, "class_names": "0123"}
"""


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script in this process and return what it printed."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        threads = torch.get_num_threads()
        try:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "digits.safetensors"
    save_model(cosep.load_model("digits_cnn", classes=10), str(path))
    return path


@pytest.fixture(scope="module")
def run(weights, tmp_path_factory):
    """A finished run without training."""
    folder = tmp_path_factory.mktemp("runs") / "digits-0"
    data = load_data("digits")
    config = cosep.replace_settings(
        cosep.preset(),
        {
            "recover": {"schedule": "none"},
            "observe": {"images": 200},
            "rebuild": {"images": 50},
            "device": {"accelerator": "cpu"},
        },
    )
    model = cosep.load_model("digits_cnn", weights=weights, classes=10)
    cosep.prune(model, data.calibration, data.test, config=config, run=folder, widths={"layer1.0.conv1": 20})
    return folder


def columns_of(printed):
    """The rows of a markdown table, without its head."""
    return [
        [part.strip() for part in line.strip("| ").split("|")] for line in printed.splitlines() if line.startswith("|")
    ][2:]


def test_the_papers_figures_name_their_source_and_agree_with_themselves(script, monkeypatch):
    document = json.loads((FOLDER / "paper.json").read_text())
    assert document["source"]["authors"] == ["David Levin", "Gonen Singer"]
    for row in document["headline"]:
        assert row["speedup"] == pytest.approx(100 / row["flops_left"], rel=0.02)
    for full, pruned, change in (
        times[kind]
        for name, times in document["inference_ms"].items()
        if name != "about"
        for kind in ("batch", "single")
    ):
        assert change == pytest.approx(100 * (pruned / full - 1), abs=0.15)


def test_gaussian_against_histogram_on_the_digits(script, weights, tmp_path):
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "g.json", "--quick"]
    printed = script("gaussian_histogram", *words)
    rows = columns_of(printed)
    assert [row[0] for row in rows] == ["all (3)"] * 3 + ["early (1)", "middle (1)", "late (1)"]
    for layer in json.loads((tmp_path / "g.json").read_text())["cells"]["layers"]:
        assert all(0 <= score <= 2 for score in layer["gaussian"] + layer["64"]["scores"])
        # Fewer bins can only lose separability: merging two bins never makes histograms less alike.
        assert all(
            fine >= coarse - 1e-6 for fine, coarse in zip(layer["64"]["scores"], layer["16"]["scores"], strict=True)
        )
    layers = json.loads((tmp_path / "g.json").read_text())["cells"]["layers"]
    both, either = (sum(layer["64"]["overlap_own_k"][side] for layer in layers) for side in (0, 1))
    assert f"{100 * both / either:.1f} %" in rows[0]  # of all channels, not a mean over layers
    assert columns_of(script("gaussian_histogram", *words)) == rows


def test_a_results_file_of_another_experiment_is_refused(script, weights, tmp_path, capsys):
    (tmp_path / "g.json").write_text('{"about": {"experiment": "another"}, "cells": {}}')
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "g.json", "--quick"]
    with pytest.raises(SystemExit):
        script("gaussian_histogram", *words)
    said = capsys.readouterr().err
    assert "experiment is another there and Gaussian against histogram here" in said
    assert "Choose another --out" in said


def test_channels_are_observed_in_all_layers_that_make_them_and_no_folder_is_written_down(script, tmp_path):
    (tmp_path / "mine.py").write_text(FACTORIES)
    network, four = f"{tmp_path}/mine.py:network", f"{tmp_path}/mine.py:four_digits"
    torch.manual_seed(0)
    model = cosep.load_model(network, classes=4)
    save_model(model, str(tmp_path / "two.safetensors"))
    words = ["--model", network, "--weights", tmp_path / "two.safetensors", "--data", four, "--quick"]
    script("gaussian_histogram", *words, "--out", tmp_path / "g.json")
    script("knees", *words, "--out", tmp_path / "k.json")  # four classes: the zoo's ten would not fit
    moments = cosep.observe(model, load_data(four).calibration, ["one", "other"], max_images=300)
    both = cosep.separability_space([moments["one"], moments["other"]]).separability
    found = {row["layer"]: row["gaussian"] for row in json.loads((tmp_path / "g.json").read_text())["cells"]["layers"]}
    assert found["one"] == pytest.approx(both.tolist(), abs=1e-5)
    for file in ("g.json", "k.json"):
        assert str(tmp_path) not in (tmp_path / file).read_text()


@pytest.mark.parametrize("name", ["base_accuracy", "knees", "recovery", "block_by_block"])
def test_scripts_on_the_digits_are_not_run_twice(script, weights, tmp_path, name):
    out = tmp_path / "found.json"
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", out, "--quick"]
    rows = columns_of(script(name, *words))
    before = out.read_bytes()
    assert len(rows) == {"base_accuracy": 1, "knees": 10, "recovery": 9, "block_by_block": 3}[name]
    again = script(name, *words)
    assert again.startswith("| ")  # nothing but the table
    assert columns_of(again) == rows
    assert out.read_bytes() == before


def test_a_row_of_recovery_may_change_what_is_no_setting_and_a_mistake_in_one_is_told_at_once(
    script, weights, tmp_path, capsys
):
    out = tmp_path / "found.json"
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", out, "--quick"]
    rows = columns_of(script("recovery", *words, "--rows", "batch=64 lr=0.01,cutmix=1,pad=0,steps=2,batchnorm=true"))
    assert [row[0] for row in rows] == [
        "untrained",
        "batch=64 lr=0.01",
        "cutmix=1",
        "pad=0",
        "steps=2",
        "batchnorm=true",
    ]
    cells = json.loads(out.read_text())["cells"]
    assert all(cells[f"{row[0]}/2"]["outcome"] == "done" for row in rows[1:])
    before = out.read_bytes()
    with pytest.raises(SystemExit):
        script("recovery", *words, "--rows", "cutmix=1,batches=64")
    assert "batches" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_all_classes_are_the_full_selection_and_counts_that_are_there_are_not_run_again(script, weights, tmp_path):
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "m.json", "--quick"]
    script("class_subset", *words, "--counts", "2")
    first = json.loads((tmp_path / "m.json").read_text())["cells"]
    rows = columns_of(script("class_subset", *words, "--counts", "2,5"))
    assert [row[0] for row in rows] == ["2", "5", "10"]
    assert [row[1] for row in rows] == ["1", "10", "45"]  # M (M - 1) / 2
    assert rows[-1][2:4] == ["1.000", "100.0 %"]
    assert json.loads((tmp_path / "m.json").read_text())["cells"]["2"] == first["2"]


def test_each_m_is_pruned_to_the_end_and_the_runs_make_the_papers_figure(script, weights, tmp_path, capsys):
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "m.json", "--quick"]
    words += ["--counts", "2", "--runs", tmp_path / "runs", "--same-widths", "--set", 'recover.schedule="none"']
    words += ["--set", "rebuild.solve=true", "--set", 'device.accelerator="cpu"']
    rows = columns_of(script("class_subset", *words))
    cells = json.loads((tmp_path / "m.json").read_text())["cells"]
    found = {count: cell["runs"]["0"] for count, cell in cells.items()}
    assert found["2"]["widths"] == found["10"]["widths"]
    assert found["2"]["knees"] == 0  # its widths were given
    test = list(load_data("digits").test)
    inputs, labels = (torch.cat(parts)[:300] for parts in zip(*test, strict=True))
    folders = {count: tmp_path / "runs" / f"digits_cnn-{count}-0" for count in found}
    for row, (count, folder) in zip(rows, folders.items(), strict=True):
        pruned = cosep.load(folder, partial(cosep.load_model, "digits_cnn", classes=10)).eval()
        with torch.no_grad():
            right = int((pruned(inputs).argmax(1) == labels).sum())
        assert found[count]["accuracy"] == pytest.approx(right / 300)
        assert row[-2] == f"{100 * right / 300:.2f}"
    write_figures(read_runs(list(folders.values())), tmp_path / "figures")
    assert "M = 2: " in (tmp_path / "figures" / "figures.md").read_text()
    before = (tmp_path / "m.json").read_bytes()
    assert columns_of(script("class_subset", *words)) == rows
    assert (tmp_path / "m.json").read_bytes() == before
    with pytest.raises(SystemExit):
        script("class_subset", *words, "--set", "profile.max_classes=3")
    assert "the rows of this table differ in it" in capsys.readouterr().err


def test_retention_reads_the_widths_of_a_run(script, run, tmp_path):
    printed = script("retention", run, "--out", tmp_path / "r.json", "--layers")
    assert "layer1.0.conv1 20/32" in printed
    [row] = columns_of(printed)
    assert row[:3] == ["digits-0", "3", f"{20 / 32:.2f}"]
    assert "generally decreases with depth" in printed


def test_the_shares_of_the_stages_add_up(script, run, tmp_path):
    [row] = columns_of(script("overhead", run, "--out", tmp_path / "o.json"))
    shares = [float(cell.removesuffix(" %")) for cell in row[2:12]]
    assert shares[0] == pytest.approx(sum(shares[1:7]), abs=0.4)
    assert sum(shares[1:]) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize("name", ["overhead", "retention"])
def test_runs_of_the_same_name_stay_apart_and_are_read_anew(script, run, tmp_path, name):
    for parent in "ab":
        shutil.copytree(run, tmp_path / parent / "digits-0")
    words = [tmp_path / "a" / "digits-0", tmp_path / "b" / "digits-0", "--out", tmp_path / "o.json"]
    rows = columns_of(script(name, *words))
    assert [row[0] for row in rows] == ["a/digits-0", "b/digits-0"]
    document = (tmp_path / "o.json").read_text()
    assert str(tmp_path) not in document
    stale = json.loads(document)
    stale["cells"]["a/digits-0"] = {}
    (tmp_path / "o.json").write_text(json.dumps(stale))
    assert columns_of(script(name, *words)) == rows


def test_the_paper_stands_beside_a_run_that_is_told_to_be_one_of_its_networks(script, run, tmp_path):
    told = ["--model", "resnet56", "--data", "cifar10"]
    seconds = sum(json.loads((run / "report.json").read_text())["seconds"].values())
    row = columns_of(script("overhead", run, "--out", tmp_path / "o.json", *told, "--training-seconds", 50.0))[0]
    assert row[-3:] == [f"{100 * 3.1 / 25.8:.1f} %", f"{100 * seconds / 50:.1f} %", "6.8 %"]
    assert columns_of(script("retention", run, "--out", tmp_path / "r.json", *told))[0][-1] == "43.86 %"


def test_inference_time_of_a_network_whole_pruned_and_rounded(script, tmp_path, monkeypatch):
    out = tmp_path / "t.json"
    words = ["--models", "resnet56", "--quick", "--threads", "1", "--batch", "2", "--out", out]
    # The zoo's smallest stands in for ResNet-56: what is tested here is the script.
    small = partial(cosep.load_model, "digits_cnn")
    monkeypatch.setattr(cosep, "load_model", lambda name, **settings: small(**settings))
    monkeypatch.setattr("cosep.zoo.input_shape", lambda name: (1, 8, 8))
    rows = columns_of(script("inference_time", *words))
    assert [row[1:3] for row in rows] == [["torch", "1"], ["torch", "2"], ["onnxruntime", "1"], ["onnxruntime", "2"]]
    assert [row[-1] for row in rows] == ["-5.8 %", "-6.2 %"] * 2
    cell = json.loads(out.read_text())["cells"]["resnet56/torch/1"]
    assert cell["pruned"]["macs"] < cell["rounded"]["macs"] < cell["full"]["macs"]
    before = out.read_bytes()
    assert columns_of(script("inference_time", *words)) == rows
    assert out.read_bytes() == before
    with pytest.raises(SystemExit):  # a few quick rounds must not pass for a result
        script("inference_time", *[word for word in words if word != "--quick"])
    assert out.read_bytes() == before


def test_inference_time_knows_all_of_the_papers_rows_and_prints_what_was_measured(script, capsys, tmp_path):
    found = runpy.run_path(str(FOLDER / "inference_time.py"))
    reported = json.loads((FOLDER / "paper.json").read_text())["inference_ms"]
    assert {paper for _, paper, *_ in found["MODELS"].values()} == reported.keys() - {"about"}
    cells = json.loads((FOLDER / "results" / "inference-time.json").read_text())["cells"]
    rows = columns_of(found["table"](cells))
    assert len(rows) == len(cells)
    assert [row[0] for row in rows[:5]] == ["CIFAR-10/ResNet-56"] * 4 + ["CIFAR-10/VGG-16"]
    with pytest.raises(SystemExit):
        script("inference_time", "--models", "vgg11", "--out", tmp_path / "t.json")
    assert "there is no model 'vgg11' here; there are resnet56, vgg16" in capsys.readouterr().err
