"""Evidence: against definitions on small cases, and as files."""

import pytest
import torch
from torch.testing import assert_close

from cosep.errors import ArtifactError
from cosep.profiles import profiles, separability_space
from cosep.records import ClassMoments, Selection
from cosep.reporting import evidence as module
from cosep.reporting import evidence_from_bytes, evidence_to_bytes, projection
from cosep.reporting.folders import evidence_of


def some_moments(channels=12, classes=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(classes, channels, generator=generator, dtype=torch.float64)
    scatter = 50 * (0.5 + torch.rand(classes, channels, generator=generator, dtype=torch.float64))
    return ClassMoments(torch.full((classes,), 50), mean, scatter)


def evidence(moments, kept):
    space = separability_space(moments)
    weights = torch.arange(space.channels).double()
    return evidence_of("layer", [moments], None, space, weights, Selection(space.channels, tuple(kept), "knee"))


def test_the_profiles_are_those_of_the_profile_stage():
    moments = some_moments()
    found = evidence(moments, range(12))
    assert_close(found.profiles.double(), profiles(moments), atol=1e-3, rtol=1e-3)
    assert found.columns.tolist() == list(range(15))
    assert_close(found.separability.double(), profiles(moments).mean(dim=1), atol=1e-6, rtol=1e-6)


def test_the_best_separator_of_every_pair_is_found_by_looking_at_all():
    moments = some_moments()
    kept = [1, 4, 7, 8]
    found, matrix = evidence(moments, kept), profiles(moments)
    for pair in range(15):
        assert found.best[pair] == max(range(12), key=lambda c: matrix[c, pair])
        assert found.best_kept[pair] == max(kept, key=lambda c: matrix[c, pair])
        assert found.best_score[pair] == pytest.approx(float(matrix[:, pair].max()))
        assert found.best_kept_score[pair] == pytest.approx(float(matrix[kept, pair].max()))


def test_blocks_of_channels_change_nothing(monkeypatch):
    moments = some_moments()
    whole = evidence(moments, [0, 5])
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 40)  # two channels at a time
    assert evidence_to_bytes(evidence(moments, [0, 5])) == evidence_to_bytes(whole)


def test_of_many_pairs_those_in_which_channels_differ_most_are_kept(monkeypatch):
    moments = some_moments()
    monkeypatch.setattr(module, "MOST_PAIRS", 4)
    found, matrix = evidence(moments, [0, 5]), profiles(moments)
    most = sorted(matrix.var(dim=0).topk(4).indices.tolist())
    assert found.columns.tolist() == most
    assert_close(found.profiles.double(), matrix[:, most], atol=1e-3, rtol=1e-3)
    assert len(found.best) == 15


def test_tied_channels_show_the_mean_of_their_producers():
    one, other = some_moments(seed=1), some_moments(seed=2)
    space = separability_space([one, other])
    found = evidence_of("tied", [one, other], None, space, torch.ones(12), Selection(12, (0, 1), "knee"))
    assert_close(found.profiles.double(), (profiles(one) + profiles(other)) / 2, atol=1e-3, rtol=1e-3)


def test_two_dimensions_are_enough_for_points_of_a_plane():
    points = torch.tensor([[0.0, 0], [3, 0], [3, 4], [0, 4], [1, 1]], dtype=torch.float64)
    distances = torch.cdist(points, points)
    coordinates, shares = projection(distances)
    assert_close(torch.cdist(coordinates, coordinates), distances)
    assert sum(shares) == pytest.approx(1)
    assert shares[0] >= shares[1]


def test_the_projection_is_that_of_principal_components():
    points = torch.randn(20, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    coordinates, shares = projection(torch.cdist(points, points))
    centred = points - points.mean(dim=0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    assert_close(coordinates.abs(), (u[:, :2] * s[:2]).abs())
    assert shares == pytest.approx((s[:2] ** 2 / (s**2).sum()).tolist())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_channels_that_are_all_alike_lie_on_one_spot(count):
    coordinates, shares = projection(torch.zeros(count, count))
    assert_close(coordinates, torch.zeros(count, 2, dtype=torch.float64))
    assert shares == (0.0, 0.0)


def test_evidence_survives_a_file():
    found = evidence(some_moments(), [0, 5])
    again = evidence_from_bytes(evidence_to_bytes(found), "here")
    assert evidence_to_bytes(again) == evidence_to_bytes(found)
    assert (again.group, again.classes, again.shares) == (found.group, found.classes, found.shares)


@pytest.mark.parametrize("damage", [lambda d: d[:40], lambda d: b"", lambda d: d[:8] + b"x" * 50 + d[58:]])
def test_a_damaged_file_is_refused(damage):
    data = evidence_to_bytes(evidence(some_moments(), [0, 5]))
    with pytest.raises(ArtifactError, match=r"5\.safetensors is damaged"):
        evidence_from_bytes(damage(data), "5.safetensors")


def test_evidence_of_a_newer_format_is_refused(monkeypatch):
    monkeypatch.setattr(module, "EVIDENCE_FORMAT", 2)
    data = evidence_to_bytes(evidence(some_moments(), [0, 5]))
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="has format 2; this cosep reads 1"):
        evidence_from_bytes(data, "5.safetensors")
