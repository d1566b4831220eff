"""From one number a channel to a selection."""

from __future__ import annotations

import torch
from torch import Tensor

from cosep.errors import ConfigError
from cosep.records import Selection


def best_channels(scores: Tensor, kept: int, *, blocks: int = 1, reason: str) -> Selection:
    """The `kept` channels with the largest `scores` (width,), of equals the first; equally many in each block."""
    width = len(scores)
    if not 1 <= kept <= width or width % blocks or kept % blocks:
        raise ConfigError(f"{kept} of {width} channels cannot be kept, equally many in each of {blocks} equal blocks.")
    order = scores.reshape(blocks, -1).argsort(dim=1, descending=True, stable=True)[:, : kept // blocks]
    chosen = order + torch.arange(blocks).unsqueeze(1) * (width // blocks)
    return Selection(channels=width, kept=tuple(sorted(chosen.flatten().tolist())), reason=reason)
