"""The caller's own widths; groups without one stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from cosep.errors import ConfigError
from cosep.selection.candidates import Candidates
from cosep.selection.rules.protocol import WIDTH_GIVEN, Probe, Target, Width, Widths


class GivenRule:
    """Exactly the widths that were given."""

    name = "given"
    alone = True

    def __call__(self, candidates: Sequence[Candidates], target: Target, probe: Probe) -> Widths:
        if not target.given:
            raise ConfigError(
                'the width rule "given" needs widths, and none were given. Pass widths={group: channels} to '
                "cosep.prune or cosep.plan, or choose another width rule."
            )
        if target.limits(probe):
            raise ConfigError(
                'the width rule "given" takes the widths as they are, and a limit is set too. Leave one of them out.'
            )
        return Widths(
            {
                each.group: Width(target.given[each.group], WIDTH_GIVEN)
                if each.group in target.given
                else Width(each.channels, "no width given: kept whole", whole=True)
                for each in candidates
            }
        )
