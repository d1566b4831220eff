"""Rows times weights, plus the constant, are what torch's own layers compute."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cosep.layers.maps import LinearMap, sampled, why_no_map

LAYERS = [
    (nn.Conv2d(4, 6, 3), (4, 7, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (4, 7, 9)),
    (nn.Conv2d(4, 6, (3, 2), padding="same", dilation=(1, 2)), (4, 7, 9)),
    (nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"), (4, 7, 9)),
    (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 7, 9)),
    (nn.Conv2d(4, 8, 3, groups=4), (4, 7, 9)),
    (nn.Conv1d(4, 6, 5, stride=2), (4, 21)),
    (nn.Conv3d(4, 6, 2, padding=1), (4, 3, 4, 5)),
    (nn.Linear(4, 6), (4,)),
    (nn.Linear(4, 6, bias=False), (5, 4)),
    (nn.Linear(4, 6), (2, 3, 4)),
    (nn.BatchNorm2d(4), (4, 5, 3)),
    (nn.BatchNorm1d(4), (4,)),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_rows_times_weights_are_the_layers_output(layer, shape, channels_last):
    torch.manual_seed(0)
    layer = layer.double().eval()
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    x = torch.randn(3, *shape, dtype=torch.float64)
    if channels_last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        output = layer(x)
    found = LinearMap(layer)
    where = sampled(found, output, 1, 5, 3, torch.Generator().manual_seed(1))
    rows = found.rows(x, where).flatten(0, 1).transpose(0, 1)  # (parts, rows, columns)
    made = (rows @ found.weight()).transpose(0, 1).flatten(1) + found.constant()
    axis = -1 if isinstance(layer, nn.Linear) else 1
    flat = output.movedim(axis, -1).reshape(3, -1, output.shape[axis])
    expected = torch.stack([flat[image, places] for image, places in enumerate(where)]).flatten(0, 1)
    assert_close(made, expected)
    assert_close(found.outputs_at(output, where).flatten(0, 1), expected)


@pytest.mark.parametrize(("layer", "shape"), LAYERS[:-2], ids=str)
def test_weights_that_are_read_and_written_stay_the_same(layer, shape):
    found = LinearMap(layer)
    before = layer.weight.detach().clone()
    weight = found.weight()
    with torch.no_grad():
        layer.weight.zero_()
    found.write(weight)
    assert torch.equal(layer.weight, before)


def test_every_image_has_places_of_its_own_and_none_twice():
    layer = nn.Conv2d(3, 4, 1)
    where = sampled(LinearMap(layer), torch.zeros(6, 4, 9, 9), 64, 20, 6, torch.Generator().manual_seed(0))
    assert where.shape == (6, 20)
    assert all(len(row.unique()) == 20 for row in where)
    assert len({tuple(row.tolist()) for row in where}) == 6


def test_transposed_convolutions_are_no_maps():
    assert "overlap" in why_no_map(nn.ConvTranspose2d(3, 4, 2))
    assert "statistics" in why_no_map(nn.BatchNorm2d(3, track_running_stats=False))
