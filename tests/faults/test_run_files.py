"""What injected faults have found: each of these once went unnoticed, lost something or ended in a traceback."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import cosep
from cosep.errors import ArtifactError, CosepError, RunError
from cosep.runs.folder import Checkpoint, opened
from cosep.storage.artifacts import read_documents
from cosep.storage.files import seal_of
from cosep.storage.folder import check_beside, read_artifact, write_artifact

DESCRIPTION = {"about": {"model": "net"}, "seed": 0}
FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "order": "one-by-one",
    "select": {"criterion": "cosep", "width_rule": "knee"},
    "recover": {"schedule": "per-layer", "share": 1.0, "group_epochs": 1.0},
    "device": {"accelerator": "cpu"},
    "checkpoint_seconds": 0.0,
}


class Stop(Exception):
    """What a test throws in the middle of a run."""


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def flip(path, position=-3):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def interrupted(folder):
    """A run folder with a log, evidence and a checkpoint, as a killed run leaves it."""
    with opened(folder, DESCRIPTION) as run:
        run.log("first")
        run.write("evidence/0.safetensors", b"what was seen")
        run.store(Checkpoint({"w": torch.arange(5.0)}, {"n": 1}))
        run.log("a line of which the checkpoint knows nothing")


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))


@pytest.fixture(scope="module")
def batches():
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    images = torch.randn(48, 1, 6, 6, generator=chance) + labels.view(-1, 1, 1, 1)
    return list(zip(images.split(8), labels.split(8), strict=True))


@pytest.fixture(scope="module")
def start(net, batches):
    def prune(folder, **callbacks):
        config = cosep.replace_settings(cosep.preset(), FAST)
        return cosep.prune(net, batches, config=config, run=folder, callbacks=cosep.Callbacks(**callbacks))

    return prune


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(folder)
    return folder


# A run that goes on


@pytest.mark.parametrize("name", ["log.jsonl", "evidence/0.safetensors", "config.toml", "checkpoint.safetensors"])
@pytest.mark.parametrize("kind", ["flipped", "truncated"])
def test_a_damaged_file_is_named_before_anything_is_changed(tmp_path, name, kind):
    interrupted(tmp_path)
    path = tmp_path / name
    if kind == "flipped":
        flip(path, 5)
    else:
        path.write_bytes(path.read_bytes()[:5])
    before = contents(tmp_path)
    named = r"checkpoint\.safetensors" if name.startswith("check") else name.replace(".", r"\.")
    with (
        pytest.raises(CosepError, match=named + "|belongs to another run"),
        opened(tmp_path, DESCRIPTION) as run,
    ):
        run.restore()
    assert contents(tmp_path) == before


def test_missing_evidence_is_refused_while_a_run_goes_on(tmp_path):
    interrupted(tmp_path)
    (tmp_path / "evidence" / "0.safetensors").unlink()
    with (
        pytest.raises(RunError, match=r"0\.safetensors is missing\. Put back a copy of it"),
        opened(tmp_path, DESCRIPTION) as run,
    ):
        run.restore()


def test_settings_that_were_altered_in_the_folder_and_in_the_command_alike_are_refused(tmp_path):
    interrupted(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    with (
        pytest.raises(RunError, match=r"config\.toml was altered"),
        opened(tmp_path, {**DESCRIPTION, "seed": 1}) as run,
    ):
        run.restore()


def test_an_emptied_config_is_said_to_be_damaged(tmp_path):
    interrupted(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"")
    with (
        pytest.raises(RunError, match=r"config\.toml was damaged: that says nothing of about\.model, which is 'net'"),
        opened(tmp_path, DESCRIPTION),
    ):
        pass


def test_what_was_logged_after_a_restart_is_sealed_with_what_was_before(tmp_path):
    interrupted(tmp_path)
    with opened(tmp_path, DESCRIPTION) as run:
        run.restore()
        run.log("second")
        run.store(Checkpoint({}, {}))
        assert run.seals()["log.jsonl"] == seal_of((tmp_path / "log.jsonl").read_bytes())
    with opened(tmp_path, DESCRIPTION) as run:
        run.restore()
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events == ["first", "second"]


@pytest.mark.parametrize("name", ["../outside", "evidence/.."])
def test_a_checkpoint_cannot_point_out_of_its_folder(tmp_path, name):
    with opened(tmp_path / "run", DESCRIPTION) as run:
        run.seals = lambda: {name: seal_of(b"")}
        run.store(Checkpoint({}, {}))
        with pytest.raises(RunError, match=r"vouches for .*, which is no file of a run"):
            run.restore()


@pytest.mark.parametrize("name", ["log.jsonl", "evidence"])
def test_a_run_does_not_write_through_a_link(tmp_path, name):
    with opened(tmp_path / "run", DESCRIPTION):
        pass
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"{name} is a link"), opened(tmp_path / "run", DESCRIPTION):
        pass


# A disk that is full


@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.store(Checkpoint({"w": torch.zeros(3)}, {"n": 2})),
        lambda run: run.write("evidence/1.safetensors", b"more"),
    ],
)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_is_one_sentence_and_the_next_start_goes_on(tmp_path, monkeypatch, write, function):
    interrupted(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path, DESCRIPTION) as run:
        run.restore()
        with monkeypatch.context() as patch:
            patch.setattr(os, function, full)
            with pytest.raises(RunError, match=r"could not be written: No space left on device\. Nothing .* is lost"):
                write(run)
    with opened(tmp_path, DESCRIPTION) as run:
        assert run.restore().document == {"n": 1}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(RunError, match=r"could not be written: Not a directory"),
        opened(tmp_path / "file" / "run", DESCRIPTION),
    ):
        pass


# A run that is finished


def test_a_start_tidies_up_after_a_run_that_was_killed_while_it_finished(start, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / ".artifact-ready").mkdir()
    for name in ("model.safetensors", "plan.json", "report.json", "manifest.json"):
        (folder / name).rename(folder / ".artifact-ready" / name)
    (folder / "report.html").unlink()
    (folder / "checkpoint.safetensors").write_bytes(b"of the last step")
    start(folder)
    assert contents(folder) == contents(whole)
    assert not (folder / ".artifact-ready").exists()


@pytest.mark.parametrize("name", ["log.jsonl", "evidence/0.safetensors", "model.safetensors", "plan.json"])
def test_damage_to_a_finished_run_is_seen_and_left_alone(start, whole, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    flip(folder / name)
    before = contents(folder)
    with pytest.raises(ArtifactError, match=f"{name} was altered"):
        start(folder)
    with pytest.raises(ArtifactError, match=f"{name} was altered"):
        read_documents(folder)
    assert contents(folder) == before


def test_the_log_of_a_restarted_recovery_gives_the_mean_loss_of_the_whole_pass(start, whole, tmp_path):
    def losses(folder):
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["event"] == "epoch"]

    def stop(done, total, loss):
        if done == 4:
            raise Stop

    with pytest.raises(Stop):
        start(tmp_path / "stopped", on_update=stop)
    start(tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(whole)


# An artifact and what lies beside it


def saved(folder, beside):
    return write_artifact(folder, weights={"w": torch.ones(2)}, plan={}, report={}, beside=beside)


def test_files_beside_an_artifact_may_go_but_not_change(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"a line")
    saved(tmp_path, {"log.jsonl": seal_of(b"a line")})
    check_beside(read_artifact(tmp_path))
    (tmp_path / "log.jsonl").write_bytes(b"a lime")
    with pytest.raises(ArtifactError, match=r"log\.jsonl was altered: its checksum"):
        check_beside(read_artifact(tmp_path))
    (tmp_path / "log.jsonl").unlink()
    check_beside(read_artifact(tmp_path))


def test_a_disk_that_fails_for_good_is_one_sentence_even_where_nothing_can_be_tidied_up(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    for function in ("mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, function, failing)
        monkeypatch.setattr(Path, function, failing)  # which in Python 3.10 holds on to the system's own functions
    with pytest.raises(ArtifactError, match=r"could not be written \(.*Input/output error\); what was there before"):
        saved(tmp_path, {})


@pytest.mark.parametrize("name", ["../log", "/etc/passwd", "a/../../b", "a//b", "c:\\log", ""])
def test_names_beside_an_artifact_cannot_lead_out_of_its_folder(tmp_path, name):
    saved(tmp_path, {name: seal_of(b"")})
    with pytest.raises(ArtifactError, match="not a plain name: it may lead out of the folder"):
        read_artifact(tmp_path)


def test_who_may_read_the_plan_may_read_the_weights(tmp_path):
    saved(tmp_path, {})
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("model.safetensors", "plan.json")}
    assert len(modes) == 1
