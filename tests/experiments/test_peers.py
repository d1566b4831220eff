"""The channels that Torch-Pruning keeps, as the experiments take them over."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cosep.errors import ConfigError
from cosep.groups import find_groups, groups_in_scope

LARGE = (1, 4, 6, 7)


@pytest.fixture(scope="module")
def peers():
    pytest.importorskip("torch_pruning")
    folder = str(Path(__file__).parents[2] / "experiments")
    sys.path.insert(0, folder)
    try:
        import peers

        yield peers
    finally:
        sys.path.remove(folder)


@pytest.fixture
def network():
    """Four channels are plainly the largest, in their own filters and in what the next layer makes of them."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    with torch.no_grad():
        made[0].weight[list(LARGE)] *= 10
        made[2].weight[:, list(LARGE)] *= 10
    return made


BATCHES = [(torch.ones(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))]


@pytest.mark.parametrize("globally", [True, False])
def test_the_largest_channels_stay_and_the_share_is_kept(peers, network, globally):
    groups = [group for group in groups_in_scope(find_groups(network, BATCHES[0][0])) if group.width == 8]
    kept = peers.kept_by_torch_pruning("magnitude", network, groups, BATCHES, share=0.51, globally=globally)
    assert kept == {groups[0].name: LARGE}  # both convolutions halve: half of nearly all MACs
    assert network[0].out_channels == 8  # the caller's network stays


def test_gradients_decide_where_they_are_asked_for(peers, network):
    with torch.no_grad():
        network[2].weight[:, LARGE[0]] = 0  # nothing that this channel does has any effect
    groups = [group for group in groups_in_scope(find_groups(network, BATCHES[0][0])) if group.width == 8]
    kept = peers.kept_by_torch_pruning("taylor", network, groups, BATCHES, share=0.9, globally=True)
    assert LARGE[0] not in kept[groups[0].name]


def test_an_importance_that_is_not_there_is_named(peers, network):
    with pytest.raises(ConfigError, match="no importance 'loudness'"):
        peers.kept_by_torch_pruning("loudness", network, [], BATCHES, share=0.5, globally=True)
