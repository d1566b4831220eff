"""Muon for the matrices between hidden values, beside torch's own optimizers of the same parameters."""

import copy

import pytest
import torch
from torch import nn

from cosep.config import RecoverConfig
from cosep.errors import ConfigError
from cosep.recovery.hooks import make_optimizer
from cosep.recovery.optimizers import parameters_of
from cosep.zoo.vit import CifarViT

MUON = RecoverConfig(optimizer="muon", lr=0.01, weight_decay=0.1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(),
        nn.Linear(8, 3),
    )  # fmt: skip


def step(model, *optimizers, seed=0):
    inputs = torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    model(inputs).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def test_hidden_matrices_are_stepped_as_by_torchs_muon_and_the_rest_as_by_its_adamw():
    model = net()
    by_hand = copy.deepcopy(model)
    hidden = [by_hand[3].weight, by_hand[5].weight]
    rest = [p for p in by_hand.parameters() if not any(p is other for other in hidden)]
    muon = torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=0.01, weight_decay=0.0)
    optimizer = make_optimizer(model, MUON)
    for seed in range(3):
        step(model, optimizer, seed=seed)
        step(by_hand, muon, adamw, seed=seed)
    for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(model[3].weight, net()[3].weight)


def test_the_state_goes_to_another_optimizer_which_steps_on_alike():
    model = net()
    first = make_optimizer(model, MUON)
    step(model, first)
    other = copy.deepcopy(model)
    second = make_optimizer(other, MUON)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for each, optimizer in ((model, first), (other, second)):
        for group in optimizer.param_groups:
            group["lr"] = 0.003  # as the schedule does
        step(each, optimizer, seed=1)
    for one, twin in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, twin)


def test_parameters_are_numbered_as_in_the_state():
    model = CifarViT(1, width=8, heads=2)
    model.norm.weight.requires_grad_(False)
    grouped = [p for group in make_optimizer(model, MUON).param_groups for p in group["params"]]
    ordered = parameters_of(model, MUON)
    assert [id(p) for p in grouped] == [id(p) for p in ordered]
    assert {id(p) for p in ordered} == {id(p) for p in model.parameters() if p.requires_grad}
    matrices = {id(p) for p in make_optimizer(model, MUON).param_groups[0]["params"]}
    block = model.blocks[0]
    layers = [getattr(block.attention, name) for name in ("query", "key", "value", "output")]
    assert matrices == {id(layer.weight) for layer in (*layers, block.linear1, block.linear2)}


def test_a_network_of_convolutions_is_trained_by_adamw():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    assert type(make_optimizer(model, MUON)) is torch.optim.AdamW


def test_it_makes_the_loss_smaller():
    model, losses = net(), []
    optimizer = make_optimizer(model, MUON)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 3, 4, 4, generator=generator)
    labels = (inputs[:, 0].mean((1, 2)) > 0).long()
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_an_older_torch_is_told_in_a_line(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"Install torch 2\.9 or later, or take \"adamw\""):
        make_optimizer(net(), MUON)
    assert type(make_optimizer(net(), RecoverConfig(optimizer="adamw"))) is torch.optim.AdamW
