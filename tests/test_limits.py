import pytest

from cosep.records import Selection
from cosep.selection.limits import fitting_widths, width_at


def curve(n, power=0.5):
    """A layer of n channels with a concave curve k^power; its knee is where the curve is furthest above the chord."""
    ks = tuple(range(2, n))
    fit = tuple(float(k) ** power for k in ks)
    lift = [(y - fit[0]) / (fit[-1] - fit[0]) - (k - 2) / (n - 3) for k, y in zip(ks, fit, strict=True)]
    k = ks[lift.index(max(lift))]
    return Selection(channels=n, kept=tuple(range(k)), reason="knee", k=k, candidates=ks, scores=fit, fit=fit)


def test_a_steepness_of_one_is_the_knee():
    selection = curve(64)
    assert width_at(selection, 1.0) == selection.k


def test_widths_never_grow_with_the_steepness():
    selection = curve(64)
    widths = [width_at(selection, 1 + t / 4) for t in range(80)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 2


def test_a_layer_that_was_kept_whole_stays_whole():
    assert width_at(Selection(channels=9, kept=tuple(range(9)), reason="flat curve: kept whole"), 5.0) == 9


def test_a_limit_above_the_knees_lets_every_layer_keep_more_up_to_it():
    selections = {"a": curve(32), "b": curve(64)}
    knees = sum(s.k for s in selections.values())
    for limit in (knees + 10, knees + 30, 90):
        fit = fitting_widths(selections, lambda widths: sum(widths.values()), limit, "channels")
        assert fit.met
        assert limit - 3 <= fit.cost <= limit
        assert all(fit.widths[name] >= s.k for name, s in selections.items())


@pytest.mark.parametrize("limit", [13, 15, 20, 24])
def test_a_limit_is_met_as_closely_as_one_measure_for_all_layers_can(limit):
    selections = {"a": curve(32), "b": curve(64)}
    fit = fitting_widths(selections, lambda widths: sum(widths.values()), limit, "channels")
    assert fit.met
    assert limit - 3 <= fit.cost <= limit


def test_a_limit_out_of_reach_says_how_close_it_came():
    fit = fitting_widths({"a": curve(32)}, lambda widths: sum(widths.values()), 1, "channels")
    assert not fit.met
    assert "cannot be brought to 1: 4 is the least there is" in fit.note


def test_the_steeper_curve_gives_up_less():
    flat, steep = curve(64, power=0.9), curve(64, power=0.3)
    fit = fitting_widths({"flat": flat, "steep": steep}, lambda w: sum(w.values()), 20, "channels")
    assert fit.widths["steep"] / steep.k > fit.widths["flat"] / flat.k
