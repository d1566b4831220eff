"""Widths from measured damage: the best widths under a budget, in closed form.

A group of w channels whose outputs move by a at half its width moves by about a (w / k - 1) at k channels. The sum over
all groups is least, at a given cost, where k_g is proportional to sqrt(a_g w_g / u_g) with u_g the cost of one channel.
Where neighbours' widths enter each other's cost, u_g is taken at the widths at hand and the step is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

STEPS = 60  # of the bisection
ROUNDS = 8  # of taking the costs anew
NARROWEST = 8  # no group keeps less than this part of its channels

Cost = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True)
class Damaged:
    """A group's channels, and how far the outputs move when it keeps half of them."""

    width: int
    damage: float
    blocks: int = 1


def family(groups: Mapping[str, Damaged], cost: Cost) -> Callable[[float], dict[str, int]]:
    """Widths as a function of one number: the larger it is, the wider is every group. A nested family."""
    floor = max((g.damage for g in groups.values()), default=0.0) * 1e-4  # a group without any damage is still one

    def at(generosity: float) -> dict[str, int]:
        widths = {name: float(g.width) for name, g in groups.items()}
        for _ in range(ROUNDS):
            prices = _prices(groups, widths, cost)
            widths = {
                name: _clipped(g, generosity * (max(g.damage, floor) * g.width / prices[name]) ** 0.5)
                for name, g in groups.items()
            }
        return {name: _rounded(groups[name], width) for name, width in widths.items()}

    return at


def _prices(groups: Mapping[str, Damaged], widths: Mapping[str, float], cost: Cost) -> dict[str, float]:
    """What one more channel of each group costs at these widths."""
    return {
        name: max(cost({**widths, name: float(g.width)}) - cost({**widths, name: g.width / 2}), 1e-30) / (g.width / 2)
        for name, g in groups.items()
    }


def _clipped(group: Damaged, width: float) -> float:
    return min(float(group.width), max(group.width / NARROWEST, 1.0, width))


def _rounded(group: Damaged, width: float) -> int:
    return min(group.width, max(group.blocks, round(width / group.blocks) * group.blocks))


def widths_within(groups: Mapping[str, Damaged], cost: Cost, limit: float) -> dict[str, int]:
    """The widest member of the family whose cost keeps to a limit; the narrowest one where none does."""
    at = family(groups, cost)
    low, high = 0.0, 1.0
    while at(high) != {name: g.width for name, g in groups.items()} and cost(at(high)) <= limit and high < 1e30:
        high *= 4
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(at(middle)) <= limit else (low, middle)
    return at(low)
