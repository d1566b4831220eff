"""The experiments that prune, as they are typed, on the digits: quick, resumed, and beside the paper's figures."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_model

import cosep

FOLDER = Path(__file__).parents[2] / "experiments"
NOT_TRAINED = ("--set", 'recover.schedule="none"')


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """Run a script in this process; what it printed, and the cells that it wrote. Later words replace earlier ones."""
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


def mistake(script, capsys, *words):
    """The one line that a script says of a user's mistake."""
    with pytest.raises(SystemExit) as ended:
        script(*words)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_headline_goes_on_with_the_widths_of_the_first_run_and_is_not_run_twice(script, tmp_path):
    script("headline", *NOT_TRAINED, "--rows", "default")
    file = tmp_path / "headline" / "headline.json"
    document = json.loads(file.read_text())
    # No row would choose these by itself.
    widths = document["cells"]["default/0"]["widths"] = dict.fromkeys(document["cells"]["default/0"]["widths"], 7)
    file.write_text(json.dumps(document))
    words = (*NOT_TRAINED, "--rows", "paper,default random")
    out, cells = script("headline", *words)
    assert [cells[row]["widths"] for row in ("paper/0", "default random/0")] == [widths] * 2
    assert [cells[row]["knees"] for row in ("paper/0", "default random/0")] == [0, 0]  # a given width is no knee
    assert "| unpruned |" in out
    assert "| default random |" in out
    again, same = script("headline", *words)
    assert same == cells
    assert "paper/0" not in again  # only the table


def test_a_results_file_is_about_weights_data_and_batches_and_names_no_folder(script, capsys, tmp_path):
    words = ("headline", "--rows", "paper random")
    assert "Put paper or default before it" in mistake(script, capsys, *words)  # the base accuracy is there by then
    text = (tmp_path / "headline" / "headline.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["about"]["test_images"] == 300
    assert "batch_size is 128 there and 64 here" in mistake(script, capsys, *words, "--batch-size", "64")
    other = tmp_path / "other.safetensors"
    save_model(cosep.load_model("digits_cnn", classes=10), str(other))
    said = mistake(script, capsys, *words, "--weights", other)
    assert "weights is " in said
    assert said.count(" there and ") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "recover.schedule=none"), "--set needs JSON: quote strings, as in recover.schedule='\"none\"'"),
        (("--set", 'recover.shedule="none"'), "did you mean 'schedule'"),
        (("--data", "cifar10:/nope"), "/nope does not exist"),
        (("--weights", "/nope"), "there is no checkpoint /nope"),
        (("--rows", "papr"), "there is no row 'papr'; there are paper, paper random"),
    ],
)
def test_a_users_mistake_is_one_line(script, capsys, words, said):
    assert said in mistake(script, capsys, "headline", *words)


def test_half_of_every_group_is_half_of_all_channels_whatever_the_criterion(script):
    _, cells = script("untrained", "--rows", "l2 half,random half")
    model = cosep.load_model("digits_cnn", classes=10)
    groups = [group for group in cosep.find_groups(model, torch.zeros(1, 1, 8, 8)) if group.scope == "interior"]
    for row in ("l2", "random"):
        assert cells[f"{row} half 50/0"]["widths"] == {group.name: group.width // 2 for group in groups}


def test_what_the_rows_differ_in_cannot_be_set_for_all(script, capsys):
    said = mistake(script, capsys, "degree_representative", "--set", "select.degree=3")
    assert "--set select.degree: the rows of this table differ in it. Leave it out." in said


def test_an_untrained_network_is_not_pruned(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headline", "--data", "digits", "--out", "nowhere"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(FOLDER / "headline.py"), run_name="__main__")
    assert "required: --weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "model", "data", "preset", "figures"),
    [
        ("schedule", "resnet56", "cifar10:DIR", None, {"93.82", "92.93", "91.75"}),
        ("schedule", "vgg16", "cifar100:DIR", None, set()),
        ("metric", "resnet56", "cifar10:DIR", "paper", {"93.82", "93.76", "93.72", "43.86", "44.32", "44.70"}),
        ("metric", "resnet56", "cifar10:DIR", "default", {"43.86", "44.32", "44.70"}),
        ("degree_representative", "resnet56", "cifar10:DIR", "default", {"43.86", "35.40", "27.66", "23.50"}),
    ],
)
def test_the_papers_accuracies_stand_beside_its_own_data_and_recipe_only(script, name, model, data, preset, figures):
    table = runpy.run_path(str(FOLDER / f"{name}.py"))["table"]
    given = SimpleNamespace(model=model, data=data, preset=preset)
    printed = table(SimpleNamespace(args=given, over_seeds=lambda *_: "ours"))
    assert {word for word in printed.split() if word.replace(".", "").isdigit() and "." in word} == figures


def test_each_degree_has_one_set_of_widths_for_all_its_representatives(script):
    out, cells = script("degree_representative", *NOT_TRAINED)
    for degree in "23":
        assert len({json.dumps(c["widths"]) for name, c in cells.items() if name.startswith(degree)}) == 1
    assert out.count("\n| ") >= 5


def test_metrics_find_their_own_widths_and_are_not_mixed_with_those_of_other_settings(script, capsys):
    out, cells = script("metric", *NOT_TRAINED)
    assert {"jm/0", "hellinger/0", "wasserstein/0", "jm-histogram/0"} < cells.keys()
    assert "silhouette of the equation" in out
    assert "set is " in mistake(script, capsys, "metric")
    said = mistake(script, capsys, "metric", *NOT_TRAINED, "--preset", "paper")
    assert "preset is default there and paper here. Choose another --out." in said


def test_schedules_spend_the_same_updates(script):
    _, cells = script("schedule", "--set", "recover.group_epochs=0.5")
    updates = {cell["updates"] for name, cell in cells.items() if name != "base"}
    assert len(updates) == 1
    assert updates.pop() > 0
