"""Profiles of heads: the multivariate distance of two Gaussians, and the shrinkage of their covariances."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cosep.config import ObserveConfig, ProfileConfig
from cosep.observation import observe, observe_heads
from cosep.profiles import jm, separability_space
from cosep.profiles.metrics import multivariate_bhattacharyya, shrunk, standardised
from cosep.records import ClassMoments, HeadMoments

PAIR = torch.tensor([0]), torch.tensor([1])


def spread(size, seed):
    """A covariance that is far from diagonal."""
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def test_the_distance_is_the_overlap_of_the_two_densities():
    # e^-B is the integral of the root of the product of both densities, here a sum over a fine grid.
    means = np.array([[0.2, -0.4], [1.1, 0.5]])
    covariances = np.stack([spread(2, 0).numpy(), spread(2, 1).numpy()])
    line = np.linspace(-14, 14, 1201)
    grid = np.stack(np.meshgrid(line, line), axis=-1)
    product = np.ones(grid.shape[:2])
    for mean, covariance in zip(means, covariances, strict=True):
        apart = grid - mean
        exponent = np.einsum("...i,ij,...j", apart, np.linalg.inv(covariance), apart)
        product *= np.exp(-exponent / 2) / (2 * np.pi * np.sqrt(np.linalg.det(covariance)))
    overlap = np.sqrt(product).sum() * (line[1] - line[0]) ** 2
    found = multivariate_bhattacharyya(torch.tensor(means).unsqueeze(1), torch.tensor(covariances).unsqueeze(1), *PAIR)
    assert float(torch.exp(-found)) == pytest.approx(overlap, rel=1e-6)


def test_of_one_value_it_is_the_distance_of_channels():
    mean, var = torch.tensor([[0.3], [1.2]]).double(), torch.tensor([[0.5], [2.0]]).double()
    found = multivariate_bhattacharyya(mean.unsqueeze(1), var.reshape(2, 1, 1, 1), *PAIR)
    assert_close(-2 * torch.expm1(-found), jm(mean, var, *PAIR))


def test_it_is_the_same_in_any_linear_coordinates():
    mean = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = torch.stack([spread(4, 0), spread(4, 1)]).unsqueeze(1)
    turn = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert_close(
        multivariate_bhattacharyya(mean @ turn.T, turn @ covariance @ turn.T, *PAIR),
        multivariate_bhattacharyya(mean, covariance, *PAIR),
    )


@pytest.mark.parametrize(("samples", "size"), [(7, 5), (40, 3), (200, 6)])
def test_shrinkage_is_what_its_iteration_ends_at(samples, size):
    # Chen et al. (2010), equations 19 and 20: the oracle's share, with the estimate in the place of the truth.
    x = np.random.default_rng(samples).normal(size=(samples, size)) @ spread(size, 2).numpy()
    sample = x.T @ x / samples
    target, estimate = np.trace(sample) / size * np.eye(size), sample
    for _ in range(4_000):
        product, trace = np.trace(estimate @ sample), np.trace(estimate) ** 2
        share = ((1 - 2 / size) * product + trace) / ((samples + 1 - 2 / size) * product + (1 - samples / size) * trace)
        estimate = (1 - share) * sample + share * target
    assert_close(shrunk(torch.tensor(x.T @ x), torch.tensor(samples)), torch.tensor(estimate), rtol=1e-4, atol=1e-6)


class Layer(nn.Module):
    """A linear layer on tokens, and a mean over these."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(5, 6)

    def forward(self, x):
        return self.qkv(x).mean(1)


def seen(tokens):
    torch.manual_seed(0)
    model, y = Layer().eval(), torch.arange(60) % 3
    x = torch.randn(60, 4, 5) + y.reshape(-1, 1, 1)
    config = ObserveConfig(tokens=tokens)
    loader = list(zip(x.split(16), y.split(16), strict=True))
    moments = observe(model, loader, ["qkv"], config=config)
    columns = torch.tensor([[0, 1, 2], [3, 4, 5]])
    heads = observe_heads(model, loader, {"qkv": [(columns, (0, 2))]}, moments, config=config)
    return model, x, y, moments["qkv"], heads["qkv"][0]


@pytest.mark.parametrize("tokens", ["mean", "first"])
def test_values_of_heads_are_gathered_class_by_class(tokens):
    model, x, y, moments, heads = seen(tokens)
    with torch.no_grad():
        values = model.qkv(x).double()
    values = values.mean(1) if tokens == "mean" else values[:, 0]
    for position, label in enumerate((0, 2)):
        own = values[y == label].numpy()
        assert_close(heads.mean[position].flatten(), torch.tensor(own.mean(0)), atol=1e-6, rtol=1e-5)
        for head in range(2):
            part = own[:, 3 * head : 3 * head + 3]
            expected = torch.tensor(np.cov(part.T, bias=True) * len(part))
            assert_close(heads.scatter[position, head], expected, atol=1e-5, rtol=1e-5)
    assert moments.channels == 6


def test_a_profile_tells_apart_what_no_value_alone_does():
    # Two values with the same means and variances in both classes, correlated in one: only together do they differ.
    count = torch.tensor([1000, 1000])
    plain, tied = torch.eye(2, dtype=torch.float64), torch.tensor([[1, 0.95], [0.95, 1]], dtype=torch.float64)
    scatter = 1000 * torch.stack([torch.stack([plain, plain]), torch.stack([tied, plain])])  # (classes, heads, 2, 2)
    heads = HeadMoments(count, torch.zeros(2, 2, 2, dtype=torch.float64), scatter)
    one = ClassMoments(count, torch.zeros(2, 2).double(), torch.full((2, 2), 1000.0).double())
    joined = separability_space([one, one], ProfileConfig(), spans=[2])
    together = separability_space([one, one], ProfileConfig(), spans=[2], heads=lambda classes: [heads])
    assert_close(joined.separability, torch.zeros(2).double())
    # By hand: B = ½ ln(det((Σ1+Σ2)/2) / sqrt(det Σ1 det Σ2)); shrinkage by a thousand samples moves it a little.
    distance = 0.5 * np.log((1 - 0.475**2) / np.sqrt(1 - 0.95**2))
    assert float(together.separability[0]) == pytest.approx(2 * (1 - np.exp(-distance)), rel=0.02)
    assert float(together.separability[1]) == pytest.approx(0, abs=1e-9)


def test_values_without_variance_tell_apart_where_their_means_differ():
    mean = torch.zeros(2, 2, 3, dtype=torch.float64)
    mean[1, 0, 1] = 1.0
    scatter = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    heads = HeadMoments(torch.tensor([9, 9]), mean, scatter)
    one = ClassMoments(heads.count, torch.zeros(2, 2).double(), torch.ones(2, 2).double())
    space = separability_space(one, ProfileConfig(), heads=lambda classes: [heads])
    assert_close(space.separability, torch.tensor([2.0, 0.0]).double())
    assert standardised(mean, scatter, heads.count)[0].isfinite().all()
