import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosep.errors import ConfigError
from cosep.selection import assign, cluster_at, cluster_every_k, mean_simplified_silhouette
from tests import reference
from tests.selection.test_clustering import random_distances


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 16), st.booleans())
def test_both_readings_equal_their_definitions_written_out(seed, channels, coarse):
    distances = random_distances(channels, 3, seed)
    if coarse:
        distances = np.round(distances)
    for clustering in list(cluster_every_k(distances))[1:]:
        labels = assign(distances, clustering.medoids)
        for reading, oracle in (
            ("mean", reference.mean_silhouette_of_gbafs),
            ("nearest", reference.nearest_silhouette_of_the_paper),
        ):
            expected = oracle(distances.tolist(), clustering.medoids.tolist(), labels.tolist())
            assert mean_simplified_silhouette(clustering, reading) == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    # Points at 0, 1, 10 and 14 on a line, medoids 0 and 10: b is 10, 9, 10, 14 and a is 0, 1, 0, 4.
    points = np.array([0.0, 1.0, 10.0, 14.0])
    distances = np.abs(points[:, None] - points[None])
    found = cluster_at(distances, 2)
    assert found.loss == 5.0
    assert set(found.medoids.tolist()) <= {0, 1, 2, 3}
    a, b = [1.0, 4.0], [9.0, 14.0] if 0 in found.medoids else [10.0, 13.0]
    mean = np.mean([(y - x) / y for x, y in zip(a, b, strict=True)])
    assert mean_simplified_silhouette(found, "mean") == pytest.approx(mean)
    assert mean_simplified_silhouette(found, "nearest") == pytest.approx((2 + 2 * mean) / 4)


def test_channels_that_all_coincide_with_medoids_score_one_and_duplicate_medoids_zero():
    found = cluster_at(np.zeros((5, 5)), 3)
    assert mean_simplified_silhouette(found, "mean") == 1.0
    assert mean_simplified_silhouette(found, "nearest") == 0.0


def test_an_unknown_reading_is_refused():
    with pytest.raises(ConfigError, match="silhouette is 'median'; it must be one of 'mean', 'nearest'"):
        mean_simplified_silhouette(cluster_at(random_distances(5), 2), "median")
