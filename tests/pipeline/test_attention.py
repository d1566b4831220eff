"""A Transformer through limits, comparisons and training after a cut, as the CNNs beside it go."""

import pytest
import torch

import cosep
from cosep.comparison.trials import compare
from cosep.config import preset, replace_settings
from cosep.data import Data
from cosep.errors import ConfigError
from cosep.measurement import macs
from cosep.runs.probing import NetworkProbe
from cosep.storage.artifacts import read_documents
from cosep.zoo.vit import CifarViT

HEADS, SIZE = 4, 4
UNITS = {f"blocks.{block}.{layer}" for block in range(2) for layer in ("attention.query", "linear1")}


def tiny():
    torch.manual_seed(0)
    return CifarViT(2, width=HEADS * SIZE, heads=HEADS, classes=3, size=8)


def images(seed, count=96):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    kinds = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(9))
    return list(zip((kinds[y] + torch.randn(count, 3, 8, 8, generator=generator)).split(32), y.split(32), strict=True))


def settings(**changes):
    plain = {"device": {"accelerator": "cpu"}, "observe": {"images": 96}, "recover": {"schedule": "none"}}
    return replace_settings(preset(), {**plain, **changes})


def clock(model):
    """A time that follows from what is left, so that a busy machine decides nothing."""
    heads = sum(block.attention.query.out_features // SIZE for block in model.blocks)
    neurons = sum(block.linear1.out_features for block in model.blocks)
    return heads + neurons / 20


def test_a_limit_on_the_time_is_met_by_heads_and_neurons(monkeypatch):
    monkeypatch.setattr(NetworkProbe, "milliseconds", lambda self, widths: clock(self.network(widths)))
    model = tiny()
    assert clock(model) == 8 + 6.4
    # With an eighth of the neurons, which is the least, heads still have to go.
    result = cosep.prune(model, images(0), config=settings(limits={"max_latency_ms": 7.0}))
    assert 7.0 - 1.05 < clock(result.model) <= 7.0
    assert {each.group for each in result.plan.groups} == UNITS
    assert "latency in ms" in result.report.limits[0]


def test_a_limit_out_of_reach_speaks_of_heads():
    with pytest.raises(
        ConfigError, match=r"4 of 6 groups of heads and channels may be cut, .* an eighth, or one head,"
    ):
        cosep.prune(tiny(), images(0), config=settings(limits={"max_macs": "1%"}))


def test_every_criterion_cuts_as_many_heads_and_neurons_and_chooses_its_own(tmp_path):
    parts = {"train": images(0), "calibration": images(0), "holdout": None, "test": images(1)}
    data = Data("made", **parts, class_names=(), input_shape=(3, 8, 8))
    names = ["cosep", "l2", "taylor", "random"]
    config = settings(limits={"max_macs": "45%"})
    trials = compare(tiny(), lambda seed: data, names, seeds=[0], out=tmp_path, config=config)
    assert [trial.method for trial in trials] == ["elimination", *names]
    assert len({trial.macs for trial in trials}) == 1
    plans = [read_documents(tmp_path / f"{trial.method}-0")[0] for trial in trials]
    widths = [{each.group: (len(each.kept), each.unit) for each in plan.groups} for plan in plans]
    assert all(other == widths[0] for other in widths)
    assert set(widths[0]) == UNITS
    assert {unit for _, unit in widths[0].values()} == {"head", "channel"}
    assert len({tuple(each.kept for each in plan.groups) for plan in plans}) > 1


class Stop(Exception):
    """What a test throws in the middle of a run."""


def test_training_after_a_cut_goes_on_where_it_was_stopped_and_keeps_what_was_cut(tmp_path):
    recover = {"schedule": "final", "epochs": 4.0, "lr": 0.01}
    config = settings(recover=recover, limits={"max_macs": "50%"}, checkpoint_seconds=0.0)

    def prune(name, on_update=lambda *_: None):
        callbacks = cosep.Callbacks(on_update=on_update)
        return cosep.prune(tiny(), images(0), config=config, run=tmp_path / name, callbacks=callbacks)

    whole, updates = prune("whole"), []

    def stop(done, total, loss):
        if done == total - 2:
            raise Stop

    with pytest.raises(Stop):
        prune("stopped", stop)
    again = prune("stopped", lambda done, *_: updates.append(done))
    assert 1 < updates[0] < updates[-1]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    x = images(1)[0][0]
    loaded = cosep.load(tmp_path / "stopped", tiny)
    with torch.no_grad():
        assert torch.equal(loaded(x), whole.model(x))
        cut = whole.plan.apply(tiny().eval())
        assert not torch.equal(cut(x), whole.model(x))  # it was trained
    assert macs(loaded, x[:1]) == macs(cut, x[:1]) <= 0.5 * macs(tiny(), x[:1])
