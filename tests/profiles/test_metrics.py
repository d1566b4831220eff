import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cosep.profiles import bhattacharyya, hellinger, jm, jm_histogram, wasserstein
from tests import reference

FIRST, SECOND = torch.tensor([0]), torch.tensor([1])
CASES = [(0.0, 1.0, 0.0, 1.0), (0.0, 1.0, 1.5, 1.0), (0.0, 1.0, 0.0, 3.0), (-2.0, 0.3, 1.0, 0.9), (5.0, 0.1, 5.2, 0.4)]


def column(*values):
    return torch.tensor([[value] for value in values], dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        (jm, reference.jm_by_integration),
        (hellinger, reference.hellinger_by_integration),
        (wasserstein, reference.wasserstein_by_integration),
    ],
)
def test_closed_forms_equal_numerical_integration(metric, oracle, case):
    mean_a, sd_a, mean_b, sd_b = case
    found = metric(column(mean_a, mean_b), column(sd_a**2, sd_b**2), FIRST, SECOND)
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(oracle(*case), abs=2e-6)


def test_histogram_jm_of_fine_bins_approaches_the_density():
    edges = np.linspace(-8, 9, 4001)
    from scipy.stats import norm

    mass = np.stack([np.diff(norm(0, 1).cdf(edges)), np.diff(norm(1, 1.5).cdf(edges))])[:, None, :]
    found = jm_histogram(torch.tensor(mass * 1e9).long(), FIRST, SECOND)
    assert float(found) == pytest.approx(reference.jm_by_integration(0, 1, 1, 1.5), abs=1e-4)


def test_histogram_jm_by_hand():
    count = torch.tensor([[[2, 2, 0]], [[0, 2, 2]], [[4, 4, 0]], [[0, 0, 7]]])  # (4 classes, 1 channel, 3 bins)
    found = jm_histogram(count, torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3]))
    assert_close(found, torch.tensor([[1.0, 0.0, 2.0]], dtype=torch.float64), atol=1e-15, rtol=0)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.05, 3)), min_size=3, max_size=5),
    st.floats(-6, 6),
    st.floats(-50, 50),
)
def test_jm_and_hellinger_ignore_rescaling_and_shifting_of_a_channel(classes, exponent, shift):
    mean = torch.tensor([[m] for m, _ in classes], dtype=torch.float64)
    var = torch.tensor([[s**2] for _, s in classes], dtype=torch.float64)
    first, second = torch.triu_indices(len(classes), len(classes), offset=1)
    factor = 10.0**exponent
    for metric in (jm, hellinger):
        there = metric((mean + shift) * factor, var * factor**2, first, second)
        assert_close(there, metric(mean, var, first, second), atol=1e-6, rtol=0)


@given(st.floats(-1e3, 1e3), st.floats(0, 1e3), st.floats(-1e3, 1e3), st.floats(0, 1e3))
def test_metrics_are_symmetric_and_within_their_bounds(mean_a, sd_a, mean_b, sd_b):
    mean, var = column(mean_a, mean_b), column(sd_a**2, sd_b**2)
    for metric, bound in ((jm, 2.0), (hellinger, 1.0), (wasserstein, float("inf"))):
        there, back = metric(mean, var, FIRST, SECOND), metric(mean, var, SECOND, FIRST)
        assert_close(there, back, rtol=1e-12, atol=0)
        assert 0 <= float(there) <= bound


def test_tiny_variances_are_not_drowned_by_an_epsilon():
    mean, var = column(1e-4, 2e-4), column(1e-9, 3e-9)
    scaled = jm(mean * 1e4, var * 1e8, FIRST, SECOND)
    assert_close(jm(mean, var, FIRST, SECOND), scaled)


def test_a_dead_channel_separates_only_where_the_means_differ():
    mean, var = column(0.3, 0.3, 0.5), torch.zeros(3, 1, dtype=torch.float64)
    found = jm(mean, var, torch.tensor([0, 0]), torch.tensor([1, 2]))
    assert found.tolist() == [[0.0, 2.0]]


def test_rounding_left_by_summing_a_constant_is_not_a_signal():
    mean = column(0.1, 0.1 + 2e-17, 0.1 - 3e-17)
    var = column(1e-34, 0.0, 4e-35)
    first, second = torch.triu_indices(3, 3, offset=1)
    for metric in (jm, hellinger):
        assert metric(mean, var, first, second).abs().max() == 0
    assert wasserstein(mean, var, first, second).abs().max() < 1e-15


def test_a_class_without_variance_does_not_overlap_with_one_that_has_some():
    assert float(jm(column(0.0, 0.0), column(0.0, 1.0), FIRST, SECOND)) == 2.0
    assert float(bhattacharyya(column(0.0, 0.0), column(0.0, 1.0), FIRST, SECOND)) == float("inf")


def test_wasserstein_is_in_the_unit_of_the_channel():
    mean, var = column(1.0, 2.0), column(1.0, 4.0)
    assert_close(wasserstein(mean * 10, var * 100, FIRST, SECOND), 10 * wasserstein(mean, var, FIRST, SECOND))
