import numpy as np
import pytest

from cosep.selection import fit_curve, instability, select

K = np.arange(2, 34)
T = (K - 2) / 31


def noisy(curve, size):
    return curve + size * np.random.default_rng(5).standard_normal(len(K))


def test_a_clear_knee_and_a_clear_lack_of_one_stand():
    assert instability(K, noisy(1 - np.exp(-6 * T), 0.01), 3, 1.0) == ""
    assert instability(K, noisy(T**3, 0.01), 2, 1.0) == ""
    assert instability(K, [0.5] * len(K), 2, 1.0) == ""


def test_a_bend_of_just_the_threshold_is_called_unstable_on_either_side():
    # Above its chord the parabola is bend * t * (1 - t): its top is at 15 / 31, and Kneedle asks for 1 / 31 there.
    top = T[15] * (1 - T[15])
    for bend, word in ((1 / 31 / top + 1e-7, "no knee inside"), (1 / 31 / top - 1e-7, "a knee, at 17")):
        found = instability(K, (1 + bend) * T - bend * T**2, 2, 1.0)
        assert found.startswith("unstable: ")
        assert word in found


def test_curves_whose_scatter_could_undo_the_verdict_are_called_unstable_and_smooth_ones_are_not():
    bent = T + 0.16 * T * (1 - T)  # just above the threshold
    noise = [np.random.default_rng(seed).standard_normal(len(K)) for seed in range(20)]
    # Scattered so much, samples do differ in their verdicts, as the leading coefficient of a fit shows.
    assert len({np.polyfit(T, bent + 0.1 * each, 2)[0] < -4 / 31 for each in noise}) == 2
    assert sum(bool(instability(K, bent + 0.1 * each, 2, 1.0)) for each in noise) >= 10
    assert not any(instability(K, bent + 1e-4 * each, 2, 1.0) for each in noise)


def test_the_same_curve_gives_the_same_words():
    curve = noisy(T + 0.16 * T * (1 - T), 0.1)
    assert instability(K, curve, 2, 1.0) == instability(K, curve, 2, 1.0)


def test_a_selection_notes_what_is_unstable_and_nothing_else():
    import torch

    from cosep.config import SelectConfig

    seen = set()
    for seed in range(12):
        points = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        plain = SelectConfig(representative="medoid", weighted_fit=False, sensitivity=1.0)
        chosen = select(torch.cdist(points, points), config=plain)
        expected = instability(chosen.candidates, chosen.scores, 2, 1.0)
        assert chosen.fit == pytest.approx(fit_curve(chosen.candidates, chosen.scores, 2))
        assert chosen.notes == ((expected,) if expected else ())
        seen.add(bool(expected))
    assert seen == {True, False}
