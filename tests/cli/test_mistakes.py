"""Mistakes that once ended in a traceback, or in a file that was not what had been asked for."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

import onnx
import pytest
import torch

import cosep
from cosep.cli import main
from cosep.errors import ConfigError, ExportError
from cosep.runs.fabric import launched
from cosep.storage.export import export_onnx
from cosep.storage.folder import read_artifact

FAST = {
    "observe": {"images": 60},
    "rebuild": {"images": 30},
    "recover": {"schedule": "none"},
    "device": {"accelerator": "cpu"},
}


def batches():
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 10
    images = torch.randn(60, 1, 8, 8, generator=chance) + labels.view(-1, 1, 1, 1)
    return list(zip(images.split(20), labels.split(20), strict=True))


@pytest.fixture(scope="module")
def result():
    torch.manual_seed(0)
    net = cosep.load_model("digits_cnn", classes=10)
    return cosep.prune(net, batches(), batches(), config=cosep.replace_settings(cosep.preset(), FAST))


def saved_run(folder, **facts):
    torch.manual_seed(0)
    net = cosep.load_model("digits_cnn", classes=10)
    about = {"model": "digits_cnn", "classes": 10, "input": [1, 8, 8], **facts}
    cosep.prune(net, batches(), config=cosep.replace_settings(cosep.preset(), FAST), run=folder, about=about)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return saved_run(tmp_path_factory.mktemp("mistakes") / "run")


def said(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["cosep", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told.strip().splitlines()[-1]


def test_an_operator_set_is_the_one_that_was_asked_for_or_refused(tmp_path, run, capsys, monkeypatch):
    example = torch.randn(1, 1, 8, 8)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    for opset in (13, 18, 20):
        path = tmp_path / f"{opset}.onnx"
        found = None
        with suppress(ExportError):  # which sets it can write is the exporter's affair
            found = export_onnx(net.eval(), path, example, opset=opset)
        if found is None:
            with pytest.raises(ExportError, match=f"operator set {opset}: it gave"):
                export_onnx(net.eval(), path, example, opset=opset)
            assert not path.exists()
        else:
            written = {entry.domain: entry.version for entry in onnx.load(path).opset_import}[""]
            assert found.opset == written == opset
            assert f"opset {opset}" in str(found)
    words = ["export", run, "--onnx", tmp_path / "net.onnx", "--repeats", "2", "--opset", "18"]
    monkeypatch.setattr(sys, "argv", ["cosep", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "ONNX operator set 18" in capsys.readouterr().err.replace("\n", " ")


def test_an_input_of_another_shape_is_one_line(run, capsys, monkeypatch, tmp_path):
    told = said(capsys, monkeypatch, "bench", run, "--input", "3,8,8", "--repeats", "1")
    assert "the model fails on an input of shape (3, 8, 8)" in told
    told = said(capsys, monkeypatch, "export", run, "--input", "3,8,8", "--torch", tmp_path / "a.pt2")
    assert "the model fails on an input of shape (3, 8, 8)" in told


def test_an_input_that_no_memory_holds_is_one_line(capsys, monkeypatch):
    told = said(capsys, monkeypatch, "inspect", "digits_cnn", "--input", "99999999,99999")
    assert "9,999,899,900,001 numbers; at most 16,777,216" in told


def test_figures_that_cannot_be_written_are_one_line(run, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    # A folder below a file cannot be made by anybody, while root writes through any permission.
    told = said(capsys, monkeypatch, "report", run, "--out", tmp_path / "a.html", "--figures", tmp_path / "file" / "f")
    assert "could not be written" in told


@pytest.mark.parametrize("out", ["/", ".", ".."])
def test_weights_that_have_no_file_name_are_one_line(out, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits_cnn", "--data", "digits", "--out", out, "--epochs", "0.01", "--quiet"]
    assert "is a folder; give the file to write, such as" in said(capsys, monkeypatch, *words)


@pytest.mark.parametrize(
    ("setting", "word"),
    [({"accelerator": "cuda"}, "'cuda'"), ({"accelerator": "cpu", "precision": "float16"}, "'float16'")],
)
def test_a_device_or_precision_that_is_not_to_be_had_is_one_line(setting, word):
    if setting["accelerator"] == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match=f"{word}.*not to be had here") as refused:
        launched(cosep.DeviceConfig(**setting))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("facts", [{"model": "torchvision:regnet_y_128gf"}, {"classes": 100_000}])
def test_a_folder_that_names_a_huge_architecture_is_refused_before_it_is_built(facts, tmp_path, capsys, monkeypatch):
    folder = saved_run(tmp_path / "run", **facts)
    built = []
    real = torch.nn.Parameter.__new__

    def watched(cls, data=None, requires_grad=True):
        built.append(0 if data is None or data.is_meta else data.numel())
        return real(cls, data, requires_grad)

    monkeypatch.setattr(torch.nn.Parameter, "__new__", watched)
    assert "Nothing of it was run" in said(capsys, monkeypatch, "bench", folder, "--repeats", "1")
    assert sum(built) < 5_000_000  # what fits into the size of the pruned one, and a layer; the whole has 644 million


@pytest.mark.parametrize("at", ["torch", "cosep.cli.app"])
def test_control_c_while_the_command_is_imported_is_one_line(at):
    # The import of the commands is interrupted as a terminal would do it.
    code = (
        "import sys, _thread, importlib.abc\n"
        "class Interrupting(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {at!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from cosep_command import main\n"
        "main()\n"
    )
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=heed)
    assert done.returncode == 130
    assert done.stderr == "cosep: stopped\n"


def test_a_network_that_was_trained_on_is_saved_with_a_report_that_says_so(result, tmp_path):
    tuned = cosep.PruneResult(result.model, result.plan, result.report)
    assert read_artifact(result.save(tmp_path / "fresh")).report == json.loads(json.dumps(result.report.to_document()))
    before = {name: tensor.clone() for name, tensor in result.model.state_dict().items()}
    try:
        with torch.no_grad():
            tuned.model.linear.weight.zero_()
            tuned.model.linear.bias.copy_(torch.arange(10.0))  # always the last class: 10 % of the labels
        with pytest.warns(UserWarning, match="changed after it was measured: accuracies and latency are of"):
            older = read_artifact(tuned.save(tmp_path / "older")).report
        assert older["after"] == json.loads(json.dumps(result.report.after.to_document()))
        assert "accuracies and latency are of the network before" in older["notes"][-1]
        again = read_artifact(tuned.save(tmp_path / "again", evaluate=batches())).report
        assert again["after"]["accuracy"] == pytest.approx(0.1)
        assert again["change"]["accuracy"] == pytest.approx(0.1 - result.report.before.accuracy)
        assert "held-out accuracy are of the network before" in again["notes"][-1]
    finally:
        result.model.load_state_dict(before)
