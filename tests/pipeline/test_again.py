"""A pruned network is pruned again: from its result, from its folder, and with the command."""

import pytest
import torch
from safetensors.torch import save_model
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.config import preset, replace_settings
from cosep.errors import ArtifactError, PlanError
from cosep.reporting.records import Report
from cosep.storage.artifacts import read_documents
from cosep.surgery.plan import plan_from_document, plan_to_document
from cosep.zoo import load_model

FAST = replace_settings(
    preset(), {"device": {"accelerator": "cpu"}, "select": {"criterion": "l2"}, "rebuild": {"images": 200}}
)


def build():
    return load_model("digits_cnn", classes=10)


@pytest.fixture(scope="module")
def twice(base, digits, tmp_path_factory):
    """A network after one step and after two, the second from the folder of the first."""
    folder = tmp_path_factory.mktemp("again")
    cosep.prune(base, digits.calibration, digits.test, config=FAST, max_macs="70%", epochs=0, run=folder / "one")
    once = cosep.PruneResult.load(folder / "one", build)
    both = cosep.prune(once, digits.calibration, digits.test, config=FAST, max_macs="70%", epochs=0, run=folder / "two")
    return folder, once, both


def outputs(model, digits):
    with torch.no_grad():
        return model.eval()(next(iter(digits.test))[0])


def test_the_report_shows_both_steps(twice):
    _, once, both = twice
    step = both.report.earlier[0]
    assert (step.before.macs, step.after.macs) == (once.report.before.macs, once.report.after.macs)
    assert both.report.before.macs == once.report.after.macs
    assert both.report.after.macs <= 0.7 * once.report.after.macs
    share = 100 * both.report.after.macs / once.report.before.macs
    said = both.summary()
    assert "step 1" in said
    assert f"{share:.1f} % of the MACs" in said
    assert Report.from_document(both.report.to_document()) == both.report


def test_what_was_pruned_twice_loads_from_the_constructor_of_the_uncut_network(twice, digits):
    folder, once, both = twice
    for start in (build, once.model):
        assert torch.equal(outputs(cosep.load(folder / "two", start), digits), outputs(both.model, digits))
    shapes = {name: tensor.shape for name, tensor in both.plan.apply(build()).state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in both.model.state_dict().items()}
    with pytest.raises(ArtifactError, match="another architecture"):
        cosep.load(folder / "two", load_model("digits_cnn", classes=7))


def test_the_same_call_finds_its_result_and_a_third_step_keeps_the_first_two(twice, digits):
    folder, once, both = twice
    again = cosep.prune(
        once, digits.calibration, digits.test, config=FAST, max_macs="70%", epochs=0, run=folder / "two"
    )
    assert again.report == both.report
    third = cosep.prune(again, digits.calibration, config=FAST, max_macs="80%", epochs=0)
    assert len(third.report.earlier) == len(third.plan.earlier) == 2
    third.save(folder / "three")
    assert torch.equal(outputs(cosep.load(folder / "three", build), digits), outputs(third.model, digits))


def test_a_plan_with_its_earlier_steps_survives_a_file_and_nonsense_is_refused(twice):
    plan = twice[2].plan
    document = plan_to_document(plan)
    assert plan_from_document(document) == plan
    nested = {**document, "earlier": [document]}
    with pytest.raises(PlanError, match="without earlier ones of their own"):
        plan_from_document(nested)
    with pytest.raises(PlanError, match="earlier"):
        plan_from_document({**document, "earlier": 3})


def test_the_command_takes_a_run_folder_for_a_model(base, tmp_path):
    save_model(base, tmp_path / "base.safetensors")
    common = ["--data", "digits", "--criterion", "l2", "--rebuild-images", "200", "--epochs", "0", "--quiet"]
    first = ["prune", "digits_cnn", "--weights", str(tmp_path / "base.safetensors"), "--out", str(tmp_path / "one")]
    second = ["prune", str(tmp_path / "one"), "--out", str(tmp_path / "two")]
    for words in (first, second):
        done = CliRunner().invoke(app, [*words, *common, "--max-macs", "70%"])
        assert done.exit_code == 0, done.output
    report = Report.from_document(read_documents(tmp_path / "two")[1])
    assert len(report.earlier) == 1
    page = (tmp_path / "two" / "report.html").read_text()
    assert "step 1" in page
    done = CliRunner().invoke(app, ["bench", str(tmp_path / "two"), "--repeats", "1", "--batch", "1", "--json"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, [*second, *common, "--weights", str(tmp_path / "base.safetensors")])
    assert "has its own weights" in str(refused.exception)
