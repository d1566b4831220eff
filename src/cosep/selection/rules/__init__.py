"""Width rules: how many channels of every group stay. A new one is a file here and a line in `WIDTH_RULES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cosep.config import PruneConfig
from cosep.errors import ConfigError
from cosep.plugins import call_factory, file_factory, is_file_factory
from cosep.selection.candidates import Candidates
from cosep.selection.rules.damage import DamageRule
from cosep.selection.rules.given import GivenRule
from cosep.selection.rules.knee import KneeRule
from cosep.selection.rules.protocol import LATENCY, Probe, Target, Width, WidthRule, Widths
from cosep.selection.rules.uniform import UniformRule

__all__ = ["WIDTH_RULES", "OwnRule", "Probe", "Target", "Width", "WidthRule", "Widths", "width_rule"]

WIDTH_RULES: dict[str, Callable[[PruneConfig], WidthRule]] = {
    "damage": lambda config: DamageRule(),
    "knee": lambda config: KneeRule(config.select),
    "uniform": lambda config: UniformRule(),
    "given": lambda config: GivenRule(),
}

Ask = Callable[[Sequence[Candidates], Target, Probe], Widths | Mapping[str, int]]


def width_rule(name: str, config: PruneConfig) -> WidthRule:
    """The width rule of a name, or of a user's `path/to/file.py:factory`."""
    if is_file_factory(name):
        with file_factory(name, ConfigError) as factory:
            return OwnRule(call_factory(factory, name, ConfigError, config=config), name)
    if name not in WIDTH_RULES:
        raise ConfigError(
            f"there is no width rule {name!r}; there are {', '.join(WIDTH_RULES)}, and path/to/file.py:factory."
        )
    return WIDTH_RULES[name](config)


class OwnRule:
    """A caller's rule: any function of candidates, target and probe that gives widths, also as plain numbers."""

    def __init__(self, rule: object, name: str) -> None:
        if not callable(rule):
            raise ConfigError(
                f"{name} gives a {type(rule).__name__}; a width rule is a function of (candidates, target, probe)."
            )
        self.rule: Ask = rule
        self.name = name
        self.alone = bool(getattr(rule, "alone", False))

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        found = self.rule(candidates, target, probe)
        if not isinstance(found, Widths):
            short = self.name.rpartition("/")[2]
            found = Widths({group: Width(int(k), f"width rule {short}") for group, k in found.items()})
        known = {each.group: each.channels for each in candidates}
        for group, channels in known.items():
            if group not in found.widths or not 1 <= found.widths[group].k <= channels:
                said = found.widths[group].k if group in found.widths else "nothing"
                raise ConfigError(f"{self.name} gives {said} for {group}, which has {channels} channels.")
        set_widths = {g: found.widths[g].set_to(k) for g, k in target.given.items() if g in known}
        widths = {**{g: found.widths[g] for g in known}, **set_widths}
        over = self._over({g: width.k for g, width in widths.items()}, target, probe)
        return Widths(widths, (*found.notes, *over), found.met and not over)

    def _over(self, widths: Mapping[str, int], target: Target, probe: Probe) -> list[str]:
        """What is said of the limits that the caller's widths do not keep to; a time is the rule's own to measure."""
        counted = [limit for limit in target.limits(probe) if limit[0] != LATENCY]
        return [
            f"{what} cannot be brought to {limit:.4g} by {self.name}: its widths have {value:.4g}"
            for what, limit, cost in counted
            if (value := cost(widths)) > limit
        ]
