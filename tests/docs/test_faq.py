"""The advice of the FAQ that stands in no code block, tried; and its numbers beside the settings they are of."""

import pytest
import torch
from torch import nn

import cosep
from cosep.errors import ModelError
from cosep.runs.recovering import LEAST_UPDATES
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
IMAGE = torch.randn(1, 3, 8, 8)


def in_words(number):
    return f"{number:,}"


def test_its_numbers_are_those_of_the_settings():
    config = cosep.preset()
    assert f"`--lr` ({config.recover.lr:g})" in TEXT
    assert (config.recover.group_epochs, config.recover.share) == (2, 0.25)
    assert f"two passes over a quarter of the data *for each cut group*, and at least {LEAST_UPDATES} updates" in TEXT
    small, large = (config.rebuild.images_of(side * side) for side in (32, 224))
    assert (
        f"`rebuild.images` (at most {in_words(small)}, or {in_words(large)} if they are larger than 64 × 64; fewer"
        in TEXT
    )
    assert f"`observe.images` ({in_words(config.observe.images_for(10))}, or 20 a class" in TEXT


class Flat(nn.Module):
    """A convolution whose output is flattened in one of two ways."""

    def __init__(self, fixed):
        super().__init__()
        self.conv, self.fc, self.fixed = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 4), fixed

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.fc(x.reshape(-1, 512) if self.fixed else x.flatten(1))


def prunable(model):
    return {group.name: group.scope == "interior" for group in cosep.find_groups(model, IMAGE)}["conv"]


def test_a_flatten_helps_where_a_reshape_to_a_fixed_number_was():
    batches = [torch.randn(16, 3, 8, 8) for _ in range(4)]
    with pytest.raises(ModelError, match="the network does not run with fewer channels"):
        cosep.prune(Flat(fixed=True), batches, max_macs="60%", config=quick())
    assert cosep.prune(Flat(fixed=False), batches, max_macs="60%", config=quick()).plan.widths["conv"] < 8


class Scaled(nn.Module):
    """A convolution whose channels are mixed by a fixed tensor, or by a convolution."""

    def __init__(self, by_convolution):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.mix = nn.Conv2d(8, 8, 1) if by_convolution else torch.rand(8, 8)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        x = self.mix(x) if isinstance(self.mix, nn.Module) else torch.einsum("bchw,cd->bdhw", x, self.mix)
        return self.fc(x.mean((2, 3)))


def test_a_convolution_helps_where_a_product_with_a_fixed_tensor_was():
    assert [prunable(Scaled(by_convolution)) for by_convolution in (False, True)] == [False, True]


def quick():
    changes = {"recover": {"schedule": "none"}, "device": {"accelerator": "cpu"}}
    return cosep.replace_settings(cosep.preset(), changes)


@pytest.fixture(scope="module")
def pruned():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip
    batches = [torch.randn(32, 3, 8, 8) for _ in range(4)]
    return model, cosep.prune(model, batches, max_macs="60%", round_to=8, config=quick())


def test_an_optimizer_made_before_pruning_holds_parameters_that_are_no_longer_there(pruned):
    model, result = pruned
    before = torch.optim.SGD(model.parameters(), lr=0.1)
    held = {id(parameter) for group in before.param_groups for parameter in group["params"]}
    assert not held & {id(parameter) for parameter in result.model.parameters()}


def test_round_to_8_gives_multiples_of_8(pruned):
    assert set(pruned[1].plan.widths.values()) == {8}


def test_a_pruned_classifier_can_be_the_backbone_of_something_else(pruned):
    backbone = nn.Sequential(*list(pruned[1].model.children())[:4])
    found = nn.Conv2d(8, 5, 1)(backbone(torch.randn(2, 3, 16, 16)))
    assert found.shape == (2, 5, 12, 12)
    found.sum().backward()
