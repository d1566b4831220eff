"""Where a silhouette curve stops paying: a polynomial fit and its knee. The only home of the package `kneed`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from cosep.errors import ConfigError

Reason = Literal["knee", "flat curve", "no knee", "knee at the edge"]

# Differences below this are rounding, on curves that live in [-1, 1].
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Knee:
    """Where a curve bends, or why it does not: `x` is None unless the reason is "knee"."""

    x: float | None
    reason: Reason


def check_degree(channels: int, degree: int) -> None:
    """Refuse a degree that needs more candidates than a layer has: k = 2 ... channels - 1 are channels - 2 points.

    Layers with fewer than four channels pass: they are kept whole whatever the degree is.
    """
    points = max(channels - 2, 0)
    if channels >= 4 and points < degree + 1:
        raise ConfigError(
            f"select.degree is {degree}, which needs {degree + 1} candidate widths; {channels} channels give {points} "
            f"(k = 2 to {channels - 1}). Use a degree of at most {points - 1}, or more channels."
        )


def fit_curve(
    x: Sequence[float], y: Sequence[float], degree: int, counts: Sequence[float] | None = None
) -> tuple[float, ...]:
    """The least-squares polynomial of a degree through the points (x, y), evaluated at every x.

    `counts`, if given, say how many values each y is the mean of: a mean of few is noisier and counts for less.
    """
    if len(x) < degree + 1:
        raise ConfigError(
            f"a polynomial of degree {degree} needs at least {degree + 1} points and there are {len(x)}. "
            f"Use a degree of at most {max(len(x) - 1, 0)}, or more candidates."
        )
    # `Polynomial.fit` maps x to [-1, 1] first: powers of k itself would be too ill-conditioned from degree 5 on.
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    # The weights multiply residuals, which are squared: the variance of a mean of n values goes with 1 / n.
    fitted = Polynomial.fit(xs, ys, degree, w=None if counts is None else np.sqrt(counts))(xs)
    return tuple(float(value) for value in fitted)


def find_knee(x: Sequence[float], y: Sequence[float], sensitivity: float = 1.0) -> Knee:
    """Kneedle on a concave, increasing curve with ascending x: of all its knees the highest above the chord.

    Kneedle reads from the left and stops at its first knee, also where that is the first point itself because the
    second one happens to lie a little below the chord. The whole curve is known here, so all of its knees are asked for
    and the clearest counts, of equals the first. The first point is never a knee: it is the highest where the curve is
    convex or falls, and so has no bend of the kind that is looked for.
    """
    from kneed import KneeLocator

    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < 2 or np.ptp(ys) <= _ROUNDING * max(1.0, float(np.abs(ys).max())):
        return Knee(None, "flat curve")  # kneed would divide by the range
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kneed warns where it finds nothing; we say it in the reason
        # `online` makes it go on behind the first knee; each one passed the threshold of the sensitivity.
        found = KneeLocator(xs, ys, S=sensitivity, curve="concave", direction="increasing", online=True).all_knees
    if not found:
        return Knee(None, "no knee")
    difference = _unit(ys) - _unit(xs)  # what Kneedle maximises
    positions = np.sort(np.searchsorted(xs, np.asarray(found, dtype=float)))
    position = int(positions[difference[positions].argmax()])
    # A parabola over an even number of candidates has two equal points in the middle, and rounding would choose.
    while position > 0 and difference[position - 1] >= difference[position] - _ROUNDING:
        position -= 1
    if position == 0 or difference[position] <= _ROUNDING:  # a bump of a convex curve, still below the chord
        return Knee(None, "knee at the edge")
    return Knee(float(xs[position]), "knee")


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values.min()) / np.ptp(values)
