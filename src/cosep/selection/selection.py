"""Which channels of a layer stay: cluster for every k, score, find the knee, represent."""

from __future__ import annotations

import torch
from torch import Tensor

from cosep.config import SelectConfig
from cosep.records import Selection, Space
from cosep.selection.rules.knee import knee_of
from cosep.selection.sweep import sweep


def select(
    space: Space | Tensor,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    config: SelectConfig | None = None,
    seed: int = 0,
) -> Selection:
    """Choose the channels to keep from a space, or from distances (channels, channels); the evidence comes with it.

    `weights` (channels,) are what the representative "weighted" and the setting "mass" go by; `scores` (channels,), if
    given, choose the representatives whatever the setting is; `seed` is that of the clustering's random starts and of
    random representatives. A layer without a knee is kept whole, and the reason says why: no knee, a flat curve, a knee
    at the edge, or too few channels (fewer than four, or fewer than the polynomial needs).
    """
    config = config or SelectConfig()
    found = sweep(space, weights=weights, scores=scores, config=config, seed=seed)
    candidates = found.candidates("", torch.ones(found.channels))
    return knee_of(candidates, config).applied(candidates)
