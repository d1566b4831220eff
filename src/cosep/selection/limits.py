"""Widths that keep to a limit: every layer's k walks along its own curve, all by the same measure, until the net fits.

Kneedle's knee is the k at which the fitted curve, both axes scaled to [0, 1], is furthest above the diagonal: the
largest y − x. A limit asks for fewer channels than that: the largest y − t·x with one t > 1 for all layers, so that a
layer whose curve is steep gives up less than one whose curve is flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cosep.records import Selection

STEPS = 24  # of the bisection: more would not change a width


@dataclass(frozen=True)
class Fit:
    """Widths and what they cost; `met` says whether the limit holds, `note` how close it came."""

    widths: Mapping[str, int]
    cost: float
    met: bool
    note: str


def width_at(selection: Selection, steepness: float) -> int:
    """The width that a steepness of 1 (the knee) or more asks of a layer; a layer that is kept whole stays so."""
    if selection.k is None:
        return len(selection.kept)
    if not selection.fit:  # a width without a curve: it shrinks in proportion
        return max(1, int(selection.k / steepness))
    low, high = min(selection.fit), max(selection.fit)
    first, last = selection.candidates[0], selection.candidates[-1]
    heights = [
        (y - low) / (high - low) - steepness * (k - first) / (last - first)
        for k, y in zip(selection.candidates, selection.fit, strict=True)
    ]
    return min(selection.candidates[heights.index(max(heights))], selection.k)


def fitting_widths(
    selections: Mapping[str, Selection], cost: Callable[[Mapping[str, int]], float], limit: float, what: str
) -> Fit:
    """The widths of the smallest steepness whose cost keeps to the limit, found by bisection.

    `cost` rises with every width. Where even the narrowest network costs more, it is returned with `met` False.
    """

    def at(steepness: float) -> tuple[dict[str, int], float]:
        widths = {name: width_at(selection, steepness) for name, selection in selections.items()}
        return widths, cost(widths)

    widths, value = at(1.0)
    if value <= limit:
        return Fit(widths, value, True, f"{what} {value:.4g} at the knees, within {limit:.4g}")
    # The steepest slope that a scaled curve can have is the number of candidates: beyond it, every k is the smallest.
    low, high = 1.0, float(max(len(s.candidates) or s.channels for s in selections.values()) + 1)
    best, least = at(high)
    if least > limit:
        return Fit(best, least, False, f"{what} cannot be brought to {limit:.4g}: {least:.4g} is the least there is")
    value = least
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        widths, cost_there = at(middle)
        if cost_there <= limit:
            high, best, value = middle, widths, cost_there
        else:
            low = middle
        if high / low < 1.001:
            break
    return Fit(best, value, True, f"{what} {value:.4g} within {limit:.4g}, at a steepness of {high:.3g}")
