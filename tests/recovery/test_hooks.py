"""Parts of the training that are the caller's own, and averages of the weights."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import cosep
from cosep.config import DeviceConfig, RecoverConfig
from cosep.errors import ConfigError, RecoveryError, RunError
from cosep.recovery import RecoveryHooks, recover
from cosep.runs.fabric import launched

PLAIN = {"distill": 0.0, "features": 0.0, "warmup": 0.0, "decay": "constant", "clip": 0.0}
FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "select": {"criterion": "l2", "width_rule": "uniform"},
    "limits": {"max_macs": "70%"},
    "device": {"accelerator": "cpu"},
}


@pytest.fixture(scope="module")
def fabric():
    return launched(DeviceConfig(accelerator="cpu"))


@pytest.fixture
def batches():
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 6, generator=chance)
    return list(zip(inputs.split(8), (inputs[:, 0] > 0).long().split(8), strict=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.body(x))


def trained(batches, fabric, hooks=None, updates=10, **settings):
    model = Net()
    config = RecoverConfig(**{**PLAIN, "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, **settings})
    recover(model, batches, updates, config, fabric=fabric, batches_a_pass=len(batches), hooks=hooks)
    return model


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def by_hand(batches, optimizer_of, loss, augment=lambda x, y: (x, y), updates=10, rate=lambda u: 1.0):
    """The same training written out, and the weights after each update."""
    model = Net().train()
    optimizer = optimizer_of(model)
    peaks = [group["lr"] for group in optimizer.param_groups]
    history = []
    for update in range(updates):
        x, y = augment(*batches[update % len(batches)])
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate(update)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        history.append({name: value.clone() for name, value in model.state_dict().items()})
    return model, history


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def two_rates(model):
    return torch.optim.Adam(
        [{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": 0.2}], lr=0.01
    )


def test_a_loss_an_augmentation_and_an_optimizer_of_ones_own_train_as_written_out(batches, fabric):
    hooks = RecoveryHooks(
        loss=lambda scores, labels, teacher: F.multi_margin_loss(scores, labels),
        augment=lambda inputs, labels: (-inputs, labels),
        optimizer=two_rates,
    )
    expected, _ = by_hand(batches, two_rates, F.multi_margin_loss, hooks.augment)
    assert same(trained(batches, fabric, hooks), expected)


def test_the_settings_warm_up_and_decay_scale_the_rates_of_an_own_optimizer(batches, fabric):
    found = trained(batches, fabric, RecoveryHooks(optimizer=two_rates), lr=9.0, warmup=0.5)
    rising = [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6] + [1.0] * 5
    expected, _ = by_hand(batches, two_rates, F.cross_entropy, rate=lambda update: rising[update])
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_uncut_networks_scores_reach_the_loss(batches, fabric):
    seen = []

    def loss(scores, labels, teacher):
        seen.append((labels, teacher))
        return F.mse_loss(scores, teacher)

    teacher = Net().eval()
    config = RecoverConfig(**{**PLAIN, "lr": 0.05, "distill": 0.5})
    unlabelled = [inputs for inputs, _ in batches]
    hooks = RecoveryHooks(loss=loss)
    recover(Net(), unlabelled, 3, config, fabric=fabric, batches_a_pass=8, teacher=teacher, hooks=hooks)
    assert [labels for labels, _ in seen] == [None] * 3
    with torch.no_grad():
        assert torch.equal(seen[1][1], teacher(batches[1][0]))


def test_a_moving_average_is_the_result(batches, fabric):
    _, history = by_hand(batches, sgd, F.cross_entropy)
    found = trained(batches, fabric, ema=0.9)
    expected = history[0]["head.weight"].clone()
    for n, weights in enumerate(history[1:], start=1):
        decay = min(0.9, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * weights["head.weight"]
    torch.testing.assert_close(found.head.weight.detach(), expected)


def test_an_average_of_ones_own_is_the_result(batches, fabric):
    _, history = by_hand(batches, sgd, F.cross_entropy)
    found = trained(batches, fabric, RecoveryHooks(average=AveragedModel))
    mean = torch.stack([weights["head.weight"] for weights in history]).mean(0)
    torch.testing.assert_close(found.head.weight.detach(), mean)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (
            RecoveryHooks(loss=lambda scores, labels, teacher: 0.5),
            "loss hook returned a float; a tensor with one number",
        ),
        (RecoveryHooks(loss=lambda scores, labels, teacher: scores), r"a Tensor of shape \(8, 2\)"),
        (RecoveryHooks(optimizer=lambda model: "adam"), "optimizer hook returned a str; a torch.optim.Optimizer"),
        (RecoveryHooks(average=lambda model: model), "average hook returned a Net"),
    ],
)
def test_hooks_that_give_something_else_are_refused_in_a_sentence(batches, fabric, hooks, said):
    with pytest.raises(RecoveryError, match=said):
        trained(batches, fabric, hooks)


def test_a_decay_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"recover\.ema is 1"):
        RecoverConfig(ema=1.0)


class Stop(Exception):
    """What a test throws in the middle of a run."""


def pruned(batches, folder, hooks, stop_at=0, **recover):
    def on_update(done, total, loss):
        if done == stop_at:
            raise Stop

    return cosep.prune(
        Net(),
        batches,
        config=cosep.replace_settings(cosep.preset(), {**FAST, "checkpoint_seconds": 0.0, "recover": recover}),
        epochs=2,
        run=folder,
        recovery=hooks,
        callbacks=cosep.Callbacks(on_update=on_update),
        holdout=batches,
    )


@pytest.mark.parametrize(
    ("hooks", "settings"),
    [
        (None, {"ema": 0.9}),
        (None, {"optimizer": "muon"}),
        (RecoveryHooks(average=AveragedModel, optimizer=two_rates), {}),
        (RecoveryHooks(augment=lambda inputs, labels: (inputs + torch.rand_like(inputs), labels)), {"ema": 0.5}),
    ],
)
def test_a_run_that_was_stopped_goes_on_with_the_average_and_the_hooks(batches, tmp_path, hooks, settings):
    whole = pruned(batches, tmp_path / "whole", hooks, **settings)
    assert whole.report.recovery.updates == 16
    assert whole.report.recovery.kept
    with pytest.raises(Stop):
        pruned(batches, tmp_path / "stopped", hooks, stop_at=7, **settings)
    again = pruned(batches, tmp_path / "stopped", hooks, **settings)
    assert same(again.model, whole.model)
    plain = pruned(batches, tmp_path / "plain", None)
    assert not same(plain.model, whole.model)


def test_other_hooks_are_another_run(batches, tmp_path):
    pruned(
        batches, tmp_path / "run", RecoveryHooks(loss=lambda scores, labels, teacher: F.cross_entropy(scores, labels))
    )
    with pytest.raises(RunError, match=r"code\.recovery_loss"):
        pruned(batches, tmp_path / "run", RecoveryHooks(loss=lambda s, labels, t: 2 * F.cross_entropy(s, labels)))


def test_an_average_of_another_network_in_a_checkpoint_is_refused(batches, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    from cosep.runs.folder import _digest

    with pytest.raises(Stop):
        pruned(batches, tmp_path / "run", None, stop_at=7, ema=0.9)
    path = tmp_path / "run" / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata()
    assert "average/module.head.weight" in tensors
    tensors["average/module.head.weight"] = torch.zeros(3, 3)
    save_file(tensors, path, {**metadata, "sha256": _digest(tensors, metadata["document"])})
    assert "progress" in json.loads(metadata["document"])
    with pytest.raises(RunError, match="the average of the weights is of another network"):
        pruned(batches, tmp_path / "run", None, ema=0.9)
