"""The commands as a user types them, on the real digits."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial

import pytest
from typer.testing import CliRunner

from cosep.cli import main
from cosep.cli.app import app
from cosep.cli.options import configured, setting_flags
from cosep.config import preset
from cosep.errors import ConfigError, DataError

FAST = [
    "--accelerator",
    "cpu",
    "--observe-images",
    "300",
    "--rebuild-images",
    "150",
    "--epochs",
    "0.2",
    "--share",
    "0.5",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    done = CliRunner().invoke(
        app, ["train", "digits_cnn", "--data", "digits", "--out", str(path), "--epochs", "4", "--accelerator", "cpu"]
    )
    assert done.exit_code == 0, done.output
    return path


def prune(trained, out, *flags):
    words = ["prune", "digits_cnn", "--weights", str(trained), "--data", "digits", "--out", str(out), *FAST, *flags]
    return CliRunner().invoke(app, words)


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    done = prune(trained, out)
    assert done.exit_code == 0, done.output
    return out, done


def test_prune_shows_a_line_for_each_group_a_table_and_the_folder(run):
    out, done = run
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines if "->" in line] == ["layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1"]
    assert "test accuracy" in done.stderr
    assert lines[-1].endswith("run") or str(out)[-20:] in done.stderr.replace("\n", "")


def test_mean_and_std_belong_to_the_run_and_are_read_again(run, trained, tmp_path, monkeypatch):
    out, _ = run
    other = prune(trained, out, "--mean", "0.5")
    assert "belongs to another run: its about.mean is [0.2876], this one's is [0.5]" in str(other.exception)
    seen = {}

    def stop(spec, **given):
        seen.update(given)
        raise DataError("seen enough")

    monkeypatch.setattr("cosep.data.load_data", stop)
    words = ["report", str(out), "--out", str(tmp_path / "r.html"), "--figures", str(tmp_path), "--data", "digits"]
    CliRunner().invoke(app, words)
    assert (seen["mean"], seen["std"], seen["image_size"]) == ([0.2876], [0.3541], 8)


@pytest.mark.parametrize("words", [["--mean", "a,b"], ["--mean", "0.1,0.2"], ["--std", "0"]])
def test_numbers_that_are_no_mean_or_std_are_told(words, trained, tmp_path):
    done = prune(trained, tmp_path / "run", *words)
    assert isinstance(done.exception, ConfigError)
    assert words[0].strip("-") in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_report_export_and_bench_read_the_run(run, tmp_path):
    out, _ = run
    told = CliRunner().invoke(app, ["report", str(out), "--json"])
    assert json.loads(told.stdout)["format"] == 2
    done = CliRunner().invoke(
        app, ["export", str(out), "--onnx", str(tmp_path / "net.onnx"), "--json", "--repeats", "3"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["onnx"]["max_difference"] < 1e-3
    assert (tmp_path / "net.onnx").exists()
    done = CliRunner().invoke(app, ["bench", str(out), "--repeats", "3", "--json"])
    assert done.exit_code == 0, done.output


def test_json_is_alone_on_standard_output(trained, tmp_path):
    done = prune(trained, tmp_path / "run", "--json", "--schedule", "none")
    assert json.loads(done.stdout)["settings"]["recover"]["schedule"] == "none"


UNLABELLED = """
from cosep.data import load_data

def images():
    return {"train": [inputs for inputs, _ in load_data("digits", batch_size=64).calibration]}
"""


def test_images_without_labels_are_pruned_without_training_and_a_comparison_says_what_it_needs(trained, tmp_path):
    (tmp_path / "data.py").write_text(UNLABELLED)
    spec = ["digits_cnn", "--weights", str(trained), "--data", f"{tmp_path}/data.py:images"]
    words = ["prune", *spec, "--out", str(tmp_path / "run"), *FAST, "--max-macs", "50%", "--epochs", "0", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["after"]["macs"] <= 0.5 * report["before"]["macs"]
    assert report["after"]["accuracy"] is None
    assert report["rebuild"]["divergence"] < report["rebuild"]["divergence_cut"]
    compared = CliRunner().invoke(app, ["compare", *spec, "--out", str(tmp_path / "compared"), "--with", "l2"])
    assert isinstance(compared.exception, DataError)
    assert "no test images, which a comparison is about" in str(compared.exception)


def test_compare_prints_a_row_for_each_method_and_keeps_the_trials(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("cosep.cli.common.console.width", 160)
    words = ["compare", "digits_cnn", "--weights", str(trained), "--data", "digits", "--out", str(tmp_path / "all")]
    words += ["--with", "random, l2", "--seeds", "2", "--schedule", "none", *FAST]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for name in ("elimination", "random", "l2"):
        assert f"{name} with seed 1" in done.stderr
    assert "elimination (the default)" in done.stderr
    assert "elimination is ahead by" in done.stderr
    assert "beyond noise" in done.stderr
    trials = json.loads((tmp_path / "all" / "compare.json").read_text())["trials"]
    assert len(trials) == 6
    page = (tmp_path / "all" / "report.html").read_text()
    shown = json.loads(page.partition('id="comparison">')[2].partition("</script>")[0])
    labels = [each["label"] for each in shown["configurations"]]
    assert labels == ["A · elimination (the default)", "B · random", "C · l2"]
    assert [row["after"] for row in shown["runs"]] == pytest.approx([trial["accuracy"] for trial in trials], abs=1e-4)
    assert [each["method"] for each in shown["paired"]] == ["elimination", "random", "l2"]
    random = [100 * trial["accuracy"] for trial in trials if trial["method"] == "random"]
    assert shown["paired"][1]["mean"] == pytest.approx(sum(random) / 2, abs=1e-2)
    (tmp_path / "all" / "report.html").unlink()
    again = CliRunner().invoke(app, ["report", str(tmp_path / "all")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "all" / "report.html").read_text() == page


def test_inspect_gives_json_with_reasons(trained):
    done = CliRunner().invoke(app, ["inspect", "digits_cnn", "--json"])
    groups = json.loads(done.stdout)["groups"]
    assert {g["name"] for g in groups} >= {"layer1.0.conv1", "linear"}


def test_every_setting_has_a_flag_of_its_own():
    flags = [flag for names in setting_flags().values() for flag in names]
    assert len(flags) == len(set(flags))
    stages = asdict(preset())  # with the limits, which are None
    paths = {
        f"{s}.{k}" if isinstance(v, dict) else s for s, v in stages.items() for k in (v if isinstance(v, dict) else "-")
    }
    assert set(setting_flags()) == paths
    assert {
        "--p",
        "--metric",
        "--silhouette",
        "--representative",
        "--schedule",
        "--scope",
        "--round-to",
        "--seed",
    } <= set(flags)


def test_the_help_names_every_flag_and_its_default():
    told = CliRunner().invoke(app, ["prune", "--help-all"], env={"COLUMNS": "300"}).stdout
    for names in setting_flags().values():
        assert all(name in told for name in names)
    assert "(default: elimination)" in told


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('seed = 4\n[select]\ndegree = 3\nsilhouette = "nearest"\n')
    config = configured("paper", file, {"select": {"degree": 5}})
    assert (config.select.degree, config.select.silhouette, config.seed) == (5, "nearest", 4)
    assert config.recover == preset("paper").recover


def test_the_saved_settings_of_a_run_are_a_config_file(run):
    out, _ = run
    assert configured("default", out / "config.toml", {}).observe.images == 300


def failing(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["cosep", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    lines = [line for line in said.strip().splitlines() if not line.startswith("loading ")]  # said at once, by prune
    assert len(lines) == 1
    return said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prune", "resnet57", "--data", "digits", "--out", "x"], "resnet56"),
        (["prune", "digits_cnn", "--data", "digit", "--out", "x"], "did you mean digits"),
        (["prune", "digits_cnn", "--data", "cifar10:/nowhere", "--out", "x"], "/nowhere"),
        (["prune", "digits_cnn", "--data", "digits", "--out", "x", "--preset", "papr"], "preset is 'papr'"),
        (["prune", "digits_cnn", "--data", "digits", "--out", "x", "--max-classes", "1"], "must be at least 2"),
        (["prune", "digits_cnn", "--data", "digits", "--out", "x", "--max-macs", "half"], "give a share such as"),
        (["prune", "digits_cnn", "--data", "digits", "--out", "x"], "without --weights"),
        (["compare", "digits_cnn", "--data", "digits"], "without --weights"),
        (["report", "nowhere"], "nowhere"),
        (["bench", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_one(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert message in failing(capsys, monkeypatch, *words)


def test_a_checkpoint_that_does_not_fit_names_the_first_keys(trained, capsys, monkeypatch, tmp_path):
    said = failing(
        capsys, monkeypatch, "prune", "resnet20", "--weights", trained, "--data", "digits", "--out", tmp_path / "x"
    )
    assert "conv1.weight" in said


def test_another_setting_in_the_same_folder_is_refused(run, trained, capsys, monkeypatch):
    out, _ = run
    words = ["prune", "digits_cnn", "--weights", trained, "--data", "digits", "--out", out, *FAST, "--p", "3"]
    assert "its select.degree is 2, this one's is 3" in failing(capsys, monkeypatch, *words)


def test_control_c_leaves_a_run_that_goes_on(trained, tmp_path):
    out = tmp_path / "run"
    words = ["prune", "digits_cnn", "--weights", trained, "--data", "digits", "--out", out, "--accelerator", "cpu"]
    command = [
        sys.executable,
        "-m",
        "cosep",
        *map(str, words),
        "--share",
        "1",
        "--epochs",
        "200",
        "--checkpoint-seconds",
        "0",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A test run in the background of a shell is born deaf to SIGINT, and so would its children be.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heed) as child:
        deadline = time.monotonic() + 120
        while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert child.returncode == 130
    assert "the same command goes on in" in said.replace("\n", " ")
    assert (out / "checkpoint.safetensors").exists()


def test_what_a_factory_prints_is_not_mixed_with_the_json(tmp_path):
    file = tmp_path / "talkative.py"
    file.write_text(
        "from torch import nn\n"
        "print('being imported')\n"
        "def make():\n"
        "    print('Loaded pretrained weights')\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 2))\n"
    )
    done = CliRunner().invoke(app, ["inspect", f"{file}:make", "--input", "3,8,8", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["groups"]
    assert "Loaded pretrained weights" in done.stderr
