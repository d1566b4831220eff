from dataclasses import replace

import numpy as np
import pytest
import torch

from cosep.config import SelectConfig, preset
from cosep.errors import CalibrationError, ConfigError
from cosep.profiles import separability_space
from cosep.records import ClassMoments
from cosep.selection import fit_curve, representatives, select, with_width
from tests import reference

PAPER = preset("paper").select


def real_like_layer(channels=32, classes=10, seed=0, samples=500):
    """Moments like a convolution's: few directions, mixed and noisy, channels of different strength and scale."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(classes, 3))
    mean = directions @ rng.normal(size=(3, channels)) * 0.3 + rng.normal(size=(classes, channels)) * 0.1
    mean *= np.exp(0.7 * rng.normal(size=channels))
    var = rng.uniform(0.5, 1.5, size=(classes, channels))
    scale = 10.0 ** rng.uniform(-3, 0, size=channels)
    return ClassMoments(
        torch.full((classes,), samples), torch.tensor(mean * scale), torch.tensor(var * scale**2) * samples
    )


@pytest.fixture(scope="module")
def space():
    return separability_space(real_like_layer())


@pytest.fixture(scope="module")
def weights():
    return torch.rand(32, generator=torch.Generator().manual_seed(1))


def test_the_record_carries_its_evidence(space, weights):
    found = select(space, weights=weights, config=PAPER)
    assert found.reason == "knee"
    assert found.candidates == tuple(range(2, 32))
    assert len(found.scores) == len(found.fit) == len(found.losses) == 30
    assert found.k == len(found.kept) == len(found.medoids) == len(found.representatives)
    assert found.kept == tuple(sorted(found.representatives))
    assert set(found.kept) | set(found.removed) == set(range(32))
    distances = space.distances.numpy()
    at_k = found.candidates.index(found.k)
    assert found.losses[at_k] == pytest.approx(reference.loss_of(distances, found.medoids))
    assert found.scores[at_k] == pytest.approx(
        reference.mean_silhouette_of_gbafs(distances, found.medoids, found.clusters)
    )
    assert found.fit == fit_curve(found.candidates, found.scores, 2)
    for cluster, channel in enumerate(found.representatives):
        members = [c for c in range(32) if found.clusters[c] == cluster]
        assert channel == max(members, key=lambda c: float(weights[c]))
        assert found.medoids[cluster] in members


def test_a_degree_two_fit_keeps_half_and_higher_degrees_less(space, weights):
    kept = [len(select(space, weights=weights, config=replace(PAPER, degree=p)).kept) for p in (2, 3, 4)]
    assert kept[0] == 16
    assert kept[1] < kept[0]
    assert kept[2] < kept[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_medoid_curve_of_a_real_like_layer_has_no_knee(seed):
    layer = separability_space(real_like_layer(64, seed=seed))
    nearest = select(layer, config=SelectConfig(silhouette="nearest", representative="medoid"))
    assert nearest.k is None
    assert len(nearest.kept) == 64
    assert nearest.reason in ("no knee: kept whole", "knee at the edge: kept whole")
    # It climbs from end to end, as a medoid scores 1 by itself: there is nothing to saturate.
    assert np.diff(nearest.scores[31:]).mean() > 0.005
    assert select(layer, config=SelectConfig(representative="medoid")).reason == "knee"


def test_the_same_input_gives_the_same_answer(space, weights):
    assert select(space, weights=weights) == select(space, weights=weights)
    assert select(space.distances, weights=weights) == select(space, weights=weights)
    first, again, other = (
        select(space, config=SelectConfig(representative="random"), seed=seed).kept for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_renaming_channels_renames_the_answer(space, weights):
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    there = select(space.distances[order][:, order], weights=weights[order])
    back = sorted(order[list(there.kept)].tolist())
    assert tuple(back) == select(space, weights=weights).kept


def test_the_callers_scores_choose_whatever_the_setting(space, weights):
    by_scores = select(space, scores=weights, config=SelectConfig(representative="medoid"))
    assert by_scores.kept == select(space, weights=weights).kept
    by_medoid = select(space, config=SelectConfig(representative="medoid"))
    assert by_medoid.representatives == by_medoid.medoids
    assert by_medoid.clusters == by_scores.clusters


def test_of_equal_channels_the_lowest_represents():
    clusters, medoids = (0, 1, 0, 1, 1), (2, 3)
    assert representatives(clusters, medoids, weights=torch.ones(5)) == (0, 1)
    assert representatives(clusters, medoids, weights=torch.tensor([1.0, 0, 2, 5, 5])) == (2, 3)


@pytest.mark.parametrize("channels", [0, 1, 2, 3])
def test_too_few_channels_are_kept_whole(channels):
    found = select(torch.ones(channels, channels) - torch.eye(channels), weights=torch.ones(channels))
    assert found.kept == tuple(range(channels))
    assert found.reason == "too few channels: kept whole"
    assert found.k is None


def test_a_layer_too_small_for_the_degree_is_kept_whole():
    distances = torch.ones(4, 4) - torch.eye(4)
    found = select(distances, weights=torch.ones(4))
    assert found.reason == "too few channels for a fit of degree 2: kept whole"
    assert select(distances, weights=torch.ones(4), config=SelectConfig(degree=1)).candidates == (2, 3)


def test_channels_all_alike_are_kept_whole():
    found = select(torch.zeros(12, 12), weights=torch.ones(12))
    assert (found.kept, found.reason) == (tuple(range(12)), "flat curve: kept whole")


def test_constant_and_duplicated_channels_are_no_error():
    moments = real_like_layer(12)
    channels = torch.cat([torch.arange(12), torch.arange(12)])
    twice = moments.of_channels(channels)
    twice.mean[:, 3], twice.scatter[:, 3] = 1.0, 0.0
    twice.mean[:, 4], twice.scatter[:, 4] = 0.0, 0.0
    found = select(separability_space(twice), weights=torch.arange(24.0), config=SelectConfig(degree=3))
    assert found.k is None or len(found.kept) == found.k
    assert all(np.isfinite(found.scores))


def test_a_large_mass_keeps_the_largest_filters_and_none_changes_nothing(space, weights):
    order = weights.argsort(descending=True).tolist()
    plain = select(space, weights=weights)
    assert select(space, weights=torch.ones(32), config=SelectConfig(mass=3)).medoids == plain.medoids
    assert select(space, weights=torch.zeros(32), config=SelectConfig(mass=3)).medoids == plain.medoids
    # At this power the largest filter outweighs all the rest, so that any other choice costs more.
    heavy = with_width(plain, space, 8, weights=weights, config=SelectConfig(mass=500))
    assert heavy.kept == tuple(sorted(order[:8]))


def test_a_channels_own_silhouette_does_not_know_its_mass(space, weights):
    found = select(space, weights=weights, config=SelectConfig(mass=2))
    at_k = found.candidates.index(found.k)
    distances = space.distances.numpy()
    assert found.scores[at_k] == pytest.approx(
        reference.mean_silhouette_of_gbafs(distances, found.medoids, found.clusters)
    )
    mass = ((weights / weights.max()) ** 2).numpy()
    assert found.losses[at_k] == pytest.approx(float((mass * distances[:, list(found.medoids)].min(axis=1)).sum()))


def test_bad_input_is_refused(space):
    with pytest.raises(ConfigError, match=r"select.mass is 2, which needs the weights .* set it to 0"):
        select(space, config=SelectConfig(mass=2, representative="medoid"))
    with pytest.raises(ConfigError, match=r"select.mass needs norms; the weight of channel 5 is -1"):
        select(space, weights=torch.ones(32).index_fill(0, torch.tensor(5), -1), config=SelectConfig(mass=2))
    with pytest.raises(ConfigError, match=r'no weights were given. Give weights .* or choose .*"medoid"'):
        select(space)
    with pytest.raises(ConfigError, match=r"weights has shape \(3,\); it must be \(32,\)"):
        select(space, weights=torch.ones(3))
    bad = torch.ones(32)
    bad[7] = float("nan")
    with pytest.raises(ConfigError, match="scores is nan for channel 7"):
        select(space, scores=bad)
    with pytest.raises(CalibrationError, match=r"shape \(4, 3\); they must be \(channels, channels\)"):
        select(torch.zeros(4, 3), weights=torch.ones(4))
    broken = torch.zeros(5, 5)
    broken[1, 2] = float("inf")
    with pytest.raises(CalibrationError, match="between channels 1 and 2 is not finite"):
        select(broken, weights=torch.ones(5))
    for wrong in (torch.ones(5, 5), torch.eye(5) - 1, torch.triu(torch.ones(5, 5), 1)):
        with pytest.raises(CalibrationError, match="negative, not symmetric, or not zero"):
            select(wrong, weights=torch.ones(5))


def test_distances_from_a_matrix_product_are_welcome():
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    distances = torch.cdist(points, points, compute_mode="use_mm_for_euclid_dist")
    before = distances.clone()
    assert select(distances, config=SelectConfig(representative="medoid")).channels == 40
    assert torch.equal(distances, before)
