"""From a channel's number in the uncut network to its place in the network as it is now."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cosep.records import Layout, Side


def places_now(layout: Layout, module: str, side: Side, positions: Tensor | Sequence[int]) -> Tensor:
    """Where positions of the uncut network are after the cuts of a layout, in the same shape; -1 for those cut away."""
    wanted = torch.as_tensor(positions, dtype=torch.int64)
    alive = layout.get((module, side))
    if alive is None:
        return wanted
    left = torch.tensor(alive, dtype=torch.int64)
    if not len(left):
        return torch.full_like(wanted, -1)
    found = torch.searchsorted(left, wanted.contiguous()).clamp(max=len(left) - 1)
    return torch.where(left[found] == wanted, found, -1)
