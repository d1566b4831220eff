"""What a Python user types first: settings as keywords, protected layers, data without labels, a result that speaks."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import cosep
from cosep.config import preset, replace_settings
from cosep.errors import ConfigError, DataError

FAST = replace_settings(
    preset(),
    {"device": {"accelerator": "cpu"}, "observe": {"images": 200}, "rebuild": {"images": 200}},
)


@pytest.fixture(scope="module")
def unlabelled():
    from cosep.data import load_data

    return [inputs for inputs, _ in load_data("digits", batch_size=64).calibration]


def test_keywords_are_settings_and_win_over_the_config(base, digits, tmp_path):
    config = replace_settings(FAST, {"limits": {"max_macs": "90%"}, "seed": 5})
    result = cosep.prune(
        base,
        digits.calibration,
        config=config,
        max_macs="60%",
        epochs=0,
        criterion="l2",
        width_rule="uniform",
        round_to=2,
        seed=3,
        scope="all",
        protect=["conv1*"],
    )
    said = result.report.settings
    assert said["limits"]["max_macs"] == "60%"
    assert (said["seed"], said["recover"]["epochs"]) == (3, 0.0)
    assert (said["select"]["criterion"], said["select"]["width_rule"]) == ("l2", "uniform")
    assert (said["surgery"]["round_to"], said["surgery"]["scope"]) == (2, "all")
    assert result.report.recovery is None
    assert result.report.change.macs <= 0.6
    plan = cosep.plan(base, digits.calibration, config=FAST, max_macs="60%", criterion="l2", width_rule="uniform")
    assert plan.cost.macs_after <= 0.6 * plan.cost.macs_before


def test_a_number_for_a_share_is_refused_in_python_too(base, digits):
    with pytest.raises(ConfigError, match="could be 50%"):
        cosep.prune(base, digits.calibration, max_macs=0.5)


def test_protected_layers_keep_every_channel(base, digits):
    names = [group.group for group in cosep.plan(base, digits.calibration, config=FAST, max_macs="80%").groups]
    for pattern in (names[0], names[0][:-1] + "*", [names[0]]):
        plan = cosep.plan(base, digits.calibration, config=FAST, max_macs="80%", protect=pattern)
        assert names[0] not in plan.widths
    result = cosep.prune(base, digits.calibration, config=FAST, max_macs="80%", epochs=0, protect=names[0])
    why = {skip.group: skip.why for skip in result.report.not_pruned}
    assert "protected by" in why[names[0]]
    whole = dict(base.named_parameters())[f"{names[0]}.weight"]
    assert dict(result.model.named_parameters())[f"{names[0]}.weight"].shape[0] == whole.shape[0]


def test_a_protected_name_that_no_layer_has_is_refused(base, digits):
    with pytest.raises(ConfigError, match="no layer that makes channels is called so; the nearest are"):
        cosep.prune(base, digits.calibration, config=FAST, protect="block9.conv1x, con")


def test_a_result_says_itself_in_five_lines_and_in_a_notebook(base, digits):
    result = cosep.prune(base, digits.calibration, digits.test, config=FAST, max_macs="60%", epochs=0)
    assert len(repr(result).splitlines()) == 5
    assert f"{100 * result.report.after.accuracy:.2f} %" in repr(result)
    assert all(group.group in result.summary() for group in result.plan.groups)
    html = result._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") == 5
    assert "test accuracy" in html


def test_a_result_exports_itself(base, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    result = cosep.prune(base, digits.calibration, config=FAST, max_macs="60%", epochs=0)
    result.export_onnx(tmp_path / "small.onnx")
    images = next(iter(digits.test))[0][:5]
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), result.model.eval()(images), rtol=1e-3, atol=1e-3)


def test_inputs_without_labels_are_enough(base, digits, unlabelled, tmp_path):
    labelled = cosep.prune(base, digits.calibration, config=FAST, max_macs="60%", epochs=0)
    tensors = cosep.prune(base, unlabelled, config=FAST, max_macs="60%", epochs=0, run=tmp_path / "run")
    assert tensors.plan.groups == labelled.plan.groups
    images = DataLoader(TensorDataset(torch.cat(unlabelled)), batch_size=64)  # gives lists of one tensor
    assert cosep.plan(base, images, config=FAST, max_macs="60%").cost.macs_after == pytest.approx(
        labelled.plan.cost.macs_after, rel=0.05
    )
    trained = cosep.prune(base, unlabelled, config=FAST, max_macs="60%", epochs=1)
    assert trained.report.recovery.updates == len(unlabelled)


def test_without_a_limit_or_labels_the_amount_is_found_by_agreement(base, unlabelled):
    result = cosep.prune(base, unlabelled, config=FAST, epochs=0)
    assert result.report.tried
    assert result.report.change.macs < 1


@pytest.mark.parametrize(
    "given",
    [
        {"criterion": "cosep"},
        {"criterion": "taylor"},
        {"evaluate": True},
        {"holdout": True},
        {"config": replace_settings(FAST, {"recover": {"distill": 0.0, "epochs": 1.0}})},
    ],
)
def test_what_needs_labels_says_so(base, unlabelled, given):
    given = {name: list(unlabelled) if value is True else value for name, value in given.items()}
    with pytest.raises(DataError, match="without labels, which are needed"):
        cosep.prune(base, unlabelled, **{"config": FAST, "max_macs": "60%", **given})
