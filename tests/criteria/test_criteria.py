"""Each criterion against its published definition, written out."""

import numpy as np
import pytest
import torch
from torch import nn

from cosep.criteria import best_channels, chip, fpgm, hrank, importance, random_channels, with_gradients
from cosep.errors import ConfigError


@pytest.fixture
def conv():
    torch.manual_seed(0)
    return nn.Conv2d(3, 6, 3)


EVERY = torch.arange(6)


def test_the_best_channels_are_those_with_the_largest_scores():
    found = best_channels(torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0]), 3, reason="why")
    assert found.kept == (0, 2, 4)
    assert found.reason == "why"


def test_of_equal_scores_the_first_channels_stay():
    assert best_channels(torch.ones(5), 2, reason="").kept == (0, 1)


def test_every_block_keeps_equally_many():
    assert best_channels(torch.tensor([9.0, 8, 7, 6, 1, 2, 3, 4]), 4, blocks=2, reason="").kept == (0, 1, 6, 7)


@pytest.mark.parametrize(("kept", "blocks"), [(0, 1), (7, 1), (3, 2), (4, 4)])
def test_a_width_that_does_not_fit_is_refused(kept, blocks):
    with pytest.raises(ConfigError, match="cannot be kept"):
        best_channels(torch.ones(6), kept, blocks=blocks, reason="")


def test_random_channels_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = random_channels(64, 32, seed=5)
    torch.manual_seed(2)
    assert random_channels(64, 32, seed=5) == first
    assert random_channels(64, 32, seed=6) != first


@pytest.mark.parametrize(("name", "p"), [("l1", 1), ("l2", 2)])
def test_norms_rank_filters_as_the_definition_does(conv, name, p):
    norms = np.array([np.linalg.norm(w.detach().numpy().ravel(), ord=p) for w in conv.weight])
    found = importance(name, [(conv, EVERY)])
    assert found.argsort().tolist() == norms.argsort().tolist()


def test_columns_say_which_output_is_which_channel(conv):
    order = torch.tensor([4, 0, 5, 1, 3, 2])
    assert torch.equal(importance("l2", [(conv, order)]), importance("l2", [(conv, EVERY)])[order])


def test_the_scale_of_batchnorm_is_the_size_of_gamma():
    norm = nn.BatchNorm2d(4)
    norm.weight.data = torch.tensor([0.5, -2.0, 1.0, 0.1])
    found = importance("bn-scale", [(norm, torch.arange(4))])
    torch.testing.assert_close(found / found.sum(), torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64) / 3.6)


def test_a_group_without_batchnorm_is_named():
    with pytest.raises(ConfigError, match="bn-scale finds no layer"):
        importance("bn-scale", [])


def test_taylor_is_weight_times_gradient_of_the_loss_of_all_batches():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    inputs, labels = torch.randn(10, 1, 6, 6), torch.randint(3, (10,))
    with_gradients(model, [(inputs[:7], labels[:7]), (inputs[7:], labels[7:])])
    found = importance("taylor", [(model[0], torch.arange(4))])
    loss = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, model[0].weight)
    expected = (gradient * model[0].weight).abs().flatten(1).sum(1).double()
    torch.testing.assert_close(found / found.sum(), (expected / expected.sum()).detach(), rtol=1e-4, atol=1e-6)


def test_fpgm_is_the_sum_of_distances_to_all_filters(conv):
    filters = [w.detach().double().flatten() for w in conv.weight]
    expected = [sum(float((a - b).norm()) for b in filters) for a in filters]
    torch.testing.assert_close(fpgm([(conv, EVERY)]), torch.tensor(expected, dtype=torch.float64))


def test_fpgm_sees_a_sign_that_squared_weights_do_not():
    conv = nn.Conv2d(1, 3, 1, bias=False)
    conv.weight.data = torch.tensor([1.0, 1.0, -1.0]).reshape(3, 1, 1, 1)
    assert fpgm([(conv, torch.arange(3))]).argmax() == 2


def test_hrank_is_the_mean_rank_of_a_channels_maps():
    maps = torch.zeros(2, 3, 4, 4)
    maps[:, 0] = torch.eye(4)
    maps[0, 1] = 1.0
    assert hrank(maps).tolist() == [4.0, 0.5, 0.0]


@pytest.mark.parametrize(("channels", "side"), [(5, 4), (20, 3)])  # more positions than channels, and fewer
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_chip_is_the_loss_of_nuclear_norm_from_either_gram_matrix_and_in_blocks(channels, side, at_once, monkeypatch):
    monkeypatch.setattr("cosep.criteria.feature_maps.BLOCK_NUMBERS", at_once)
    maps = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(3)).double()
    expected = np.zeros(channels)
    for image in maps.flatten(2).numpy():
        for channel in range(channels):
            without = image.copy()
            without[channel] = 0
            expected[channel] += (np.linalg.norm(image, "nuc") - np.linalg.norm(without, "nuc")) / len(maps)
    np.testing.assert_allclose(chip(maps), expected, rtol=1e-6, atol=1e-7)


def test_what_torch_pruning_cannot_read_is_refused_in_words(conv):
    with pytest.raises(ConfigError, match="taylor needs gradients, and a Conv2d of this group has none"):
        importance("taylor", [(conv, EVERY)])
    with pytest.raises(ConfigError, match="bn-scale looks at weights, and a BatchNorm2d of this group has none"):
        importance("bn-scale", [(nn.BatchNorm2d(6, affine=False), EVERY)])
    with pytest.raises(ConfigError, match="l2 cannot be read from a ConvTranspose2d in groups"):
        importance("l2", [(nn.ConvTranspose2d(4, 6, 3, groups=2), EVERY)])


def test_chip_gives_least_to_channels_that_repeat_each_other():
    maps = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    maps = maps / maps.flatten(2).norm(dim=2)[..., None, None]
    maps[:, 1] = maps[:, 0]
    assert set(chip(maps).argsort()[:2].tolist()) == {0, 1}


@pytest.mark.parametrize("criterion", [hrank, chip])
def test_linear_layers_have_no_feature_maps(criterion):
    with pytest.raises(ConfigError, match="leave it out for models whose linear layers"):
        criterion(torch.randn(2, 3))
