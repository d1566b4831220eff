"""Widths that keep to a limit: every layer's k walks along its own curve, all by the same measure, until the net fits.

Kneedle's knee is the k at which the fitted curve, both axes scaled to [0, 1], is furthest above the diagonal: the
largest y − x. A limit asks for fewer channels than that, or leaves room for more: the largest y − t·x with one t for
all layers, above or below 1, so that a layer whose curve is steep gives up less than one whose curve is flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cosep.records import Selection

STEPS = 24  # of the bisection: more would not change a width
NARROWEST = 8  # no rule brings a group below this part of its channels, whatever a limit asks for


def floor_of(channels: int) -> int:
    """The narrowest width that a limit may ask for: what is left of an eighth says nothing about the group any more."""
    return max(1, round(channels / NARROWEST))


def spelled(amount: float) -> str:
    """An amount as people read it: 383,100 MACs, 1.25 ms."""
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"


def out_of_reach(what: str, limit: float, least: float) -> str:
    """What is said of a limit that no widths keep to."""
    return f"{what} cannot be brought to {spelled(limit)}: {spelled(least)} is the least there is"


@dataclass(frozen=True)
class Fit:
    """Widths and what they cost; `met` says whether the limit holds, `note` how close it came."""

    widths: Mapping[str, int]
    cost: float
    met: bool
    note: str
    what: str = ""  # is limited


def width_at(selection: Selection, steepness: float) -> int:
    """The width that a steepness asks of a layer, 1 being the knee; a layer that is kept whole stays so."""
    if selection.k is None:
        return len(selection.kept)
    if not selection.fit:  # a width without a curve: it shrinks in proportion
        return max(1, int(selection.k / max(steepness, 1.0)))
    low, high = min(selection.fit), max(selection.fit)
    first, last = selection.candidates[0], selection.candidates[-1]
    heights = [
        (y - low) / (high - low) - steepness * (k - first) / (last - first)
        for k, y in zip(selection.candidates, selection.fit, strict=True)
    ]
    found = selection.candidates[heights.index(max(heights))]
    return min(found, selection.k) if steepness >= 1 else max(found, selection.k)


def fitting_widths(
    selections: Mapping[str, Selection], cost: Callable[[Mapping[str, float]], float], limit: float, what: str
) -> Fit:
    """The widths of the smallest steepness whose cost keeps to the limit, found by bisection.

    `cost` rises with every width. Where even the narrowest network costs more, it is returned with `met` False.
    """

    def at(steepness: float) -> tuple[dict[str, int], float]:
        widths = {
            name: max(width_at(selection, steepness), min(floor_of(selection.channels), len(selection.kept)))
            for name, selection in selections.items()
        }
        return widths, cost(widths)

    widths, value = at(0.0)
    if value <= limit:
        return Fit(widths, value, True, f"{what} {value:.4g} where the curves end, within {limit:.4g}", what)
    # The steepest slope that a scaled curve can have is the number of candidates: beyond it, every k is the smallest.
    low, high = 1.0, float(max(len(s.candidates) or s.channels for s in selections.values()) + 1)
    best, least = at(high)
    if least > limit:
        return Fit(best, least, False, out_of_reach(what, limit, least), what)
    value = least
    if (knees := at(1.0))[1] <= limit:
        low, high, (best, value) = 1 / high, 1.0, knees
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        widths, cost_there = at(middle)
        if cost_there <= limit:
            high, best, value = middle, widths, cost_there
        else:
            low = middle
        if high / low < 1.001:
            break
    note = f"{what} {spelled(value)} within {spelled(limit)}, at a steepness of {high:.3g}"
    return Fit(best, value, True, note, what)
