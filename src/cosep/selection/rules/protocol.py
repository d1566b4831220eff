"""What a width rule is given and gives: candidates, a target and a probe in, a width with its reason for each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cosep.records import Selection
from cosep.selection.candidates import Candidates

WIDTH_GIVEN = "width given"
LATENCY = "latency in ms"


def width_note(width: int, before: int, reason: str) -> str:
    """What is said of a width that replaces the rule's own."""
    return f"width set to {width}, {before} before ({reason})"


@dataclass(frozen=True)
class Width:
    """How many channels of a group stay, and why."""

    k: int
    reason: str = ""  # in words; "": the criterion's own
    fit: tuple[float, ...] = ()  # what the rule fitted to the curve, at every k of it
    notes: tuple[str, ...] = ()
    whole: bool = False  # the rule found nothing to go by, and keeps every channel

    def applied(self, candidates: Candidates) -> Selection:
        """The channels that stay at this width, with the whole evidence."""
        channels = candidates.channels
        if self.whole:
            return Selection(
                channels,
                tuple(range(channels)),
                self.reason,
                candidates=candidates.ks,
                scores=candidates.curve,
                fit=self.fit,
                losses=candidates.losses,
                notes=(*candidates.notes, *self.notes),
            )
        found = candidates.at(self.k)
        return replace(
            found,
            k=self.k,
            reason=self.reason or found.reason,
            fit=self.fit or found.fit,
            notes=(*found.notes, *self.notes),
        )

    def outline(self, candidates: Candidates) -> Selection:
        """The curve and the width without the channels: what a search over widths looks at."""
        k = None if self.whole else self.k
        return Selection(
            candidates.channels, tuple(range(self.k)), self.reason, k, candidates.ks, candidates.curve, self.fit
        )

    def set_to(self, k: int) -> Width:
        """The width that somebody asked for in place of this one."""
        note = width_note(k, self.k, self.reason or "the criterion's own")
        return replace(self, k=k, reason=WIDTH_GIVEN, notes=(*self.notes, note), whole=False)


@dataclass(frozen=True)
class Widths:
    """The width of every group, and in words how the limits fare with them."""

    widths: Mapping[str, Width]
    notes: tuple[str, ...] = ()
    met: bool = True  # whether every limit holds; where not, the widths are the narrowest that the rule allows


@dataclass(frozen=True)
class Target:
    """What the network may cost with the widths, in absolute numbers (None: no limit), and widths that are set."""

    macs: float | None = None
    parameters: float | None = None
    milliseconds: float | None = None
    given: Mapping[str, int] = field(default_factory=dict)  # of some groups, by the caller

    def limits(self, probe: Probe) -> list[tuple[str, float, Callable[[Mapping[str, float]], float]]]:
        """Each limit: its name, its number, and what widths cost by it, those that are set included."""
        asked = (
            ("MACs", self.macs, probe.macs),
            ("parameters", self.parameters, probe.parameters),
            (LATENCY, self.milliseconds, probe.milliseconds),
        )
        return [(what, limit, self._with_given(cost)) for what, limit, cost in asked if limit is not None]

    def _with_given(self, cost: Callable[[Mapping[str, float]], float]) -> Callable[[Mapping[str, float]], float]:
        return lambda widths: cost({**widths, **self.given})


class Probe(Protocol):
    """What a rule may ask of the uncut network. Groups that the widths do not name count whole."""

    def macs(self, widths: Mapping[str, float]) -> float:
        """Multiply-accumulates of one input at these widths."""

    def parameters(self, widths: Mapping[str, float]) -> float:
        """Parameters at these widths."""

    def milliseconds(self, widths: Mapping[str, float]) -> float:
        """The measured time of one input at these widths, on the device at hand."""

    def damage(self, widths: Mapping[str, int]) -> Mapping[str, float]:
        """How far the network's outputs move with each of these groups alone at its width, measured."""


class WidthRule(Protocol):
    """From the candidates of groups to their widths."""

    name: str
    alone: bool  # whether it can decide a group without seeing the others, where no limit ties them together

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        """The width of every group."""
