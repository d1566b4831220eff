"""The paper's baseline: as many channels of each group as CoSeP kept, drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor

from cosep.criteria.choosing import best_channels
from cosep.records import Selection


def random_scores(width: int, *, seed: int) -> Tensor:
    """A number for each of `width` channels, by the seed alone: (width,)."""
    return torch.rand(width, generator=torch.Generator().manual_seed(seed))


def random_channels(width: int, kept: int, *, blocks: int = 1, seed: int = 0) -> Selection:
    """`kept` of `width` channels, uniformly at random; equally many in each of `blocks` equal parts."""
    return best_channels(random_scores(width, seed=seed), kept, blocks=blocks, reason="random")
