"""Why a group was cut as it was, in sentences; and numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cosep.records import GroupPlan, Measurement, Outcome, Selection, counted, in_unit

if TYPE_CHECKING:
    from cosep.reporting.records import Report, Step

WHOLE = {
    "no knee": "The fitted curve has no knee: no width stands out, so the group was kept whole.",
    "flat curve": "The silhouette is the same for every number of clusters: no width stands out, so the group was kept "
    "whole.",
    "knee at the edge": "The only knee is at the edge of the range, where it says nothing about the group: it was kept "
    "whole.",
    "too few channels": "The group has too few channels to be clustered: it was kept whole.",
}
COSEP = ("cosep", "cosep-magnitude", "cosep-mass", "medoid", "random-in-cluster")  # criteria that cluster profiles
LIMITED = re.compile(
    r"(?P<what>limit on [^:]+|size that was found): damage \S+ at half (its width|of the (?P<needed>\d+) )"
)
STAYS = {
    "weighted": "the one whose filter has the largest norm",
    "medoid": "its medoid",
    "random": "one drawn at random",
}


def separates(settings: Mapping[str, Any]) -> bool:
    """Whether a run's criterion describes channels by the classes that they tell apart."""
    # Runs of before there was a choice know no criterion: they are CoSeP's.
    return settings.get("select", {}).get("criterion", "cosep") in COSEP


def curve_of(selection: Selection, settings: Mapping[str, Any]) -> str:
    """What the curve of a selection is: "silhouette", "elimination" or "scores"."""
    if selection.clusters or separates(settings):
        return "silhouette"
    named = settings.get("select", {}).get("criterion")
    return "elimination" if named == "elimination" and selection.losses else "scores"


def reason_in_words(plan: GroupPlan, outcome: Outcome, report: Report) -> list[str]:
    """Sentences that say which rule chose the width of a group and what was done about it."""
    chosen, kept, width, settings = plan.selection, len(plan.kept), plan.width, report.settings
    said: list[str] = []
    select = settings.get("select", {})
    whole = WHOLE.get(plan.reason.removesuffix(": kept whole"))
    unit = plan.unit
    stays = STAYS.get(select.get("representative", ""), f"one {unit}")
    if whole:
        said.append(in_unit(whole, unit))
    elif plan.reason == "knee" and chosen and chosen.k is not None:
        said.append(f"The knee of the fitted silhouette curve is at k = {chosen.k}{_slopes(chosen)}.")
        said.append(f"Of each of the {chosen.k} clusters one {unit} stays, {stays}.")
        if select.get("degree") == 2 and _rises(chosen.fit):
            said.append(
                f"With degree 2 and a fit that rises all the way, the knee is always in the middle of the range, near "
                f"half of the {width} {unit}s: here the degree set the width as much as the group did."
            )
    elif plan.reason == "width given":
        said.append("The width was given by the caller.")
        if chosen and chosen.clusters:
            said.append(f"Of each cluster one {unit} stays, {stays}.")
    elif (limited := LIMITED.match(plan.reason)) and plan.group in report.damage:
        said.append(_damage_in_words(plan, limited, report))
    else:
        said.append(sentence(in_unit(plan.reason, unit)))
    said += _reproduced(plan, settings)
    notes = list(outcome.notes) or list(chosen.notes if chosen else ())
    said += [sentence(in_unit(note, unit)) for note in notes]
    if chosen and len(chosen.kept) != kept and kept == width:
        said.append(
            f"The curve and the clusters below led to {counted(len(chosen.kept), unit)}, which were not kept to."
        )
    return said


def _damage_in_words(plan: GroupPlan, limited: re.Match[str], report: Report) -> str:
    harm = report.damage[plan.group]
    larger, groups = sum(other > harm for other in report.damage.values()), len(report.damage)
    rank = "the largest" if not larger else "the smallest" if larger == groups - 1 else f"place {larger + 1}"
    half, spare = f"this group's {plan.unit}s", ""
    if limited["needed"]:
        half = f"the {counted(int(limited['needed']), plan.unit)} that are needed"
        spare = f" The other {plan.width - int(limited['needed'])} give the same for every image: they go for nothing."
    return (
        f"The width follows from the {limited['what']} and from the damage: with half of {half}, and all "
        f"others whole, the outputs move by {harm:.2g} (KL, temperature 4), {rank} of {groups} groups.{spare}"
    )


def _reproduced(plan: GroupPlan, settings: Mapping[str, Any]) -> list[str]:
    """How much of what the next layers compute the channels that stay can give, where elimination chose them."""
    chosen, kept = plan.selection, len(plan.kept)
    if not chosen or kept not in chosen.candidates or curve_of(chosen, settings) != "elimination":
        return []
    share = chosen.scores[chosen.candidates.index(kept)]
    those = f"The {kept} {plan.unit}s that stay are those that together reproduce" if kept > 1 else None
    return [
        f"{those or f'The {plan.unit} that stays is the one that reproduces'} best what the next layers compute: "
        f"{percent(share)} of it, with the weights solved anew."
    ]


def _slopes(chosen: Selection) -> str:
    """What a further cluster adds to the fitted curve before and beyond its knee: the reader sees the same curve."""
    if chosen.k not in chosen.candidates or len(chosen.fit) != len(chosen.candidates):
        return ""
    place, last = chosen.candidates.index(chosen.k), len(chosen.fit) - 1
    if not 0 < place < last:
        return ""
    slopes = [
        (chosen.fit[b] - chosen.fit[a]) / max(chosen.candidates[b] - chosen.candidates[a], 1)
        for a, b in ((0, place), (place, last))
    ]
    return f": a further cluster adds {slopes[0]:+.2g} to it on average up to there, {slopes[1]:+.2g} beyond"


def _rises(fit: tuple[float, ...]) -> bool:
    return len(fit) > 1 and all(b >= a for a, b in pairwise(fit))


FEW_UPDATES = 50  # of a training: the network is hardly elsewhere, and BatchNorm has forgotten its statistics
LARGE_DROP = 0.05  # of the accuracy, as a share of all samples


def warnings_in_words(report: Report) -> list[str]:
    """What a reader must not overlook: a limit missed, training that lost or stopped, a large drop, a failed check."""
    said = [sentence(note) for note in report.limits if is_warning(note)]
    final, last = report.recovery, report.groups[-1].accuracy if report.groups else None
    if final and final.kept and final.accuracy is not None and last is not None and final.accuracy < last:
        said.append(
            f"The recovery made the network worse: held-out accuracy fell from {percent(last, 2)} to "
            f"{percent(final.accuracy, 2)} in {final.updates:,} updates."
        )
    if final and not final.kept:
        said.append(f"The recovery was {final.outcome}. The network from before it is the result.")
    if final and final.updates < FEW_UPDATES:
        said.append(
            f"The recovery had {final.updates:,} {'update' if final.updates == 1 else 'updates'}, too few to mean "
            "anything. Give it more passes with recover.epochs (--epochs), or leave it out with 0."
        )
    said += [f"A recovery {r.outcome}." for r in report.recoveries if r.outcome.startswith("stopped")]
    held = report.holdout_accuracy
    for name, before, after in (
        ("Test", report.before.accuracy, report.after.accuracy),
        ("Held-out", held.before, held.after),
    ):
        if before is not None and after is not None and after - before <= -LARGE_DROP:
            said.append(f"{name} accuracy fell by {100 * (before - after):.1f} points, to {percent(after, 2)}.")
    failed = [outcome.group for outcome in report.groups if "did not equal its masked copy" in outcome.reason]
    if failed:
        said.append(f"Kept whole, as the cut did not pass the check against a masked copy: {', '.join(failed)}.")
    return said


def is_warning(note: str) -> bool:
    """Whether a note on the limits says that one of them was missed."""
    return "cannot be brought to" in note


def sentence(note: str) -> str:
    """A note as a sentence: with a capital letter and a full stop."""
    return f"{note[:1].upper()}{note[1:]}." if note else ""


def percent(share: float, digits: int = 1) -> str:
    """0.123 -> "12.3 %"."""
    return f"{100 * share:.{digits}f} %"


def points(difference: float) -> str:
    """A difference of two shares: -0.0123 -> "−1.23 points"."""
    value = round(100 * difference, 2)
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return f"{sign}{abs(value):.2f} points"


def change(share: float) -> str:
    """What is left of something, as its change: 0.69 -> "−31.0 %"."""
    value = round(100 * (share - 1), 1)
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return f"{sign}{abs(value):.1f} %"


def count(value: float) -> str:
    """A large number: 1641088 -> "1.64 M"."""
    return _scaled(value, ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")), f"{value:g}")


def size(value: float) -> str:
    """A number of bytes: 414176 -> "414.18 kB"."""
    return _scaled(value, ((1e9, " GB"), (1e6, " MB"), (1e3, " kB")), f"{value:g} bytes")


def steps_in_words(earlier: Sequence[Step], after: Measurement) -> tuple[str, ...]:
    """What was done to a network before, a sentence for each step, and what is left of the first one in all."""
    if not earlier:
        return ()
    said = []
    for number, step in enumerate(earlier, start=1):
        accuracy = ""
        if step.before.accuracy is not None and step.after.accuracy is not None:
            accuracy = f", test accuracy {percent(step.before.accuracy, 2)} to {percent(step.after.accuracy, 2)}"
        said.append(
            f"step {number}{f', {step.time} UTC' * bool(step.time)}: {step.cut} of {step.groups} groups cut, "
            f"{count(step.before.macs)} MACs to {count(step.after.macs)}{accuracy}"
        )
    first = earlier[0].before
    left = f"{100 * after.macs / first.macs:.1f} % of the MACs and {100 * after.parameters / first.parameters:.1f} %"
    return (
        *said,
        f"step {len(earlier) + 1} is this one; of the network before step 1, {left} of the parameters are left",
    )


def printable(text: str) -> str:
    """Text from a file for a terminal: characters that could steer it become question marks."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def duration(seconds: float) -> str:
    """Seconds: 75 -> "1 min 15 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _scaled(value: float, units: tuple[tuple[float, str], ...], small: str) -> str:
    for least, unit in units:
        if value >= least:
            return f"{value / least:.2f}{unit}"
    return small
