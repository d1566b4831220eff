"""In a very wide layer only some k are clustered; the knee stays where it was."""

import numpy as np
import pytest
import torch

from cosep.config import SelectConfig
from cosep.profiles import separability_space
from cosep.selection import cluster_at, cluster_every_k, select
from cosep.selection import sweep as module
from cosep.selection.sweep import grid, sweep
from tests.selection.test_selection import real_like_layer

BY_MEDOID = SelectConfig(representative="medoid")


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(module, "EVERY_K", 200)
    monkeypatch.setattr(module, "GRID", 64)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_knee_on_the_grid_is_that_of_every_k_within_two_percent(seed, request):
    channels = 320
    space = separability_space(real_like_layer(channels, seed=seed))
    every = select(space, config=BY_MEDOID)
    request.getfixturevalue("wide")
    some = select(space, config=BY_MEDOID)
    assert every.reason == some.reason == "knee"
    assert len(every.candidates) == channels - 2
    assert len(some.candidates) == 64
    assert abs(every.k - some.k) <= 0.02 * channels
    assert some.notes[0] == f"of {channels} channels 64 of the {channels - 2} possible widths were clustered"
    assert len(some.kept) == len(some.medoids) == some.k


def test_a_width_between_two_of_the_grid_is_clustered_when_it_is_asked_for(wide):
    found = sweep(separability_space(real_like_layer(240)), config=BY_MEDOID)
    k = next(k for k in range(50, 240) if k not in found.ks)
    kept = found.at(k).kept
    assert len(set(kept)) == k
    best = cluster_at(found.distances, k).loss
    nearest = found.distances[:, list(found.at(k).medoids)].min(axis=1).sum()
    assert nearest <= 1.03 * best


def test_the_clusterings_of_some_k_are_nearly_as_good_as_those_of_every_k():
    points = np.random.default_rng(0).normal(size=(150, 4))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    every = {c.k: c.loss for c in cluster_every_k(distances)}
    some = {c.k: c.loss for c in cluster_every_k(distances, only=(10, 40, 100))}
    assert list(some) == [10, 40, 100]
    assert all(loss <= 1.03 * every[k] for k, loss in some.items())


def test_the_grid_is_spread_evenly_over_all_widths():
    ks = grid(4096)
    assert len(ks) == 128
    steps = torch.tensor(ks).diff()
    assert steps.max() - steps.min() <= 1
    assert 2 <= ks[0] <= 2 + int(steps[0])
    assert 4096 - int(steps[0]) <= ks[-1] < 4096
