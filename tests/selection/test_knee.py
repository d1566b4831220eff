import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from cosep.errors import ConfigError
from cosep.selection import Knee, check_degree, find_knee, fit_curve


def test_the_curve_of_figure_2_of_the_kneedle_paper():
    x = np.linspace(0, 1, 10)
    found = find_knee(x, -1 / (x + 0.1) + 5)
    assert found.reason == "knee"
    assert found.x == pytest.approx(0.22, abs=0.01)  # the published knee of y = 5 - 1/(x + 0.1)


def test_the_gaussian_distribution_function_of_the_kneedle_paper():
    # Its NoisyGaussian: N(50, 10) against ranks, with a knee at about 60. The true distribution function on its concave
    # half, up to the largest of about 100 samples, has its knee where the density equals the slope of the chord.
    x = np.linspace(50, 75, 501)
    y = stats.norm(50, 10).cdf(x)
    slope = (y[-1] - y[0]) / 25
    expected = optimize.brentq(lambda t: stats.norm(50, 10).pdf(t) - slope, 50, 75)
    assert find_knee(x, y).x == pytest.approx(expected, abs=0.06)
    assert expected == pytest.approx(60.5, abs=1.5)


@pytest.mark.parametrize(
    ("curve", "knee"),
    [
        (np.sqrt, 0.25),
        (lambda x: x ** (1 / 3), 3**-1.5),
        (lambda x: 2 * x - x**2, 0.5),
        (lambda x: np.sin(x * np.pi / 2), 0.5607),
    ],
)
def test_the_knee_of_a_smooth_curve_is_where_it_runs_parallel_to_its_chord(curve, knee):
    x = np.linspace(0, 1, 2001)
    assert find_knee(x, curve(x)).x == pytest.approx(knee, abs=1e-3)


def test_a_hand_made_bend():
    assert find_knee(range(10), [0, 60, 80, 85, 90, 95, 96, 97, 98, 99]) == Knee(2.0, "knee")


DIPS_FIRST = [0, 0.08, 0.45, 0.70, 0.82, 0.88, 0.92, 0.95, 0.97, 0.98, 0.99, 1.0]  # 0.08 lies below the chord


@pytest.mark.parametrize("sensitivity", [0.0, 0.5, 1.0])
def test_a_first_step_below_the_chord_does_not_hide_a_clear_knee(sensitivity):
    assert find_knee(range(2, 14), DIPS_FIRST, sensitivity) == Knee(6.0, "knee")
    assert find_knee(range(3, 14), DIPS_FIRST[1:], sensitivity) == Knee(6.0, "knee")


def test_of_several_knees_the_highest_above_the_chord_counts_not_the_first():
    y = [0, 0.15, 0.12, 0.3, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]  # a bump at 1 (0.04 above the chord), the knee at 4
    assert find_knee(range(10), y, 0.0) == Knee(4.0, "knee")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=40), st.floats(0, 2))
def test_no_knee_lies_higher_than_the_one_that_is_found(rises, sensitivity):
    y = np.cumsum(rises)
    assume(np.ptp(y) > 1e-3)
    x = np.arange(len(y), dtype=float)
    above = (y - y[0]) / np.ptp(y) - x / x[-1]
    found = find_knee(x, y, sensitivity)
    highest = above.max()
    after = above[above.argmax() :]
    if found.x is not None:
        assert above[int(found.x)] > 0
    # A highest point inside, behind which the curve sinks by more than the threshold before it rises again, is a knee.
    sinks = after[: np.flatnonzero(np.diff(after) > 0)[0] + 1] if (np.diff(after) > 0).any() else after
    clear = highest > 1e-9 and highest - sinks.min() > sensitivity / (len(x) - 1) + 1e-9
    if clear and above.argmax() not in (0, len(x) - 1) and (np.diff(sinks) < 0).all():
        assert above[int(found.x)] == pytest.approx(highest)


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 300), st.floats(-1, 1), st.floats(0.4, 1), st.floats(0.01, 3))
def test_a_monotone_parabola_has_its_knee_in_the_middle_whatever_it_is_like(channels, start, bend, height):
    k = np.arange(2, channels)
    t = (k - 2) / (channels - 3)
    # Kneedle asks for a bend of more than one step between candidates, at one of them: none may be in the very middle.
    assume(bend * (t * (1 - t)).max() > 1.001 / (channels - 3))
    y = start + height * ((1 + bend) * t - bend * t**2)  # rises up to its end for every bend <= 1
    found = find_knee(k, fit_curve(k, y, 2))
    assert found == Knee(float((channels + 1) // 2), "knee")


def test_a_curve_bent_by_less_than_a_step_has_no_knee():
    k = np.arange(2, 16)
    t = (k - 2) / 13
    assert find_knee(k, 1.2 * t - 0.2 * t**2) == Knee(None, "no knee")


@settings(max_examples=60, deadline=None)
@given(st.integers(50, 400), st.floats(1.0, 8.0))
def test_a_parabola_that_peaks_inside_keeps_between_three_eighths_and_a_half(channels, bend):
    k = np.arange(2, channels)
    t = (k - 2) / (channels - 3)
    y = (1 + bend) * t - bend * t**2
    found = find_knee(k, fit_curve(k, y, 2))
    if y[-1] < y[0]:
        return  # it falls below its start: the range of the curve is another one
    share = (found.x - 2) / (channels - 3)
    assert 3 / 8 - 1 / channels <= share <= 1 / 2 + 1 / channels


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        ([0.7] * 8, "flat curve"),
        ([0.7 + 1e-15 * (i % 2) for i in range(8)], "flat curve"),
        ([float(i) for i in range(8)], "no knee"),
        ([float(i**3) for i in range(8)], "knee at the edge"),
        ([-float(i) for i in range(8)], "knee at the edge"),
    ],
)
def test_curves_without_a_bend_have_a_reason_instead_of_a_knee(y, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_knee(range(2, 10), y) == Knee(None, reason)


def test_a_higher_sensitivity_wants_a_clearer_bend():
    x = np.arange(2, 32)
    y = fit_curve(x, np.sqrt(x), 2)
    assert find_knee(x, y, 1.0).reason == "knee"
    assert find_knee(x, y, 30.0).reason == "no knee"


@pytest.mark.parametrize("degree", [1, 2, 5, 9])
def test_a_fit_returns_a_polynomial_of_its_degree_unchanged(degree):
    x = np.arange(2, 513)
    t = (x - 250) / 250
    y = sum((-0.7) ** p * t**p for p in range(degree + 1))
    assert fit_curve(x, y, degree) == pytest.approx(y, abs=1e-9)


def test_a_degree_higher_than_the_points_allow_is_refused():
    with pytest.raises(ConfigError, match=r"degree 3 needs at least 4 points and there are 3.*at most 2"):
        fit_curve([1, 2, 3], [1, 2, 3], 3)
    with pytest.raises(ConfigError, match=r"degree is 5, which needs 6 .* 7 channels give 5 .*at most 4"):
        check_degree(7, 5)
    check_degree(8, 5)
    check_degree(3, 2)  # kept whole, whatever the degree
