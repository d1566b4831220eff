"""The last step of every choice, whoever made it: rounding, and equally many channels in equal blocks."""

from __future__ import annotations

import math

from torch import Tensor

from cosep.records import Group, Selection
from cosep.selection.widths import balance, round_up


def finished(selection: Selection, group: Group, ranking: Tensor, *, round_to: int = 1) -> Selection:
    """The selection with a width that the group can have; `ranking` (width,) says which channels come or go."""
    selection = round_up(selection, multiple_of(group, round_to), ranking)
    return balance(selection, group.blocks, ranking)


def finished_width(width: float, group: Group, round_to: int) -> float:
    """The width that `finished` makes of a width; one between two whole numbers stays there if any number will do."""
    multiple = multiple_of(group, round_to)
    return width if multiple == 1 else min(-(-width // multiple) * multiple, group.width)


def multiple_of(group: Group, round_to: int) -> int:
    """What a group's width must be a multiple of; a head is as many places as a processor likes already."""
    return math.lcm(round_to if group.unit == "channel" else 1, group.blocks)
