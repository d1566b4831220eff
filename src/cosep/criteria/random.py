"""The paper's baseline: as many channels of each group as CoSeP kept, drawn at random."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from cosep.criteria.view import GroupView
from cosep.records import Selection
from cosep.selection.candidates import best_channels


def by_chance(view: GroupView) -> Tensor:
    """A number for each channel, by the run's seed and the group's name alone."""
    return random_scores(view.group.width, seed=zlib.crc32(f"{view.seed}/{view.group.name}".encode()))


def random_scores(width: int, *, seed: int) -> Tensor:
    """A number for each of `width` channels, by the seed alone: (width,)."""
    return torch.rand(width, generator=torch.Generator().manual_seed(seed))


def random_channels(width: int, kept: int, *, blocks: int = 1, seed: int = 0) -> Selection:
    """`kept` of `width` channels, uniformly at random; equally many in each of `blocks` equal parts."""
    return best_channels(random_scores(width, seed=seed), kept, blocks=blocks, reason="random")
