import pytest
import torch
from torch import nn

from cosep.measurement import macs, parameters, weight_bytes

# Every expected number is the textbook product: outputs times the inputs that each output adds up.
CASES = [
    (nn.Conv2d(3, 8, 3, padding=1), (3, 10, 12), 8 * 10 * 12 * 3 * 3 * 3),
    (nn.Conv2d(3, 8, 3, stride=2, padding=1), (3, 10, 12), 8 * 5 * 6 * 3 * 3 * 3),
    (nn.Conv2d(3, 8, 3, dilation=2), (3, 10, 12), 8 * 6 * 8 * 3 * 3 * 3),
    (nn.Conv2d(8, 8, 3, padding=1, groups=8), (8, 10, 12), 8 * 10 * 12 * 1 * 3 * 3),
    (nn.Conv2d(8, 16, (3, 1), groups=4, bias=False), (8, 10, 12), 16 * 8 * 12 * 2 * 3),
    (nn.Conv1d(4, 6, 5), (4, 20), 6 * 16 * 4 * 5),
    (nn.Conv3d(2, 4, 3), (2, 5, 6, 7), 4 * 3 * 4 * 5 * 2 * 27),
    (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 5, 5), 4 * 5 * 5 * 6 * 2 * 2),
    (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (4, 5, 5), 4 * 5 * 5 * 3 * 2 * 2),
    (nn.Linear(7, 5), (7,), 35),
    (nn.Linear(7, 5, bias=False), (11, 7), 11 * 35),
    (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)), (3, 8, 8), 0),
]


@pytest.mark.parametrize(("layer", "shape", "expected"), CASES)
@pytest.mark.parametrize("batch", [1, 4])
def test_macs_of_a_layer_are_the_textbook_product_for_one_sample(layer, shape, expected, batch):
    assert macs(layer, torch.randn(batch, *shape)) == expected


def test_macs_of_a_network_are_the_sum_of_its_layers_and_it_is_left_as_it_was():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10)).train()
    net[1].eval()
    mean = net[1].running_mean.clone()
    assert macs(net, torch.randn(2, 3, 8, 8)) == 4 * 36 * 27 + 4 * 36 * 10
    assert [module.training for module in net] == [True, False, True, True]
    assert torch.equal(net[1].running_mean, mean)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_tied_parameter_counts_once():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].weight = net[0].weight
    assert parameters(net) == 36 + 6 + 6
    assert weight_bytes(net) == 4 * (36 + 6 + 6)


def test_bytes_include_buffers_at_their_own_size():
    assert weight_bytes(nn.BatchNorm2d(5)) == 4 * 5 * 4 + 8
    assert weight_bytes(nn.Linear(3, 2).half()) == 2 * 8


def test_a_token_that_is_a_parameter_is_counted_with():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, token, x):
            return self.layer(token + x)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.inner = nn.Parameter(torch.zeros(1, 4)), Inner()

        def forward(self, x):
            return self.inner(self.token.expand(len(x), -1), x)

    model = Tokens()
    assert macs(model, torch.randn(1, 4)) == 12
    assert all(parameter.requires_grad for parameter in model.parameters())
