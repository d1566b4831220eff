"""Whether a knee hangs by a thread: the verdict on the curve beside the verdicts on curves that differ a little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cosep.selection.knee import find_knee, fit_curve

DRAWS = 8  # perturbed curves of each kind
TINY = 1e-6  # of the curve's range: more than another processor or another order of summation changes


def instability(
    x: Sequence[float],
    y: Sequence[float],
    degree: int,
    sensitivity: float,
    counts: Sequence[float] | None = None,
    *,
    seed: int = 0,
) -> str:
    """In words, how the verdict on a curve (x, y) changes if the curve does a little; "" where it stands.

    The verdict is whether there is a knee, not where: the step between a layer that is cut to a part and one that is
    kept whole is the large one. Perturbed curves are the curve with noise of a millionth of its range, and the fit with
    residuals drawn from its own, as they would be had other images been drawn.
    """
    ys = np.asarray(y, dtype=float)
    fitted = np.asarray(fit_curve(x, y, degree, counts))
    verdict = find_knee(x, tuple(fitted), sensitivity)
    if verdict.reason == "flat curve":
        return ""  # all channels are alike: noise of a share of nothing is nothing
    chance = np.random.default_rng(seed)
    residuals = ys - fitted
    curves = [ys + TINY * np.ptp(ys) * chance.uniform(-1, 1, len(ys)) for _ in range(DRAWS)]
    curves += [fitted + chance.choice(residuals, len(ys)) for _ in range(DRAWS)]
    found = [find_knee(x, fit_curve(x, tuple(curve), degree, counts), sensitivity) for curve in curves]
    others = [knee for knee in found if (knee.x is None) != (verdict.x is None)]
    if not others:
        return ""
    of_all = f"{len(others)} of {len(found)} slightly perturbed curves"
    if verdict.x is not None:
        return f"unstable: {of_all} have no knee inside the range"
    at = sorted(int(knee.x) for knee in others if knee.x is not None)
    place = f"at {at[0]}" if at[0] == at[-1] else f"between {at[0]} and {at[-1]}"
    return f"unstable: {of_all} have a knee, {place}"
