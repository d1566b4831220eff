"""What each layer costs and what it reads: on networks small enough to count by hand."""

import torch
from torch import nn

from cosep.measurement import layer_figures
from cosep.measurement.layers import layer_times
from cosep.zoo.vit import CifarViT

X = torch.randn(1, 3, 8, 8)


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, width, 3, padding=1)
        self.second = nn.Conv2d(width, 8, 1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = x + self.second(torch.relu(self.first(x)))
        return self.fc(x.mean((2, 3)))


def test_layers_are_counted_before_and_after_in_the_order_in_which_they_run():
    found = layer_figures(Block(8), Block(4), torch.randn(2, 3, 5, 5))
    assert [(each.layer, each.kind) for each in found] == [
        ("stem", "Conv2d"), ("first", "Conv2d"), ("second", "Conv2d"), ("", "sum"), ("fc", "Linear"),
    ]  # fmt: skip
    stem, first, second, _, fc = found
    assert (first.inputs, first.outputs, second.inputs, second.outputs) == ((8, 8), (8, 4), (8, 4), (8, 8))
    assert stem.macs == (25 * 3 * 8 * 9,) * 2
    assert first.macs == (25 * 8 * 8 * 9, 25 * 8 * 4 * 9)
    assert second.macs == (25 * 8 * 8, 25 * 4 * 8)
    assert fc.macs == (32, 32)
    assert all(min(each.milliseconds) > 0 for each in found if each.layer)


def test_it_is_known_what_every_layer_reads():
    found = layer_figures(Block(), Block(), torch.randn(1, 3, 5, 5))
    assert [each.sources for each in found] == [(-1,), (0,), (1,), (0, 2), (3,)]


def test_attention_is_called_attention_and_not_after_the_kernel_that_computed_it():
    found = layer_figures(CifarViT(1, width=8, heads=2, size=8), CifarViT(1, width=8, heads=2, size=8), X)
    joins = [each for each in found if not each.layer]
    assert [each.kind for each in joins] == ["attention", "sum", "sum"]
    assert [found[place].layer.rpartition(".")[2] for place in joins[0].sources] == ["query", "key", "value"]


def test_products_of_matrices_are_called_so():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.last = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return self.last(self.one(x) @ self.other(x).transpose(1, 2))

    found = layer_figures(Mixing(), Mixing(), torch.randn(2, 4, 4))
    assert [each.kind for each in found if not each.layer] == ["matrix product"]


def test_a_network_without_steps_has_its_layers_but_no_links():
    class Odd(Block):
        def forward(self, x):
            return super().forward(x) * float(x.sum() > 0)  # what it does hangs on a number outside of torch

    found = layer_figures(Odd(), Odd(), torch.randn(1, 3, 5, 5))
    assert [each.layer for each in found] == ["stem", "first", "second", "fc"]
    assert all(each.sources is None for each in found)


def test_the_times_of_the_layers_are_those_of_the_whole_pass():
    class Slow(nn.Module):
        def forward(self, x):
            for _ in range(60):
                x = (x + 1).sin()
            return x

    network = nn.Sequential(nn.Linear(64, 64), Slow(), nn.Linear(64, 64))
    times = layer_times({"it": network}, torch.randn(256, 64), repeats=5)["it"]
    assert list(times) == ["0", "2"]
    assert times["0"] > 2 * times["2"]  # what comes behind a layer is its own


def test_a_network_is_left_as_it_was():
    network = Block().train()
    network.stem.weight.requires_grad_(False)
    layer_figures(network, network, torch.randn(1, 3, 5, 5))
    assert network.training
    assert not network.stem.weight.requires_grad
    assert all(not module._forward_pre_hooks and not module._forward_hooks for module in network.modules())
