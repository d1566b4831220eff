from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosep.selection import assign, cluster_at, cluster_every_k
from tests import reference


def random_distances(channels, dimensions=6, seed=0):
    points = np.random.default_rng(seed).normal(size=(channels, dimensions))
    return np.sqrt(np.square(points[:, None] - points[None]).sum(axis=-1))


@pytest.mark.parametrize("seed", range(6))
def test_the_loss_is_close_to_the_optimum_of_exhaustive_search(seed):
    distances = random_distances(10, 3, seed)
    for clustering in cluster_every_k(distances):
        best = reference.best_loss(distances, clustering.k)
        assert best - 1e-9 <= clustering.loss <= 1.005 * best


def test_well_separated_clusters_are_found_exactly():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(4, 2)) * 0.1 + centre for centre in ((0, 0), (9, 0), (0, 9))])
    distances = np.sqrt(np.square(points[:, None] - points[None]).sum(axis=-1))
    found = cluster_at(distances, 3)
    assert found.loss == pytest.approx(reference.best_loss(distances, 3))
    labels = assign(distances, found.medoids)
    assert [len(set(labels[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
    assert len(set(labels)) == 3


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 14), st.integers(1, 4), st.booleans())
def test_no_single_exchange_improves_any_k(seed, channels, dimensions, coarse):
    distances = random_distances(channels, dimensions, seed)
    if coarse:  # many ties and duplicates
        distances = np.round(distances)
    for clustering in cluster_every_k(distances):
        least = 1e-9 * (1 + clustering.loss)
        assert reference.improving_exchange(distances, clustering.medoids.tolist(), least) is None


@pytest.mark.parametrize("channels", [40, 150])
def test_losses_are_as_good_as_those_of_independent_random_starts(channels):
    import kmedoids

    distances = random_distances(channels, 8, seed=2)
    ours = np.array([clustering.loss for clustering in cluster_every_k(distances)])[1:]
    theirs = np.array([kmedoids.fasterpam(distances, k, random_state=99, n_cpu=1).loss for k in range(2, channels)])
    assert (ours / theirs).mean() <= 1
    assert (ours / theirs).max() < 1.02


def test_another_seed_may_start_elsewhere_but_ends_as_well():
    distances = random_distances(30, 3, seed=4)
    losses = np.array([[c.loss for c in cluster_every_k(distances, seed=seed)] for seed in (0, 50)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 30), st.booleans())
def test_what_a_clustering_carries_is_what_the_matrix_says(seed, channels, coarse):
    distances = random_distances(channels, 3, seed)
    if coarse:
        distances = np.round(distances)
    clusterings = list(cluster_every_k(distances))
    assert [c.k for c in clusterings] == list(range(1, channels))
    for clustering in clusterings:
        rows = distances[clustering.medoids]
        ranked = np.sort(rows, axis=0)
        assert len(set(clustering.medoids.tolist())) == clustering.k
        np.testing.assert_allclose(clustering.near, ranked[0], atol=1e-12)
        np.testing.assert_allclose(clustering.total, rows.sum(axis=0), atol=1e-9)
        if clustering.k > 1:
            np.testing.assert_allclose(clustering.second, ranked[1], atol=1e-12)


def test_the_loss_falls_with_k_and_vanishes_with_a_medoid_for_each():
    distances = random_distances(40)
    losses = [clustering.loss for clustering in cluster_every_k(distances)]
    assert (np.diff(losses) < 0).all()
    assert cluster_at(distances, 40).loss == 0


def test_one_k_on_demand_is_the_one_of_the_sweep():
    distances = random_distances(25)
    for clustering in cluster_every_k(distances):
        assert cluster_at(distances, clustering.k).medoids.tolist() == clustering.medoids.tolist()


def test_no_cluster_is_empty_where_channels_coincide():
    distances = np.zeros((6, 6))
    for k in range(1, 7):
        assert sorted(set(assign(distances, cluster_at(distances, k).medoids).tolist())) == list(range(k))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 9))
def test_a_mass_of_m_is_m_channels_at_the_same_place(seed, channels):
    distances = random_distances(channels, 3, seed)
    mass = np.random.default_rng(seed).integers(1, 4, channels)
    copies = np.repeat(np.arange(channels), mass)
    for clustering in cluster_every_k(distances, mass=mass.astype(float)):
        repeated = distances[np.ix_(copies, copies)]
        # Medoids may be any copy: one of each channel is enough to choose from.
        firsts = np.unique(copies, return_index=True)[1]
        best = min(repeated[:, list(s)].min(axis=1).sum() for s in combinations(firsts, clustering.k))
        assert best - 1e-9 <= clustering.loss <= 1.005 * best + 1e-9
        alone = repeated[:, firsts[clustering.medoids]]
        assert clustering.loss == pytest.approx(alone.min(axis=1).sum())
        np.testing.assert_allclose(clustering.total, mass * distances[:, clustering.medoids].sum(axis=1), atol=1e-9)


def test_equal_masses_change_nothing():
    distances = random_distances(20, 3, seed=5)
    plain, massive = cluster_every_k(distances), cluster_every_k(distances, mass=np.full(20, 0.5))
    for one, other in zip(plain, massive, strict=True):
        assert one.medoids.tolist() == other.medoids.tolist()


def test_a_heavy_channel_is_a_medoid_and_light_ones_are_not():
    distances = random_distances(12, 3, seed=6)
    mass = np.where(np.arange(12) < 4, 1.0, 1e-6)
    assert cluster_at(distances, 4, mass=mass).medoids.tolist() == [0, 1, 2, 3]


def test_the_matrix_is_left_as_it_was():
    distances = random_distances(20)
    before = distances.copy()
    list(cluster_every_k(distances))
    assert (distances == before).all()
