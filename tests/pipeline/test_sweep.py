"""One network at several sizes: from one look, resumable, with a table and a page."""

import gc
import json

import pytest
import torch
from safetensors.torch import save_model
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.config import preset, replace_settings
from cosep.criteria.view import LookedAt
from cosep.errors import ConfigError, ExportError, RunError
from cosep.rebuilding.grams import Grams
from cosep.runs.probing import NetworkProbe

FAST = replace_settings(
    preset(), {"device": {"accelerator": "cpu"}, "select": {"criterion": "l2"}, "rebuild": {"images": 200}}
)


def test_sizes_come_from_one_look_and_a_second_call_computes_nothing(base, digits, tmp_path):
    stages = []
    callbacks = cosep.Callbacks(on_stage=lambda group, name: stages.append(name))
    given = {"config": FAST, "targets": (0.5, 0.8), "out": tmp_path / "sweep", "callbacks": callbacks}
    found = cosep.sweep(base, digits.calibration, digits.test, **given)
    assert stages.count("damage") == 1
    assert [size.target for size in found.sizes] == [0.8, 0.5]
    for size in found.sizes:
        assert size.target - 0.1 < size.macs <= size.target
        plan = cosep.plan(base, digits.calibration, config=FAST, max_macs=f"{100 * size.target:g}%")
        assert plan.widths == size.widths
    assert found.sizes[0].accuracy >= found.sizes[1].accuracy - 0.03
    stages.clear()
    assert cosep.sweep(base, digits.calibration, digits.test, **given) == found
    assert not stages
    more = cosep.sweep(base, digits.calibration, digits.test, **{**given, "targets": (0.8, 0.6, 0.5)})
    assert stages.count("rebuild") == 1
    assert "damage" not in stages
    assert [more.sizes[0], more.sizes[2]] == list(found.sizes)
    with pytest.raises(RunError, match="another sweep: seed was 0"):
        cosep.sweep(base, digits.calibration, **{**given, "config": replace_settings(FAST, {"seed": 1})})


def test_what_was_gathered_to_decide_does_not_wait_in_memory_while_sizes_are_rebuilt(base, digits):
    gathered, stages = [], []

    def note(group, name):
        stages.append(name)
        if name == "rebuild":
            gathered.extend(each for each in gc.get_objects() if type(each) in (Grams, LookedAt))

    gc.collect()  # what sweeps of other tests left behind
    cosep.sweep(base, digits.calibration, config=FAST, targets=(0.8, 0.5), callbacks=cosep.Callbacks(on_stage=note))
    assert not gathered
    assert stages.count("rebuild") == 2
    assert stages.count("look") == 1  # and is not gathered again


def test_sizes_are_not_given_up_for_times_that_the_runtime_refuses_to_give(monkeypatch):
    def refused(*_, **__):
        raise ExportError("no such operator.")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    data = [(torch.randn(20, 8), torch.arange(20) % 4)]
    monkeypatch.setattr("cosep.runs.probing.export_onnx", refused)
    config = replace_settings(FAST, {"limits": {"runtime": "onnxruntime"}})
    (size,) = cosep.sweep(model, data, config=config, targets=(0.6,)).sizes
    assert size.note == "the times are PyTorch's, as no such operator"
    assert size.milliseconds > 0


def test_every_size_is_trained_if_asked_for_and_a_second_call_trains_nothing(base, digits, tmp_path):
    updates = []
    callbacks = cosep.Callbacks(on_update=lambda done, total, loss: updates.append((done, total)))
    plain = replace_settings(FAST, {"rebuild": {"refine": 0}})  # as it is by itself where training follows
    given = {"config": plain, "targets": (0.5, 0.3), "out": tmp_path, "callbacks": callbacks}
    given["holdout"] = digits.holdout
    found = cosep.sweep(base, digits.calibration, digits.test, train=digits.train, epochs=0.5, **given)
    assert updates == [(done, 10) for _ in found.sizes for done in range(1, 11)]  # half of 20 batches
    plain = cosep.sweep(base, digits.calibration, digits.test, **{**given, "out": None})
    assert [size.untrained for size in found.sizes] == pytest.approx([size.accuracy for size in plain.sizes])
    assert [size.widths for size in found.sizes] == [size.widths for size in plain.sizes]
    assert {size.updates for size in plain.sizes} == {0}
    updates.clear()
    assert cosep.sweep(base, digits.calibration, digits.test, train=digits.train, epochs=0.5, **given) == found
    assert not updates
    with pytest.raises(RunError, match="another sweep"):
        cosep.sweep(base, digits.calibration, digits.test, train=digits.train, epochs=2, **given)


def test_sizes_by_measured_time(base, digits, monkeypatch):
    # A time that follows from the widths, so that a busy machine decides nothing.
    monkeypatch.setattr(NetworkProbe, "milliseconds", lambda self, widths: sum(self._finished(widths).values()) / 100)
    told = []
    callbacks = cosep.Callbacks(on_size=told.append)
    found = cosep.sweep(base, digits.calibration, config=FAST, latencies=(0.8, 1.2), callbacks=callbacks)
    assert [size.asked for size in found.sizes] == [(None, 1.2), (None, 0.8)]
    for size in found.sizes:
        assert size.target_ms - 0.1 < sum(size.widths.values()) / 100 <= size.target_ms
    assert told == list(found.sizes)
    both = cosep.sweep(base, digits.calibration, config=FAST, targets=[0.5], latencies=[1.2])
    assert [size.asked for size in both.sizes] == [(0.5, None), (None, 1.2)]
    with pytest.raises(ConfigError, match="give milliseconds above 0"):
        cosep.sweep(base, digits.calibration, config=FAST, latencies=[0])


def test_a_size_out_of_reach_is_there_with_its_remark(base, digits):
    found = cosep.sweep(base, digits.calibration, config=FAST, targets=[0.01])
    assert "cannot be brought to" in found.sizes[0].note
    assert found.sizes[0].macs > 0.01


@pytest.mark.parametrize("targets", [[], [0.0], [50]])
def test_targets_are_shares(base, digits, targets):
    with pytest.raises(ConfigError, match="give shares of the MACs"):
        cosep.sweep(base, digits.calibration, config=FAST, targets=targets)


def test_the_command_gives_a_table_json_and_a_page(base, tmp_path, monkeypatch):
    monkeypatch.setattr("cosep.cli.common.console.width", 160)
    save_model(base, tmp_path / "base.safetensors")
    words = ["sweep", "digits_cnn", "--weights", str(tmp_path / "base.safetensors"), "--data", "digits"]
    words += ["--out", str(tmp_path / "out"), "--targets", "70%,40%", "--criterion", "l2", "--json", "--quiet"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout[shown.stdout.index("{") : shown.stdout.rindex("}") + 1])
    assert [round(size["target"], 2) for size in document["sizes"]] == [0.7, 0.4]
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
    for size in document["sizes"]:
        assert f"{size['milliseconds']:.4g}".rstrip("0") in page
    (tmp_path / "out" / "sweep.html").unlink()
    drawn = CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "out" / "sweep.html").read_text() == page
    wrong = CliRunner().invoke(app, [*words[:-6], "--targets", "0.5"])
    assert wrong.exit_code == 1
    words[words.index("--targets") : words.index("--criterion")] = ["--latency-ms", "1000", "--targets", "40%"]
    words[words.index("--out") + 1] = str(tmp_path / "trained")
    shown = CliRunner().invoke(app, [*words, "--epochs", "0.2"])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout[shown.stdout.index("{") : shown.stdout.rindex("}") + 1])
    assert [(size["target"], size["target_ms"]) for size in document["sizes"]] == [(0.4, None), (None, 1000.0)]
    assert document["sizes"][0]["untrained"] is not None
    assert "before training" in shown.stderr
    assert "1000 ms" in shown.stderr
