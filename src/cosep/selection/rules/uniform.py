"""The same share of every group: the largest one that keeps to every limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cosep.errors import ConfigError
from cosep.selection.candidates import Candidates
from cosep.selection.limits import NARROWEST, floor_of, out_of_reach, spelled
from cosep.selection.rules.protocol import WIDTH_GIVEN, Probe, Target, Width, Widths

STEPS = 24  # of the bisection: more would not change a width


class UniformRule:
    """One share for all groups, found by bisection under the limits."""

    name = "uniform"
    alone = False

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        limits = target.limits(probe)
        if not limits:
            raise ConfigError(
                'the width rule "uniform" keeps the same share of every group, and nothing says how much. Give a '
                "limit: limits.max_macs, limits.max_params or limits.max_latency_ms."
            )

        def at(share: float) -> dict[str, int]:
            return {each.group: max(floor_of(each.channels), math.floor(share * each.channels)) for each in candidates}

        shares: dict[str, float] = {}
        notes, met = [], True
        for what, limit, cost in limits:
            low, high = 0.0, 1.0
            if cost(at(high)) <= limit:
                low = high
            elif (least := cost(at(low))) > limit:
                notes.append(out_of_reach(what, limit, least))
                shares[what], met = 1 / NARROWEST, False
                continue
            for _ in range(STEPS):
                middle = (low + high) / 2
                low, high = (middle, high) if cost(at(middle)) <= limit else (low, middle)
                if at(low) == at(high):
                    break
            shares[what] = low
            spent = f"{what} {spelled(cost(at(low)))} within {spelled(limit)}"
            notes.append(f"{spent}, at a share of {low:.3g} of every group")
        what, share = min(shares.items(), key=lambda item: item[1])
        found = {
            name: Width(target.given[name], WIDTH_GIVEN)
            if name in target.given
            else Width(k, f"limit on {what}: a share of {share:.3g} of every group")
            for name, k in at(share).items()
        }
        return Widths(found, tuple(notes), met)
