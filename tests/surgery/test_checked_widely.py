"""A cut is checked on several scales and images, and in training mode."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cosep.groups import find_groups
from cosep.surgery import check_cut, cut_checked, cut_group

KEPT = (0, 1, 2)


class Net(nn.Module):
    """Silent until an input is strong enough."""

    def __init__(self, silent_to=0.0, most=float("inf")):
        super().__init__()
        torch.manual_seed(0)
        self.silent_to, self.most, self.passes = silent_to, most, 0
        self.a, self.bn, self.b = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 5, 3)
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        if float(x.abs().max()) > self.most:
            raise ValueError("no such images")
        self.passes += self.training
        hidden = F.relu(self.bn(self.a(x)) - self.silent_to)
        return self.head(F.relu(self.b(hidden)).mean((2, 3)))


def wrongly_cut(model, x):
    group = find_groups(model, x)[0]
    after, _ = cut_group(model, group, KEPT, {})
    with torch.no_grad():
        after.b.weight.copy_(after.b.weight.roll(1, 1))
    return after, group


@pytest.fixture
def x():
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_what_shows_at_another_scale_only_is_found(x):
    model = Net(silent_to=5.0).eval()
    assert not model.bn(model.a(x)).gt(5).any()
    after, group = wrongly_cut(model, x)
    check = check_cut(model, after, group, KEPT, {}, x)
    assert not check.equal
    assert "differs from its masked copy" in check.reason


def test_what_shows_on_a_given_image_only_is_found(x):
    model = Net(silent_to=100.0).eval()
    after, group = wrongly_cut(model, x)
    assert check_cut(model, after, group, KEPT, {}, x).equal
    assert not check_cut(model, after, group, KEPT, {}, x, inputs=[x, 200 * x]).equal
    larger = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    assert not check_cut(model, after, group, KEPT, {}, x, inputs=[200 * larger]).equal


def test_what_shows_on_the_example_only_is_found(x):
    model = Net(silent_to=100.0).eval()
    after, group = wrongly_cut(model, 200 * x)
    assert not check_cut(model, after, group, KEPT, {}, 200 * x).equal


def test_a_small_image_does_not_hide_behind_a_large_one(x):
    class Saturating(Net):
        def forward(self, x):
            small = self.b(F.relu(self.bn(self.a(x)))) * (x.abs().amax((1, 2, 3), keepdim=True) < 1)
            return self.head((small + 1000 * x.mean((1, 2, 3), keepdim=True)).mean((2, 3)))

    model = Saturating().eval()
    after, group = wrongly_cut(model, x)
    assert not check_cut(model, after, group, KEPT, {}, x, inputs=[0.1 * x]).equal


def test_images_that_the_model_refuses_say_nothing_about_the_cut(x):
    model = Net(most=6.0).eval()
    result = cut_checked(model, find_groups(model, x)[0], KEPT, {}, x)
    assert result.done
    after, group = wrongly_cut(model, x)
    assert not check_cut(model, after, group, KEPT, {}, x).equal


def test_a_cut_that_training_would_not_survive_is_taken_back(x):
    class Watched(Net):
        def forward(self, x):
            if self.training and self.a(x).shape[1] != 6:
                raise RuntimeError("six channels, please")
            return super().forward(x)

    model = Watched().eval()
    result = cut_checked(model, find_groups(model, x)[0], KEPT, {}, x)
    assert not result.done
    assert result.model is model
    assert result.check.reason == "the cut model fails in training mode: RuntimeError: six channels, please"


def test_a_model_that_never_could_be_trained_is_cut_all_the_same(x):
    class Frozen(Net):
        def forward(self, x):
            assert not self.training, "for use only"
            return super().forward(x)

    model = Frozen().eval()
    assert cut_checked(model, find_groups(model, x)[0], KEPT, {}, x).done


def test_a_buffer_that_only_training_fills_survives_cut_and_training(x):
    class Centred(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.arange(6.0))

        def forward(self, x):
            if self.training:
                self.centre.mul_(0.5).add_(0.5 * self.a(x).detach().mean((0, 2, 3)))
            return super().forward(x)

    model = Centred().eval()
    group = next(g for g in find_groups(model, x) if g.name == "a")
    assert group.scope == "interior"
    after, _ = cut_group(model, group, (1, 4), {})
    assert after.centre.tolist() == [1.0, 4.0]
    assert check_cut(model, after, group, (1, 4), {}, x).equal
    after.train()(torch.cat([x, x])).sum().backward()


class Auxiliary(Net):
    """With a second head, and a memory of features, that only training sees."""

    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(6, 4)
        self.register_buffer("centre", torch.arange(6.0))

    def forward(self, x):
        hidden = F.relu(self.bn(self.a(x)))
        logits = self.head(F.relu(self.b(hidden)).mean((2, 3)))
        if not self.training:
            return logits
        self.centre.mul_(0.5).add_(0.5 * hidden.detach().mean((0, 2, 3)))
        return {"logits": logits, "extra": [self.extra(hidden.mean((2, 3)))]}


@pytest.mark.parametrize(
    ("tensor", "axis", "where"),
    [("extra.weight", 1, "the model's output['extra'][0]"), ("centre", 0, "centre after a pass")],
)
def test_a_wrong_slice_that_only_training_sees_is_found(x, tensor, axis, where):
    model = Auxiliary().eval()
    group = next(g for g in find_groups(model, x) if g.name == "a")
    after, _ = cut_group(model, group, KEPT, {})
    assert check_cut(model, after, group, KEPT, {}, x).equal
    with torch.no_grad():
        values = after.state_dict()[tensor]
        values.copy_(values.roll(1, axis))
    check = check_cut(model, after, group, KEPT, {}, x)
    assert not check.equal
    assert "differs from its masked copy" in check.reason
    assert check.reason.endswith(f"at {where} in training mode")


def test_dropout_in_a_module_hides_nothing_and_other_chance_is_no_reason_to_stay(x):
    class Dropping(Auxiliary):
        def __init__(self, noise):
            super().__init__()
            self.drop, self.noise = nn.Dropout(0.5), noise

        def forward(self, x):
            noise = self.noise * torch.randn_like(x) if self.training else 0.0
            return super().forward(self.drop(x) + noise)

    for noise, found in ((0.0, True), (0.5, False)):
        model = Dropping(noise).eval()
        group = next(g for g in find_groups(model, x) if g.name == "a")
        after, _ = cut_group(model, group, KEPT, {})
        assert check_cut(model, after, group, KEPT, {}, x).equal
        with torch.no_grad():
            after.extra.weight.copy_(after.extra.weight.roll(1, 1))
        assert check_cut(model, after, group, KEPT, {}, x).equal is not found


@pytest.mark.parametrize("depth", [2, 12])
def test_roundings_that_batchnorm_magnifies_are_no_reason_to_stay(depth):
    # Each BatchNorm sees two values a channel, as often at the end of a network for large images.
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), *(nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12)) for _ in range(depth)), nn.Linear(12, 3)
    ).eval()
    x = torch.randn(1, 3, 2, 2)
    for group in find_groups(model, x)[:-1]:
        assert cut_checked(model, group, range(6), {}, x).done


def test_the_check_leaves_statistics_counters_modes_and_chance_alone(x):
    model = Net().train()
    model.bn.eval()
    group = find_groups(model, x)[0]
    after, _ = cut_group(model, group, KEPT, {})
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in (model, after)]
    chance = torch.get_rng_state()
    assert check_cut(model, after, group, KEPT, {}, x).equal
    assert torch.equal(chance, torch.get_rng_state())
    assert (model.training, model.bn.training, model.passes, after.passes) == (True, False, 0, 0)
    for m, state in zip((model, after), states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())
