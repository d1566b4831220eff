"""The method on a matrix of features: no network."""

import numpy as np
import pytest
import torch

import cosep
from cosep.errors import CalibrationError, ConfigError
from cosep.selection import cluster_at


def redundant(copies=6, kinds=4, samples=400, seed=0):
    """Features in families, each of which separates its own class from the others; copies differ a little."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % kinds
    signal = torch.nn.functional.one_hot(labels, kinds).double() * 3
    columns = [signal[:, [k]] + torch.randn(samples, 1, generator=g) for k in range(kinds)]
    features = [column + 0.05 * torch.randn(samples, copies, generator=g) for column in columns]
    return torch.cat(features, 1), labels, np.repeat(np.arange(kinds), copies)


def test_copies_of_a_feature_share_a_cluster():
    features, labels, family = redundant()
    config = cosep.SelectConfig(representative="medoid")
    space = cosep.separability_space(cosep.class_moments(features, labels))
    clusters = cluster_at(space.distances.numpy(), 4, seed=0)
    found = np.asarray(clusters.medoids)
    assert sorted(family[found]) == [0, 1, 2, 3]
    assert cosep.select(space, config=config).channels == len(family)


def test_numpy_and_torch_give_the_same_selection():
    features, labels, _ = redundant()
    assert cosep.select_channels(features, labels) == cosep.select_channels(features.numpy(), labels.numpy())


def test_scaling_and_shifting_features_changes_nothing():
    features, labels, _ = redundant()
    g = torch.Generator().manual_seed(3)
    scale, shift = torch.rand(features.shape[1], generator=g) * 50 + 0.1, torch.randn(features.shape[1], generator=g)
    plain, moved = (cosep.select_channels(x, labels).kept for x in (features, features * scale + shift))
    assert plain == moved


def test_the_heaviest_of_each_cluster_stays():
    features, labels, _ = redundant()
    weights = torch.arange(features.shape[1], dtype=torch.float64)
    selection = cosep.select_channels(features, labels, weights=weights)
    assert selection.k is not None
    for cluster, kept in enumerate(selection.representatives):
        assert kept == max(c for c, own in enumerate(selection.clusters) if own == cluster)


def test_histograms_need_no_network_either():
    features, labels, _ = redundant()
    profile = cosep.ProfileConfig(metric="jm-histogram")
    assert cosep.select_channels(features, labels, profile=profile, bins=16).scores


def test_a_degree_that_the_features_are_too_few_for_is_refused():
    features, labels, _ = redundant(copies=2)
    with pytest.raises(ConfigError, match=r"select\.degree is 9, which needs 10 candidate widths; 8 channels give 6"):
        cosep.select_channels(features, labels, select_config=cosep.SelectConfig(degree=9, representative="medoid"))


def test_one_class_is_refused():
    with pytest.raises(CalibrationError, match="class"):
        cosep.select_channels(torch.randn(10, 6), torch.zeros(10, dtype=torch.long))
