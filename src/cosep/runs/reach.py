"""Limits that cannot be met: refused before anything is cut, with the least that there is and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cosep.errors import ConfigError
from cosep.groups import groups_in_scope
from cosep.records import Group
from cosep.runs.probing import NetworkProbe
from cosep.runs.state import Job
from cosep.selection.limits import floor_of
from cosep.selection.rules import WIDTH_RULES, Target, Widths
from cosep.selection.rules.protocol import LATENCY

SETTINGS = {"MACs": "max_macs", "parameters": "max_params", LATENCY: "max_latency_ms"}
BEST_EFFORT = "limits.best_effort (--best-effort) goes as far as the narrowest widths allow"


def check_reach(job: Job, target: Target) -> None:
    """Refuse a limit that not even the narrowest widths keep to, before any statistics are taken."""
    if job.config.limits.best_effort or not job.config.limits.on_size or job.rule.name not in WIDTH_RULES:
        return
    if problem := job.fabric.broadcast(_problem(job, target)):  # times differ between processes
        raise ConfigError(problem)


def _problem(job: Job, target: Target) -> str:
    """Which limit is out of reach and what would help, in words; "" where none is."""
    for what, limit, least in _least(job, target, job.groups):
        if least <= limit:
            continue
        every = groups_in_scope((*job.groups, *job.skipped), "all")
        wider = {name: cost for name, _, cost in _least(job, target, every)}[what]
        helps = [f"limits.{SETTINGS[what]} of {_amount(job, what, least)} or more"]
        if wider < least:
            enough = "" if wider <= limit else ", which is not enough by itself"
            helps.append(
                'surgery.scope "all" (--scope all), which cuts channels tied by additions too and reaches '
                f"{_amount(job, what, wider)}{enough}"
            )
        of = "" if what == LATENCY else f" of the {what}"
        heads = any(group.unit == "head" for group in job.groups)
        kinds, stays = ("heads and channels", "an eighth, or one head,") if heads else ("channels", "an eighth")
        return (
            f"limits.{SETTINGS[what]} asks for at most {_amount(job, what, limit)}{of}, and "
            f"{_amount(job, what, least)} is the least there is: {len(job.groups)} of "
            f"{len(job.groups) + len(job.skipped)} groups of {kinds} may be cut, and of each {stays} stays. Nothing "
            f"was cut. What would help: {'; '.join(helps)}. {BEST_EFFORT}."
        )
    return ""


def check_met(job: Job, decided: Widths) -> Widths:
    """The widths that a rule decided; refused where they miss a limit, unless the caller wants them all the same."""
    if decided.met or job.config.limits.best_effort or not job.config.limits.on_size:
        return decided
    if job.run:
        job.run.drop_checkpoint()  # nothing was cut: the folder is free for another limit
    missed = "; ".join(note for note in decided.notes if "cannot be brought to" in note)
    stays = [name for name, width in decided.widths.items() if width.whole]
    whole = f' {len(stays)} groups without a knee stay whole; the width rule "damage" cuts them too.' if stays else ""
    raise ConfigError(
        f"a limit cannot be met by the width rule {job.rule.name!r}: {missed}.{whole} Nothing was cut. Raise the "
        f'limit, or let channels tied by additions go too with surgery.scope "all" (--scope all). {BEST_EFFORT}.'
    )


def _least(job: Job, target: Target, groups: Iterable[Group]) -> list[tuple[str, float, float]]:
    """Each limit: its name, its number, and the cost of the narrowest widths of these groups."""
    groups = tuple(groups)
    probe = NetworkProbe(
        job.original, job.example, groups, round_to=job.config.surgery.round_to, runtime=job.config.limits.runtime
    )
    narrow: Mapping[str, float] = {group.name: float(floor_of(group.width)) for group in groups}
    return [(what, limit, cost(narrow)) for what, limit, cost in target.limits(probe)]


def _amount(job: Job, what: str, value: float) -> str:
    """A cost as a reader knows it: as a share of the uncut network's, or in milliseconds."""
    if what == LATENCY:
        return f"{value:.3g} ms"
    return f"{100 * value / job.before[what.lower()]:.1f}% ({value:.4g})"
