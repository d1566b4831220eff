"""Compensation, cutting and their proof together, on groups that are found and not made by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cosep.groups import find_groups, groups_in_scope
from cosep.rebuilding.compensate import compensate
from cosep.rebuilding.sweep import PrefixCache
from cosep.surgery.cut import cut_group
from cosep.surgery.masked import cut_checked


class Mixed(nn.Module):
    """An inverted residual, a concatenation, a grouped convolution and a flatten before a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.left, self.right = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 10, 3, padding=1)
        self.join = nn.Conv2d(16, 12, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(12, 8, 3, padding=1, groups=2)
        self.last = nn.Linear(8 * 9, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(self.depthwise(self.expand(x)))
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        x = F.relu(self.grouped(F.relu(self.join(x))))
        return self.head(F.relu(self.last(x.flatten(1))))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = Mixed().eval()
    return model, groups_in_scope(find_groups(model, torch.randn(2, 3, 6, 6)))


def data(seed):
    return torch.randn(240, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def half(group):
    """Half of each block of the group."""
    size = group.width // group.blocks
    return [b * size + c for b in range(group.blocks) for c in range(0, size, 2)]


def test_compensated_cuts_pass_their_proof_and_lose_less_than_plain_ones(network):
    model, groups = network
    assert {g.name for g in groups} >= {"expand.0", "left", "right", "join", "grouped", "last"}
    batches, cache = data(1).split(60), PrefixCache()
    repaired, plain, layout, plain_layout = model, model, {}, {}
    for group in groups:
        prepared, records = compensate(repaired, group, half(group), layout, batches, cache=cache)
        assert [r.consumer for r in records] == list(group.consumers)
        # Dead channels happen: without them the consumer computes the same.
        assert all(r.error_after < r.error_before or r.reason == "plain cutting loses nothing" for r in records)
        result = cut_checked(prepared, group, half(group), layout, batches[0][:2])
        assert result.check.equal
        repaired, layout = result.model, result.layout
        plain, plain_layout = cut_group(plain, group, half(group), plain_layout)
    fresh = data(2)
    with torch.no_grad():
        wanted, with_repair, without = model(fresh), repaired(fresh), plain(fresh)
    assert (with_repair - wanted).square().sum() < 0.5 * (without - wanted).square().sum()
    assert cache.reused > 0


def test_the_cache_changes_no_weight(network):
    model, groups = network
    batches = data(1).split(60)
    results = []
    for cache in (PrefixCache(), None):
        pruned, layout = model, {}
        for group in groups[:3]:
            pruned, _ = compensate(pruned, group, half(group), layout, batches, cache=cache)
            pruned, layout = cut_group(pruned, group, half(group), layout)
        results.append(pruned.state_dict())
    assert all(torch.equal(results[0][k], results[1][k]) for k in results[0])
