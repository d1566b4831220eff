import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from cosep.config import ProfileConfig
from cosep.errors import CalibrationError, ConfigError
from cosep.profiles import profiles, separability_space, top_classes
from cosep.profiles import space as space_module
from cosep.records import ClassHistograms, ClassMoments
from tests import reference


def random_moments(classes, channels, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(classes, channels, generator=generator, dtype=torch.float64) * scale
    var = (0.2 + torch.rand(classes, channels, generator=generator, dtype=torch.float64)) * scale**2
    return ClassMoments(torch.full((classes,), 50), mean, var * 50)


def direct(profile):
    return torch.cdist(profile, profile, compute_mode="donot_use_mm_for_euclid_dist")


def test_profiles_equal_the_definition_on_raw_samples():
    rng = np.random.default_rng(1)
    labels = np.arange(80) % 4
    activations = rng.normal(size=(80, 6)) * rng.uniform(0.001, 5, size=6) + labels[:, None] * 0.3
    mean = torch.tensor(np.stack([activations[labels == c].mean(axis=0) for c in range(4)]))
    var = torch.tensor(np.stack([activations[labels == c].var(axis=0) for c in range(4)]))
    moments = ClassMoments(torch.full((4,), 20), mean, var * 20)
    assert_close(profiles(moments), torch.tensor(reference.profiles_by_loops(activations, labels)))


@pytest.mark.parametrize("metric", ["jm", "hellinger", "wasserstein"])
def test_distances_equal_differences_of_profiles(metric):
    moments = random_moments(9, 23)
    space = separability_space(moments, ProfileConfig(metric=metric))
    profile = profiles(moments, metric=metric)
    assert_close(space.distances, direct(profile), atol=1e-10, rtol=1e-9)
    assert_close(space.separability, profile.mean(dim=1), atol=1e-11, rtol=0)
    assert space.classes == tuple(range(9))
    assert space.metric == metric


def test_blocks_of_any_size_give_the_same_space(monkeypatch):
    moments = random_moments(12, 10)
    whole = separability_space(moments)
    for bytes_allowed in (1, 8 * 8 * 10 * 7):
        monkeypatch.setattr(space_module, "BLOCK_BYTES", bytes_allowed)
        assert torch.equal(separability_space(moments).distances, whole.distances)
    monkeypatch.setattr(space_module, "_MOST_PAIRS", 5)  # leaves the exact range often
    assert_close(separability_space(moments).distances, whole.distances, atol=1e-11, rtol=1e-12)


def test_memory_holds_one_block_of_pairs_only(monkeypatch):
    sizes = []
    original = space_module.GAUSSIAN_METRICS["jm"]

    def recorded(mean, var, first, second):
        sizes.append(len(first))
        return original(mean, var, first, second)

    monkeypatch.setitem(space_module.GAUSSIAN_METRICS, "jm", recorded)
    monkeypatch.setattr(space_module, "BLOCK_BYTES", 2**20)
    separability_space(random_moments(150, 4), ProfileConfig(max_classes=150))
    assert sum(sizes) == 150 * 149 // 2
    assert max(sizes) * 4 * 8 * 8 <= 2**20


def test_any_number_of_threads_gives_the_same_bits():
    moments = random_moments(30, 64, seed=5)
    before = torch.get_num_threads()
    try:
        spaces = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            spaces.append(separability_space(moments, ProfileConfig(max_classes=20)))
    finally:
        torch.set_num_threads(before)
    for space in spaces[1:]:
        assert space.classes == spaces[0].classes
        assert torch.equal(space.distances, spaces[0].distances)
        assert torch.equal(space.separability, spaces[0].separability)


def test_duplicates_are_at_distance_zero_and_the_matrix_is_symmetric():
    moments = random_moments(10, 12)
    twice = moments.of_channels(torch.cat([torch.arange(12), torch.arange(12)]))
    distances = separability_space(twice).distances
    assert torch.equal(distances, distances.T)
    assert (distances.diagonal() == 0).all()
    assert (distances[:12, 12:].diagonal() == 0).all()
    assert (distances[:12, :12] + torch.eye(12) > 0).all()


def test_channels_that_hardly_differ_are_still_apart():
    moments = random_moments(8, 1)
    near = ClassMoments(moments.count, moments.mean.repeat(1, 2), moments.scatter.repeat(1, 2))
    near.mean[:, 1] += torch.linspace(0, 1e-7, 8)
    exact = direct(profiles(near))
    assert_close(separability_space(near).distances, exact, atol=1e-11, rtol=1e-3)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(-20, 20))
def test_the_jm_space_ignores_rescaling_and_shifting_of_channels(seed, exponent, shift):
    moments = random_moments(5, 6, seed)
    factor = 10.0**exponent * torch.linspace(1, 3, 6)
    moved = ClassMoments(moments.count, (moments.mean + shift) * factor, moments.scatter * factor.square())
    assert_close(separability_space(moved).distances, separability_space(moments).distances, atol=1e-6, rtol=0)


def test_more_classes_than_the_limit_are_screened():
    moments = random_moments(30, 8)
    space = separability_space(moments, ProfileConfig(max_classes=7))
    assert space.classes == top_classes([moments], 7)
    assert_close(space.distances, direct(profiles(moments, space.classes)), atol=1e-10, rtol=1e-9)


def test_tied_channels_have_concatenated_profiles():
    first, second = random_moments(6, 5, seed=1), random_moments(6, 5, seed=2, scale=100.0)
    for metric in ("jm", "wasserstein"):
        space = separability_space([first, second], ProfileConfig(metric=metric))
        both = torch.cat([profiles(first, metric=metric), profiles(second, metric=metric)], dim=1)
        assert_close(space.distances, direct(both), atol=1e-9, rtol=1e-9)
        assert_close(space.separability, both.mean(dim=1), atol=1e-9, rtol=1e-9)


def test_salience_multiplies_profiles():
    moments, salience = random_moments(6, 5), torch.tensor([0.0, 1e-3, 1.0, 3.0, 500.0])
    space = separability_space(moments, salience=salience)
    assert_close(space.distances, direct(profiles(moments) * salience.double().unsqueeze(1)), atol=1e-9, rtol=1e-9)


def test_histograms_span_a_space_too():
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(0, 9, (4, 5, 16), generator=generator)
    histograms = ClassHistograms(count, torch.zeros(5).double(), torch.ones(5).double())
    moments = random_moments(4, 5)
    profile = profiles(moments, metric="jm-histogram", histograms=histograms)
    root = (count / count.sum(dim=-1, keepdim=True)).double().sqrt()
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    by_hand = torch.stack([2 * (1 - (root[i] * root[j]).sum(dim=-1)) for i, j in pairs], dim=1)
    assert_close(profile, by_hand, atol=1e-6, rtol=0)
    space = separability_space(moments, ProfileConfig(metric="jm-histogram"), histograms=histograms)
    assert_close(space.distances, direct(profile), atol=1e-10, rtol=1e-9)


def test_dead_channels_coincide():
    moments = random_moments(4, 3)
    moments.mean[:, 1:] = 7.0
    moments.scatter[:, 1:] = 0.0
    space = separability_space(moments)
    assert space.distances[1, 2] == 0
    assert space.separability[1:].abs().max() == 0
    assert torch.isfinite(space.distances).all()


def test_one_channel_is_a_space():
    assert separability_space(random_moments(3, 1)).distances.tolist() == [[0.0]]


@pytest.mark.parametrize("limit", [100, 3])
def test_classes_with_too_few_samples_span_nothing_and_are_named(limit):
    whole = random_moments(6, 5)
    few = ClassMoments(torch.tensor([9, 1, 9, 0, 9, 9]), whole.mean, whole.scatter)
    rest = [0, 2, 4, 5]
    expected = separability_space(
        ClassMoments(few.count[rest], few.mean[rest], few.scatter[rest]), ProfileConfig(max_classes=100)
    )
    found = separability_space(few, ProfileConfig(max_classes=limit))
    assert found.left_out == (1, 3)
    assert set(found.classes) <= set(rest)
    assert len(found.classes) == min(limit, 4)
    if limit == 100:
        assert torch.equal(found.distances, expected.distances)


def test_bad_statistics_are_refused():
    good = random_moments(3, 2)
    one = ClassMoments(good.count[:1], good.mean[:1], good.scatter[:1])
    with pytest.raises(CalibrationError, match=r"cover 1 class.*at least 2"):
        separability_space(one)
    few = ClassMoments(torch.tensor([9, 1, 9]), good.mean, good.scatter)
    with pytest.raises(CalibrationError, match=r"class 1 has 1 calibration sample.*at least 2"):
        profiles(few)
    with pytest.raises(CalibrationError, match=r"cover 1 class\(es\) with two samples or more"):
        separability_space(ClassMoments(torch.tensor([9, 1, 0]), good.mean, good.scatter))
    broken = good.mean.clone()
    broken[2, 1] = float("nan")
    with pytest.raises(CalibrationError, match="channel 1 in class 2 are not finite"):
        profiles(ClassMoments(good.count, broken, good.scatter))
    with pytest.raises(CalibrationError, match=r"\(3, 2\), \(3, 4\).*must be alike"):
        separability_space([good, random_moments(3, 4)])
    with pytest.raises(CalibrationError, match="no moments"):
        separability_space([])


def test_bad_settings_are_refused():
    moments = random_moments(3, 2)
    with pytest.raises(ConfigError, match=r"max_classes is 1; it must be at least 2"):
        ProfileConfig(max_classes=1)
    with pytest.raises(ConfigError, match=r"salience has shape \(3,\); it must be \(2,\)"):
        separability_space(moments, salience=torch.ones(3))
    with pytest.raises(ConfigError, match="negative or non-finite"):
        separability_space(moments, salience=torch.tensor([1.0, -1.0]))
    with pytest.raises(ConfigError, match="needs histograms"):
        separability_space(moments, ProfileConfig(metric="jm-histogram"))
    with pytest.raises(ConfigError, match="at least two different classes between 0 and 2"):
        profiles(moments, [0, 3])
    histograms = ClassHistograms(torch.ones(3, 5, 4), torch.zeros(5), torch.ones(5))
    with pytest.raises(CalibrationError, match="one for each producer"):
        separability_space(moments, ProfileConfig(metric="jm-histogram"), histograms=histograms)


@pytest.mark.parametrize("metric", ["jm", "hellinger", "wasserstein"])
def test_places_of_a_head_join_to_one_profile_whatever_their_order(metric):
    config = ProfileConfig(metric=metric)
    places = [random_moments(5, 7, seed) for seed in range(4)]
    space = separability_space(places, config, spans=[3, 1])
    each = torch.stack([profiles(place, metric=metric) for place in places[:3]])
    if metric == "wasserstein":  # the distance of independent places, per place
        head = each.square().mean(0).sqrt()
    else:
        overlap = 1 - each.square() if metric == "hellinger" else 1 - each / 2
        apart = 1 - overlap.prod(0) ** (1 / 3)
        head = apart.sqrt() if metric == "hellinger" else 2 * apart
    expected = torch.cat([head, profiles(places[3], metric=metric)], dim=1)
    assert_close(space.distances, direct(expected), atol=1e-9, rtol=1e-9)
    turned = [places[2], places[0], places[1], places[3]]
    assert_close(separability_space(turned, config, spans=[3, 1]).distances, space.distances, atol=1e-9, rtol=0)


def test_spans_that_do_not_cover_the_moments_are_refused():
    with pytest.raises(CalibrationError, match=r"spans are \[2, 2\] for 3 moments"):
        separability_space([random_moments(3, 4)] * 3, spans=[2, 2])
