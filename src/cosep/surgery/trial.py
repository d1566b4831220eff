"""A try before anything is decided: whether a network runs at all without some of its heads.

Some attention takes the number or the size of its heads from elsewhere: from the width of its input, from a setting of
the whole network, from a constant. No trace shows that, and a cut that cannot run can neither be weighed nor checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from cosep.models.modes import evaluating
from cosep.records import Group
from cosep.surgery.cut import apply_layout, layout_of, merged_layout


def with_heads_tried(model: nn.Module, groups: Iterable[Group], example_input: Tensor) -> tuple[Group, ...]:
    """The groups; heads without which the network does not run are not prunable, and say why."""
    groups = tuple(groups)
    heads = [group for group in groups if group.unit == "head" and group.scope is not None]
    if not heads or not _failure(model, heads, example_input):
        return groups
    failures = {group.name: _failure(model, [group], example_input) for group in heads}
    return tuple(
        replace(group, scope=None, why_not=f"the network does not run with fewer heads ({why})")
        if (why := failures.get(group.name))
        else group
        for group in groups
    )


def _failure(model: nn.Module, heads: Sequence[Group], example_input: Tensor) -> str:
    """What a network raises that keeps only the first head of these groups; "" where it runs."""
    try:
        layout = merged_layout(*(layout_of(model, group, (0,), {}) for group in heads))
        small = apply_layout(model, layout)
        with evaluating(model, small):
            if small(example_input[:1]).shape != model(example_input[:1]).shape:
                return "its output has another shape"
    except Exception as error:  # whatever the user's forward raises
        text = str(error).strip().splitlines()
        return f"{type(error).__name__}: {text[0] if text else 'no message'}"
    return ""
