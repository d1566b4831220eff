"""Widths from measured damage: the best widths under a limit, in closed form.

A group of w channels whose outputs move by a at half its width moves by about a (w / k - 1) at k channels. The sum over
all groups is least, at a given cost, where k is proportional to sqrt(a w / u) with u the cost of one channel. Where
neighbours' widths enter each other's cost, u is taken at the widths at hand and the step is repeated.

Trained networks have dead channels, which give the same for every image. They can go for nothing and say nothing of the
rest: w is the number of channels that are needed, and half of a group's width is half of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cosep.errors import ConfigError
from cosep.selection.candidates import Candidates
from cosep.selection.limits import floor_of, out_of_reach, spelled
from cosep.selection.rules.protocol import LATENCY, WIDTH_GIVEN, Probe, Target, Width, Widths

STEPS = 60  # of the bisection
ROUNDS = 6  # of taking the costs anew
TIMED_STEPS = 12  # of one over measured times, which are dear and never exact
ROUNDINGS = (1, 8)  # of widths, where the clock decides: runtimes compute channels in blocks, and may be slow between
HARMLESS = 1e-4  # of the largest damage: what a group counts with whose channels can all be spared

Cost = Callable[[Mapping[str, float]], float]


class DamageRule:
    """Wide where cutting harms the outputs and where channels are cheap, narrow where it does not or they are dear."""

    name = "damage"
    alone = False

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        limits = target.limits(probe)
        if not limits and all(each.group in target.given for each in candidates):
            return Widths({each.group: Width(target.given[each.group], WIDTH_GIVEN) for each in candidates})
        if not limits:
            raise ConfigError(
                'the width rule "damage" needs to know how much may stay, and nothing says it. Give a limit '
                "(limits.max_macs, limits.max_params or limits.max_latency_ms), or prune all groups together, which "
                "finds the amount by itself."
            )
        free = [each for each in candidates if each.group not in target.given and each.channels > 1]
        measured = probe.damage({each.group: each.half for each in free})
        # Half of three heads is one, which moves the outputs by 2 a instead of a.
        harm = {each.group: measured[each.group] / (each.needed / each.half - 1) for each in free}
        chosen: dict[str, Mapping[str, int]] = {}
        notes, met = [], True
        # Times jump from width to width and each takes a while to measure: channels are then priced in MACs.
        macs = Target(macs=0.0, given=target.given).limits(probe)[0][2]
        for what, limit, cost in limits:
            rounding = ""
            if what == LATENCY:
                cost = _remembered(cost)
                widths, multiple = _within_time(free, harm, cost, limit, macs)
                rounding = f", in multiples of {multiple}, of which more fit" if multiple > 1 else ""
            else:
                widths = _within(free, harm, cost, limit, cost, STEPS)
            found = cost(widths)
            chosen[what] = widths
            if found > limit:
                met = False
                notes.append(out_of_reach(what, limit, found))
            else:
                notes.append(f"{what} {spelled(found)} within {spelled(limit)}, by measured damage{rounding}")
        result = {}
        for each in candidates:
            if each.group in target.given:
                result[each.group] = Width(target.given[each.group], WIDTH_GIVEN)
                continue
            asked = {what: widths.get(each.group, each.channels) for what, widths in chosen.items()}
            what, k = min(asked.items(), key=lambda item: item[1])
            moved = harm.get(each.group, 0.0)
            half = f"of the {each.needed} channels that are needed" if each.spare else "its width"
            result[each.group] = Width(k, f"limit on {what}: damage {moved:.2g} at half {half}")
        return Widths(result, tuple(notes), met)


def _remembered(cost: Cost) -> Cost:
    """A cost that is asked once for each network."""
    known: dict[tuple[tuple[str, float], ...], float] = {}

    def asked(widths: Mapping[str, float]) -> float:
        key = tuple(sorted(widths.items()))
        if key not in known:
            known[key] = cost(widths)
        return known[key]

    return asked


def _within_time(
    groups: Sequence[Candidates], harm: Mapping[str, float], time: Cost, limit: float, priced: Cost
) -> tuple[dict[str, int], int]:
    """The widths within a measured time that harm least, and the multiple that they were rounded up to."""
    tried = {multiple: _within(groups, harm, time, limit, priced, TIMED_STEPS, multiple) for multiple in ROUNDINGS}
    fitting = [multiple for multiple, widths in tried.items() if time(widths) <= limit] or [ROUNDINGS[0]]

    def harmed(multiple: int) -> float:
        widths = tried[multiple]
        return sum(harm[each.group] * max(0.0, each.needed / widths[each.group] - 1) for each in groups)

    best = min(fitting, key=harmed)  # the first of equals
    return tried[best], best


def _within(
    groups: Sequence[Candidates],
    harm: Mapping[str, float],
    cost: Cost,
    limit: float,
    priced: Cost,
    steps: int,
    multiple: int = 1,
) -> dict[str, int]:
    """The widest member of the family whose cost keeps to a limit; the narrowest one where none does.

    `priced` is the cost by which channels are weighed against one another; widths are rounded up to a `multiple`.
    """
    uncut = {each.group: each.channels for each in groups}
    if cost(uncut) <= limit:
        return uncut
    whole = {each.group: each.needed for each in groups}
    floors = {each.group: min(floor_of(each.channels), each.needed) for each in groups}
    least = max(harm.values(), default=0.0) * HARMLESS or 1.0
    prices = {name: _price(name, whole, priced) for name in whole}
    # The high one is generous enough for every group to have all channels that are needed.
    low = 0.0
    high = max((whole[n] / (max(harm[n], least) * whole[n] / prices[n]) ** 0.5 for n in whole), default=1.0) * 2
    narrow, wide = (_rounded(uncut, _member(whole, floors, harm, least, priced, c), multiple) for c in (low, high))
    if cost(wide) <= limit:
        return wide
    for _ in range(steps):
        if narrow == wide:  # widths are whole numbers: nothing lies between
            break
        middle = (low + high) / 2
        member = _rounded(uncut, _member(whole, floors, harm, least, priced, middle), multiple)
        if cost(member) <= limit:
            low, narrow = middle, member
        else:
            high, wide = middle, member
    return narrow


def _rounded(whole: Mapping[str, int], widths: Mapping[str, int], multiple: int) -> dict[str, int]:
    return {name: min(whole[name], -(-width // multiple) * multiple) for name, width in widths.items()}


def _member(
    whole: Mapping[str, int],
    floors: Mapping[str, int],
    harm: Mapping[str, float],
    least: float,
    cost: Cost,
    generosity: float,
) -> dict[str, int]:
    """The widths that go with one generosity: the larger it is, the wider is every group."""
    widths = {name: float(width) for name, width in whole.items()}
    for _ in range(ROUNDS):
        wanted = {
            name: generosity * (max(harm[name], least) * width / _price(name, widths, cost, width)) ** 0.5
            for name, width in whole.items()
        }
        new = {name: min(float(w), max(floors[name], wanted[name])) for name, w in whole.items()}
        if all(abs(new[name] - widths[name]) < 0.01 for name in whole):
            break
        widths = new
    return {name: round(width) for name, width in widths.items()}


def _price(name: str, widths: Mapping[str, float], cost: Cost, width: int | None = None) -> float:
    """What one more channel of a group costs while the others have these widths."""
    width = int(widths[name]) if width is None else width
    low = max(1, width // 2)
    return max((cost({**widths, name: width}) - cost({**widths, name: low})) / max(width - low, 1), 1e-12)
