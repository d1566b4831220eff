"""The paper's rule: each group keeps as many channels as its own curve asks for, by its knee.

Under a limit every group walks along its curve by the same measure, until the network fits (see `limits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cosep.config import SelectConfig
from cosep.selection.candidates import Candidates
from cosep.selection.knee import find_knee, fit_curve
from cosep.selection.limits import fitting_widths
from cosep.selection.rules.protocol import Probe, Target, Width, Widths
from cosep.selection.stability import instability

BELOW_KNEE, ABOVE_KNEE = "fewer channels than at the knee", "more channels than at the knee"


def knee_of(candidates: Candidates, config: SelectConfig) -> Width:
    """Where the curve of a group stops paying; all channels where it says nothing, and the reason says why."""
    if candidates.preferred is not None:
        return Width(candidates.preferred)
    why = candidates.why_whole
    if not why and len(candidates.ks) < config.degree + 1:
        why = f"too few channels for a fit of degree {config.degree}"
    if why:
        return Width(candidates.channels, f"{why}: kept whole", whole=True)
    fit = fit_curve(candidates.ks, candidates.curve, config.degree, candidates.counts)
    knee = find_knee(candidates.ks, fit, config.sensitivity)
    doubt = instability(candidates.ks, candidates.curve, config.degree, config.sensitivity, candidates.counts)
    notes = (doubt,) if doubt else ()
    if knee.x is None:
        return Width(candidates.channels, f"{knee.reason}: kept whole", fit, notes, whole=True)
    return Width(int(knee.x), knee.reason, fit, notes)


class KneeRule:
    """Kneedle on each group's curve; under a limit steeper for all groups, or flatter where it leaves room."""

    name = "knee"
    alone = True

    def __init__(self, config: SelectConfig) -> None:
        self.config = config

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        found = {each.group: knee_of(each, self.config) for each in candidates}
        fits = []
        outlines = {each.group: found[each.group].outline(each) for each in candidates}
        for what, limit, cost in target.limits(probe):
            fits.append(fitting_widths(outlines, cost, limit, what))
        for name, width in found.items():
            if name in target.given:
                found[name] = width.set_to(target.given[name])
            elif fits:
                fit = min(fits, key=lambda fit: fit.widths[name])
                wanted = fit.widths[name]
                if wanted != width.k:
                    where = BELOW_KNEE if wanted < width.k else ABOVE_KNEE
                    found[name] = replace(width.set_to(wanted), reason=f"limit on {fit.what}: {where}")
        return Widths(found, tuple(fit.note for fit in fits), all(fit.met for fit in fits))
