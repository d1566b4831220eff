import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

import cosep
from cosep.errors import RunError
from cosep.storage.artifacts import is_saved

SCRIPT = Path(__file__).with_name("killed_runs.py")


@pytest.fixture(scope="module")
def weights(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "base.safetensors"
    save_model(base, str(path))
    return path


KILLED_IN = {
    "default": ["look", "damage", "search:1", "search:4", "cut", "rebuild", "recover", "measure"],
    "paper": ["observe", "profile", "cut", "recover:2", "recover"],
}


@pytest.mark.parametrize("preset", KILLED_IN)
def test_a_run_killed_in_any_stage_ends_bit_identical(weights, tmp_path, preset):
    command = [sys.executable, SCRIPT, weights, tmp_path, preset, *KILLED_IN[preset]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] == KILLED_IN[preset]
    assert told["equal"]


class Stop(Exception):
    """What a test throws in the middle of a run."""


def start(base, digits, config, folder, **callbacks):
    return cosep.prune(
        base,
        digits.calibration,
        None,
        config=config,
        train=digits.train,
        holdout=digits.holdout,
        run=folder,
        callbacks=cosep.Callbacks(**callbacks),
    )


@pytest.mark.parametrize("schedule", ["final", "per-layer"])
def test_a_run_stopped_in_a_recovery_goes_on_in_it(base, digits, quick, tmp_path, schedule):
    config = quick(recover={"schedule": schedule}, checkpoint_seconds=0.0, limits={"max_drop": 99.0})
    whole = start(base, digits, config, tmp_path / "whole")

    def stop(done, total, loss):
        if done == total - 1:
            raise Stop

    with pytest.raises(Stop):
        start(base, digits, config, tmp_path / "stopped", on_update=stop)
    updates = []
    resumed = start(base, digits, config, tmp_path / "stopped", on_update=lambda done, *_: updates.append(done))
    assert updates[0] > 1
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])
    assert resumed.plan == whole.plan


def test_a_finished_run_is_read_and_not_run_again(base, digits, quick, tmp_path):
    config = quick(recover={"schedule": "none"})
    first = start(base, digits, config, tmp_path / "run")
    assert is_saved(tmp_path / "run")
    stages = []
    second = start(base, digits, config, tmp_path / "run", on_stage=lambda *stage: stages.append(stage))
    assert stages == []
    assert second.plan == first.plan
    assert second.report == first.report
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_run_folder_of_another_config_or_model_is_refused(base, digits, quick, tmp_path):
    config = quick(recover={"schedule": "none"})
    start(base, digits, config, tmp_path / "run")
    with pytest.raises(RunError, match=r"its seed is 0, this one's is 1"):
        start(base, digits, quick(recover={"schedule": "none"}, seed=1), tmp_path / "run")
    other = cosep.load_model("digits_cnn", classes=10)
    with pytest.raises(RunError, match=r"its about\.weights_sha256 is"):
        start(other, digits, config, tmp_path / "run")


def test_a_full_disk_loses_nothing_that_was_saved(base, digits, quick, tmp_path, monkeypatch):
    config = quick(recover={"schedule": "none"})
    whole = start(base, digits, config, tmp_path / "whole")
    written = []

    def full(path, content, real=cosep.runs.folder.write_atomically):
        if len(written) == 3:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("cosep.runs.folder.write_atomically", full)
        with pytest.raises(RunError, match=r"could not be written: No space left on device\. Nothing that was saved"):
            start(base, digits, config, tmp_path / "run")
    resumed = start(base, digits, config, tmp_path / "run")
    assert all(torch.equal(t, resumed.model.state_dict()[n]) for n, t in whole.model.state_dict().items())
