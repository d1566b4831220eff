"""Channels that only training touches, and channels that Python or NumPy reads."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cosep.groups import find_groups


class Between(nn.Module):
    """Two convolutions and something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.between, self.b = nn.Conv2d(3, 8, 3), between, nn.Conv2d(8, 6, 3)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(F.relu(self.b(self.between(F.relu(self.a(x))))).mean((2, 3)))


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def group_of(model):
    return next(g for g in find_groups(model, torch.randn(1, 3, 10, 10)) if g.name == "a")


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x / float(abs(x.detach().numpy()).max()),
        lambda x: x / max(x.amax((0, 2, 3)).tolist()),
        lambda x: x * float(np.asarray(x.mean((0, 2, 3))).max()),
        lambda x: x / float(np.from_dlpack(x.detach()).max()),
        lambda x: x * (1 + sum(v.item() for v in x.mean((0, 2, 3)).unbind(0))),
    ],
    ids=["numpy", "tolist", "asarray", "dlpack", "item"],
)
def test_channels_that_python_reads_stay_and_the_place_is_named(reads):
    group = group_of(Between(Lambda(reads)))
    assert group.scope is None
    assert "between" in group.why_not
    assert "leaves torch" in group.why_not or "taken apart" in group.why_not


def test_a_weight_that_python_reads_is_no_reason_to_stay():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return x * float(self.gain.detach().numpy().max())

    assert group_of(Between(Reads())).scope == "interior"


class Keeps(nn.Module):
    """Keeps a running mean of what passes, in training only."""

    def __init__(self, how, shape=(8,)):
        super().__init__()
        self.how = how
        self.register_buffer("centre", torch.zeros(shape))

    def forward(self, x):
        if self.training:
            mean = x.detach().mean((0, 2, 3))
            if self.how == "add":
                self.centre.mul_(0.9).add_(0.1 * mean)
            elif self.how == "copy":
                self.centre.copy_(mean)
            elif self.how == "assign":
                self.centre = 0.9 * self.centre + 0.1 * mean
            elif self.how == "lerp":
                self.centre.lerp_(mean, 0.1)
            elif self.how == "rows":
                self.centre[0] = mean
        return x


@pytest.mark.parametrize("how", ["add", "copy", "assign", "lerp"])
def test_a_buffer_that_only_training_fills_is_cut_along(how):
    group = group_of(Between(Keeps(how)))
    assert group.scope == "interior"
    assert ("between.centre", "out") in [(s.module, s.side) for s in group.slices]


def test_a_memory_that_cannot_be_cut_keeps_its_channels_and_says_so():
    group = group_of(Between(Keeps("rows", (5, 8))))
    assert group.scope is None
    assert "between" in group.why_not


def test_features_that_only_training_returns_stay():
    class Returns(Between):
        def forward(self, x):
            features = F.relu(self.a(x))
            logits = self.head(F.relu(self.b(features)).mean((2, 3)))
            return (logits, features) if self.training else logits

    group = group_of(Returns(nn.Identity()))
    assert group.scope is None
    assert "returned in training" in group.why_not


def test_a_head_that_only_training_runs_is_cut_along():
    class Auxiliary(Between):
        def __init__(self):
            super().__init__(nn.Identity())
            self.extra = nn.Linear(8, 4)

        def forward(self, x):
            features = F.relu(self.a(x))
            logits = self.head(F.relu(self.b(features)).mean((2, 3)))
            return (logits, self.extra(features.mean((2, 3)))) if self.training else logits

    group = group_of(Auxiliary())
    assert group.scope == "interior"
    assert group.consumers == ("b", "extra")


@pytest.mark.parametrize(
    "noise",
    [
        nn.Dropout(0.5),
        nn.Dropout2d(0.5),
        nn.AlphaDropout(0.5),
        Lambda(lambda x: F.dropout2d(x, 0.5)),
        Lambda(lambda x: x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.5)),
        Lambda(lambda x: x * x.new_empty(x.shape).bernoulli_(0.5)),
    ],
)
def test_noise_in_training_ties_nothing(noise):
    assert group_of(Between(noise)).scope == "interior"


def test_the_pass_in_training_draws_nothing_from_the_callers_chance():
    model, x = Between(Lambda(lambda x: x * torch.rand(()) if x.shape[0] > 1 else x)), torch.randn(1, 3, 10, 10)
    before = torch.get_rng_state()
    find_groups(model, x)
    assert torch.equal(before, torch.get_rng_state())
