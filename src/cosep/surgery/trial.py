"""A try before anything is decided: whether a network runs at all without some of its channels or heads.

Some code repeats a width, or takes the number or the size of its heads from elsewhere: from the width of its input,
from a setting of the whole network, from a constant. No trace shows that, and a cut that cannot run can neither be
weighed nor checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from cosep.models.modes import evaluating
from cosep.records import Group
from cosep.surgery.cut import apply_layout, layout_of, merged_layout

# Channels of each block that a try keeps: code that splits or folds channels mostly needs an even number of them, and
# with one alone a `squeeze` would take their axis away.
TRIED = 3


def with_cuts_tried(model: nn.Module, groups: Iterable[Group], example_input: Tensor) -> tuple[Group, ...]:
    """The groups; one without most of which the network does not run is not prunable, and says why."""
    groups = tuple(groups)
    free = [group for group in groups if group.scope is not None]
    if not free or not _failure(model, free, example_input):
        return groups
    runs: list[Group] = []
    failures: dict[str, str] = {}
    for group in free:
        if why := _failure(model, [*runs, group], example_input):
            failures[group.name] = f"the network does not run with fewer {group.unit}s ({why})"
        else:
            runs.append(group)
    return tuple(
        replace(group, scope=None, why_not=failures[group.name]) if group.name in failures else group
        for group in groups
    )


def _failure(model: nn.Module, groups: Sequence[Group], example_input: Tensor) -> str:
    """What a network raises that keeps only a few channels, or one head, of these groups; "" where it runs."""
    try:
        layout = merged_layout(*(layout_of(model, group, _few(group), {}) for group in groups))
        small = apply_layout(model, layout)
        with evaluating(model, small):
            if small(example_input[:1]).shape != model(example_input[:1]).shape:
                return "its output has another shape"
    except Exception as error:  # whatever the user's forward raises
        text = str(error).strip().splitlines()
        return f"{type(error).__name__}: {text[0] if text else 'no message'}"
    return ""


def _few(group: Group) -> list[int]:
    """The first channels of every block, or the first head."""
    size = group.width // group.blocks
    count = 1 if group.unit == "head" else max(1, min(TRIED, size - 1))
    return [block * size + channel for block in range(group.blocks) for channel in range(count)]
