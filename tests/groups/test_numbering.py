"""How strong a channel's weights are, on both sides, against the definition."""

import torch
from torch import nn

from cosep.groups import find_groups
from cosep.groups.numbering import channel_norms, consumer_norms


def norms_by_hand(model, group, consumer, of_channel):
    weight = model.get_submodule(consumer).weight.detach().double()
    return torch.stack([weight.flatten()[of_channel(c)].norm() for c in range(group.width)])


def only_group(model, example):
    return find_groups(model, example)[0]


def test_the_norm_of_a_consumer_is_of_the_weights_that_read_the_channel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(5 * 4, 2))
    group = only_group(model, torch.randn(1, 3, 6, 6))
    expected = torch.stack([model[2].weight[:, c].detach().double().norm() for c in range(4)])
    torch.testing.assert_close(consumer_norms(model, group, {}), expected)
    expected = torch.stack([w.detach().double().norm() for w in model[0].weight])
    torch.testing.assert_close(channel_norms(model, group, {}), expected)


def test_behind_a_flatten_a_channel_is_read_at_every_position():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    group = only_group(model, torch.randn(1, 3, 4, 4))
    expected = torch.stack([model[3].weight[:, 4 * c : 4 * c + 4].detach().double().norm() for c in range(4)])
    torch.testing.assert_close(consumer_norms(model, group, {}), expected)


def test_the_inputs_of_a_grouped_convolution_are_read_by_their_own_block():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 2), nn.Flatten()
    )
    group = only_group(model, torch.randn(1, 3, 6, 6))
    weight = model[2].weight.detach().double()  # (6, 2, 3, 3)
    expected = torch.stack([weight[3 * (c // 2) : 3 * (c // 2) + 3, c % 2].norm() for c in range(4)])
    torch.testing.assert_close(consumer_norms(model, group, {}), expected)
