"""The log as TensorBoard events: with a writer that notes what it is given, as the real one is not always there."""

import json
import sys
import types

import pytest
import torch
from torch import nn

import cosep
from cosep.errors import ConfigError

FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "select": {"criterion": "l2", "width_rule": "uniform"},
    "device": {"accelerator": "cpu"},
    "limits": {"max_macs": "80%"},
}


@pytest.fixture
def written(monkeypatch):
    """What the last writer was given."""
    found = []

    class SummaryWriter:
        def __init__(self, folder):
            found.clear()
            self.folder = folder

        def add_scalar(self, name, value, step, walltime):
            found.append((name, value, step, walltime))

        def flush(self):
            pass

        def close(self):
            found.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return found


class Stop(Exception):
    """What a test throws in the middle of a run."""


def pruned(folder, stop_at=0, **more):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
    labels = torch.arange(48) % 3
    images = torch.randn(48, 1, 8, 8) + labels.view(-1, 1, 1, 1)
    batches = list(zip(images.split(8), labels.split(8), strict=True))

    def on_update(done, total, loss):
        if done == stop_at:
            raise Stop

    return cosep.prune(
        net,
        batches,
        config=cosep.replace_settings(cosep.preset(), {**FAST, "checkpoint_seconds": 0.0}),
        epochs=2,
        holdout=batches,
        run=folder,
        callbacks=cosep.Callbacks(on_update=on_update),
        **more,
    )


def test_every_number_of_the_log_is_an_event_also_after_a_stop(tmp_path, written):
    with pytest.raises(Stop):
        pruned(tmp_path / "run", stop_at=9, tensorboard=True)
    pruned(tmp_path / "run", tensorboard=True)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    epochs = [entry for entry in log if entry["event"] == "epoch"]
    assert len(epochs) == 2
    losses = [each for each in written if each[0] == "epoch/loss"]
    assert losses == [("epoch/loss", entry["loss"], entry["updates"], entry["time"]) for entry in epochs]
    kept = [value for name, value, *_ in written[:-1] if name == "group/kept"]
    assert kept == [entry["kept"] for entry in log if entry["event"] == "group"]
    assert written[-1] == "closed"
    before = list(written)
    pruned(tmp_path / "run", tensorboard=True)  # finished: only read
    assert written == before


def test_without_the_package_one_line_says_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        pruned(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="`run` is None"):
        pruned(None, tensorboard=True)
