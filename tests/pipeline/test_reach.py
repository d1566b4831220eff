"""Limits that cannot be met, that can be misread, and that leave room."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_model
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.config import LimitConfig, PruneConfig, amount, preset, replace_settings
from cosep.errors import ConfigError, ExportError
from cosep.measurement import macs
from cosep.runs.probing import NetworkProbe
from cosep.storage.artifacts import read_documents

EXAMPLE = torch.zeros(1, 1, 8, 8)


def limited(preset_name="default", **limits):
    """Settings of a run of a second, without training, under limits."""
    fast = {"observe": {"images": 200}, "rebuild": {"images": 200}, "recover": {"schedule": "none"}}
    return replace_settings(preset(preset_name), {"device": {"accelerator": "cpu"}, **fast, "limits": limits})


@pytest.mark.parametrize("rule", ["damage", "uniform", "knee"])
def test_a_limit_out_of_reach_is_refused_before_anything_is_computed(base, digits, rule):
    stages = []
    callbacks = cosep.Callbacks(on_stage=lambda group, name: stages.append(name))
    with pytest.raises(ConfigError, match=r"least there is.*Nothing was cut.*--scope all.*--best-effort"):
        cosep.prune(base, digits.calibration, config=limited(max_macs="1%"), width_rule=rule, callbacks=callbacks)
    assert set(stages) == {"measure"}
    with pytest.raises(ConfigError, match="least there is"):
        cosep.plan(base, digits.calibration, config=limited(max_params="1%"), width_rule=rule)


def test_the_least_that_is_named_can_be_reached_and_nothing_below(base, digits):
    with pytest.raises(ConfigError) as refused:
        cosep.prune(base, digits.calibration, config=limited(max_macs="1%"))
    least = float(str(refused.value).partition("limits.max_macs of ")[2].partition("%")[0])
    plan = cosep.plan(base, digits.calibration, config=limited(max_macs=f"{least + 0.1:.1f}%"))
    share = 100 * macs(plan.apply(base), EXAMPLE) / macs(base, EXAMPLE)
    assert share == pytest.approx(least, abs=0.1)


def test_after_a_refusal_the_folder_is_free_for_another_limit(base, digits, tmp_path):
    with pytest.raises(ConfigError, match="least there is"):
        cosep.prune(base, digits.calibration, config=limited(max_macs="1%"), run=tmp_path / "run")
    result = cosep.prune(base, digits.calibration, config=limited(max_macs="60%"), run=tmp_path / "run")
    assert result.report.change.macs <= 0.6


def test_best_effort_goes_to_an_eighth_of_every_group_and_says_so_everywhere(base, digits, tmp_path):
    save_model(base, tmp_path / "base.safetensors")
    asked = ["prune", "digits_cnn", "--weights", str(tmp_path / "base.safetensors"), "--data", "digits"]
    asked += ["--out", str(tmp_path / "run"), "--max-macs", "1%", "--best-effort", "--schedule", "none"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "MACs cannot be brought to" in shown.output
    small = cosep.load(tmp_path / "run", base)
    plan, report = read_documents(tmp_path / "run")
    assert {group.group: len(group.kept) for group in plan.groups} == {
        group.group: round(group.width / 8) for group in plan.groups
    }
    assert all("limit on MACs" in entry["reason"] for entry in report["groups"])
    assert "cannot be brought to" in (tmp_path / "run" / "report.html").read_text()
    assert macs(small, EXAMPLE) < 0.35 * macs(base, EXAMPLE)


def test_a_rule_of_ones_own_that_ignores_the_limit_is_refused(base, digits):
    def whole(candidates, target, probe):
        return {each.group: each.channels for each in candidates}

    with pytest.raises(ConfigError, match="cannot be met by the width rule"):
        cosep.plan(base, digits.calibration, config=limited(max_macs="50%"), width_rule=whole)
    plan = cosep.plan(
        base, digits.calibration, config=limited(max_macs="50%", best_effort=True), width_rule=whole, criterion="l2"
    )
    assert "cannot be brought to" in plan.notes[0]


@pytest.mark.parametrize(("text", "share"), [("50", "50%"), ("0.5", "50%"), ("1", "100%"), ("100", "100%")])
def test_a_bare_small_number_is_refused_with_both_readings(text, share):
    with pytest.raises(ConfigError, match=rf"{text}.*could be {share} of the .* or {text} MACs in all"):
        LimitConfig(max_macs=text)
    with pytest.raises(ConfigError, match=rf"could be {share}.* or {text} parameters in all"):
        LimitConfig(max_params=text)


def test_more_than_the_whole_network_is_refused():
    with pytest.raises(ConfigError, match='at most "100%"'):
        LimitConfig(max_macs="150%")
    assert amount("limits.max_macs", "100%", 7.0) == 7.0
    assert amount("limits.max_macs", "20e6", 7.0) == 20e6


@pytest.mark.parametrize("rule", ["damage", "uniform", "knee"])
def test_a_limit_is_a_target_too(base, digits, rule):
    shares = []
    for limit in ("55%", "70%", "85%"):
        plan = cosep.plan(base, digits.calibration, config=limited(max_macs=limit), width_rule=rule, criterion="cosep")
        shares.append(plan.cost.macs_after / plan.cost.macs_before)
    for share, limit in zip(shares, (0.55, 0.7, 0.85), strict=True):
        assert limit - 0.08 < share <= limit


def test_a_limit_on_the_time_is_measured_in_the_runtime_that_will_be_used(monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    timed = []

    def fake(paths, example, **_):
        timed.append(sum(math.prod(each.dims) for each in onnx.load(paths["model"]).graph.initializer))
        return {"model": SimpleNamespace(median_ms=7.0)}

    monkeypatch.setattr("cosep.runs.probing.onnx_latency", fake)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    probe = NetworkProbe(model, torch.zeros(1, 8), cosep.find_groups(model, torch.zeros(1, 8)), runtime="onnxruntime")
    assert probe.milliseconds({"0": 5}) == 7.0
    assert timed == [8 * 5 + 5 + 5 * 4 + 4]
    with pytest.raises(ConfigError, match=r"limits\.runtime is 'tensorrt'"):
        LimitConfig(runtime="tensorrt")


def test_the_figures_of_a_run_are_of_the_runtime_that_will_be_used(monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    data = [(torch.randn(20, 8), torch.arange(20) % 4)]
    config = PruneConfig(limits=LimitConfig(runtime="onnxruntime"))
    pruned = partial(cosep.prune, model, data, max_macs="60%", epochs=0, criterion="l2", width_rule="uniform")
    result = pruned(config=config)
    times = result.report.before.latency, result.report.after.latency
    assert {each.runtime for each in times} == {"onnxruntime"}
    assert "in ONNX Runtime" in result.summary()

    def refused(*_, **__):
        raise ExportError("no such operator.")

    monkeypatch.setattr("cosep.runs.probing.export_onnx", refused)
    report = pruned(config=config).report  # a network that was made is not given up for a figure
    assert report.after.latency.runtime == "torch"
    assert "the times are PyTorch's, as no such operator" in report.notes
