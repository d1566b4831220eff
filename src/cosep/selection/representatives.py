"""Which channel of a cluster stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cosep.config import SelectConfig
from cosep.errors import ConfigError


def representatives(
    clusters: Sequence[int],
    medoids: Sequence[int],
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    config: SelectConfig | None = None,
    seed: int = 0,
) -> tuple[int, ...]:
    """One channel per cluster, in the order of `medoids`: the best by `scores` if given, else by the configured rule.

    "weighted": the largest of `weights` (channels,), the norms of the channels' filters. "salient": the best by
    `scores`, which must be given. "medoid": the medoid. "random": any, by the seed. Of equals the lowest channel.
    """
    config = config or SelectConfig()
    owner = np.asarray(clusters)
    members = [np.flatnonzero(owner == cluster) for cluster in range(len(medoids))]
    ranking = ranking_of(len(owner), weights=weights, scores=scores, config=config)
    if ranking is not None:
        return tuple(int(group[ranking[group].argmax()]) for group in members)
    if config.representative == "medoid":
        return tuple(int(medoid) for medoid in medoids)
    chance = np.random.default_rng(seed)
    return tuple(int(chance.choice(group)) for group in members)


def ranking_of(
    channels: int, *, weights: Tensor | None, scores: Tensor | None, config: SelectConfig
) -> np.ndarray | None:
    """The numbers (channels,) by which representatives are chosen, checked; None where no numbers decide."""
    if scores is not None:
        return checked_ranking("scores", scores, channels)
    if config.representative == "salient":
        raise ConfigError(
            'the representative "salient" keeps the channel that passes on most, and no scores were given. '
            'Give scores (channels,), or choose the representative "medoid".'
        )
    if config.representative != "weighted":
        return None
    if weights is None:
        raise ConfigError(
            'the representative "weighted" keeps the channel with the largest weight, and no weights were given. '
            'Give weights (channels,), the norms of the filters, or choose the representative "medoid".'
        )
    return checked_ranking("weights", weights, channels)


def checked_ranking(name: str, values: Tensor, channels: int) -> np.ndarray:
    """Numbers (channels,) to rank channels by, as float64; refused where they are too few, too many or not finite."""
    values = torch.as_tensor(values).detach()
    if tuple(values.shape) != (channels,):
        raise ConfigError(f"{name} has shape {tuple(values.shape)}; it must be ({channels},), one number per channel.")
    if not bool(torch.isfinite(values).all()):
        channel = int((~torch.isfinite(values)).nonzero()[0])
        raise ConfigError(f"{name} is {float(values[channel])} for channel {channel}; give finite numbers.")
    return np.asarray(values.cpu().double().numpy())
