"""Memory formats: a network that cannot bear channels_last is pruned all the same, and the report says how."""

import copy

import pytest
import torch
from torch import nn

import cosep
from cosep.models.formats import in_fast_format

FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "recover": {"share": 1.0, "group_epochs": 1.0},
    "device": {"accelerator": "cpu"},
}


class LeNet(nn.Module):
    """As tutorials write it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 5), nn.Conv2d(12, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(16 * 4 * 4, 40), nn.Linear(40, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = x.view(x.size(0), -1)
        return self.fc2(torch.relu(self.fc1(x)))


class ViewsInTraining(nn.Module):
    """A head that only training uses, which flattens by `view`."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.norm = nn.Conv2d(1, 12, 3), nn.Conv2d(12, 12, 3), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv2(torch.relu(self.conv1(x)))))
        if self.training:
            x.view(len(x), -1)
        return self.fc(x.mean((2, 3)))


class ReadsStrides(LeNet):
    """Takes the memory as it lies: no failure in channels_last, but other numbers."""

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.as_strided(x, (len(x), 256), (256, 1))
        return self.fc2(torch.relu(self.fc1(x)))


def volumes():
    layers = [nn.Conv3d(1, 12, 3, padding=1), nn.BatchNorm3d(12), nn.ReLU(), nn.Conv3d(12, 12, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(12, 3))


class WithVolumes(nn.Module):
    """Ordinary convolutions beside a parameter of five dimensions."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3)
        self.scale = nn.Parameter(torch.ones(1, 1, 1, 1, 1))
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(x.mean((2, 3))) * self.scale.reshape(1)


def batches(*shape):
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    images = torch.randn(48, *shape, generator=chance) + labels.view(-1, *[1] * len(shape))
    return list(zip(images.split(8), labels.split(8), strict=True))


@pytest.mark.parametrize(
    ("build", "shape", "said"),
    [
        (LeNet, (1, 28, 28), "RuntimeError: view size is not compatible"),
        (ViewsInTraining, (1, 8, 8), "RuntimeError: view size is not compatible"),
        (ReadsStrides, (1, 28, 28), "differ by"),
        (volumes, (1, 6, 6, 6), "0.weight has more than four dimensions"),
        (WithVolumes, (1, 8, 8), "scale has more than four dimensions"),
    ],
)
def test_a_network_that_cannot_bear_channels_last_is_pruned_and_the_report_says_so(build, shape, said, tmp_path):
    torch.manual_seed(0)
    net = build()
    usual = cosep.replace_settings(cosep.preset(), {**FAST, "device": {"accelerator": "cpu", "channels_last": False}})
    result = cosep.prune(
        net, batches(*shape), config=cosep.replace_settings(cosep.preset(), FAST), run=tmp_path / "run"
    )
    assert said in result.report.notes[0]
    assert "contiguous" in (tmp_path / "run" / "report.html").read_text()
    if build is not WithVolumes:  # whose convolutions do work in channels_last
        expected = cosep.prune(net, batches(*shape), config=usual)
        assert expected.report.notes == result.report.notes[1:]
        for name, tensor in expected.model.state_dict().items():
            assert torch.equal(tensor, result.model.state_dict()[name])


def test_a_refused_format_leaves_weights_and_memory_as_they_were():
    net = LeNet().eval()
    example = torch.randn(1, 1, 28, 28)
    expected, strides = net(example), [p.stride() for p in net.parameters()]
    same, note = in_fast_format(net, example)
    assert same is net
    assert "view size" in note
    assert [p.stride() for p in net.parameters()] == strides
    assert torch.equal(net(example), expected)


def test_an_ordinary_network_is_put_into_channels_last_without_a_word_or_a_trace():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(288, 2)).train()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    numbers = torch.get_rng_state()
    _, note = in_fast_format(net, torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert note == ""
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in state.items())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(module.training for module in net.modules())


def test_the_fast_format_is_torchs_own_also_where_a_dimension_has_one_number():
    # Strides of such a dimension mean nothing, but kernels are chosen by them: other strides, other rounding.
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.AdaptiveAvgPool2d(1))
    expected = copy.deepcopy(net).to(memory_format=torch.channels_last)
    in_fast_format(net, torch.randn(1, 1, 8, 8))
    assert [p.stride() for p in net.parameters()] == [p.stride() for p in expected.parameters()]
