"""The experiments' scripts as they are typed, on the digits: quick, resumed, and beside the paper's figures."""

import json
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

import cosep
from cosep.data import load_data

FOLDER = Path(__file__).parents[2] / "experiments"


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
            "surgery": {"images": 50},
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
    assert columns_of(script("gaussian_histogram", *words)) == rows


def test_a_results_file_of_another_experiment_is_refused(script, weights, tmp_path):
    (tmp_path / "g.json").write_text('{"about": {"experiment": "another"}, "cells": {}}')
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "g.json", "--quick"]
    with pytest.raises(SystemExit, match=r"is about .*another.* Choose another --out"):
        script("gaussian_histogram", *words)


def test_all_classes_are_the_full_selection_and_counts_that_are_there_are_not_run_again(script, weights, tmp_path):
    words = ["--model", "digits_cnn", "--weights", weights, "--data", "digits", "--out", tmp_path / "m.json", "--quick"]
    script("class_subset", *words, "--counts", "2")
    first = json.loads((tmp_path / "m.json").read_text())["cells"]
    rows = columns_of(script("class_subset", *words, "--counts", "2,5"))
    assert [row[0] for row in rows] == ["2", "5", "10"]
    assert [row[1] for row in rows] == ["1", "10", "45"]  # M (M - 1) / 2
    assert rows[-1][2:4] == ["1.000", "100.0 %"]
    assert json.loads((tmp_path / "m.json").read_text())["cells"]["2"] == first["2"]


def test_retention_reads_the_widths_of_a_run(script, run, tmp_path):
    printed = script("retention", run, "--out", tmp_path / "r.json", "--layers")
    assert "layer1.0.conv1 20/32" in printed
    [row] = columns_of(printed)
    assert row[:3] == ["digits-0", "3", f"{20 / 32:.2f}"]
    assert "generally decreases with depth" in printed


def test_the_shares_of_the_stages_add_up(script, run, tmp_path):
    [row] = columns_of(script("overhead", run, "--out", tmp_path / "o.json"))
    shares = [float(cell.removesuffix(" %")) for cell in row[2:9]]
    assert shares[0] == pytest.approx(sum(shares[1:4]), abs=0.2)
    assert sum(shares[1:]) == pytest.approx(100, abs=0.5)


def test_the_paper_stands_beside_a_run_that_is_told_to_be_one_of_its_networks(script, run, tmp_path):
    told = ["--model", "resnet56", "--data", "cifar10"]
    assert (
        columns_of(script("overhead", run, "--out", tmp_path / "o.json", *told))[0][-1] == f"{100 * 3.1 / 25.8:.1f} %"
    )
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
