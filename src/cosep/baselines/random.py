"""The paper's baseline: as many channels of each group as CoSeP kept, drawn at random."""

from __future__ import annotations

import torch

from cosep.records import Selection


def random_channels(width: int, kept: int, *, blocks: int = 1, seed: int = 0) -> Selection:
    """`kept` of `width` channels, uniformly at random; equally many in each of `blocks` equal parts."""
    generator = torch.Generator().manual_seed(seed)
    size = width // blocks
    chosen = [
        block * size + channel
        for block in range(blocks)
        for channel in torch.randperm(size, generator=generator)[: kept // blocks].tolist()
    ]
    return Selection(channels=width, kept=tuple(sorted(chosen)), reason="random")
