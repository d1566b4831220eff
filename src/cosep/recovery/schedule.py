"""The learning rate of each update, and how many updates there are. [pure]"""

from __future__ import annotations

import math

from cosep.config import RecoverConfig
from cosep.errors import ConfigError


def rate(update: int, updates: int, config: RecoverConfig) -> float:
    """The learning rate of update 0 … updates − 1: a linear rise to the peak, then constant or a cosine to zero."""
    rising = round(config.warmup * updates)
    if update < rising:
        return config.lr * (update + 1) / (rising + 1)
    if config.decay == "constant":
        return config.lr
    return config.lr * (1 + math.cos(math.pi * (update - rising) / max(1, updates - rising))) / 2


def updates_per_group(batches: int, config: RecoverConfig) -> int:
    """The budget of one cut group: `group_epochs` passes over `share` of the training batches."""
    batches_a_pass = math.floor(config.share * batches)
    if batches_a_pass < 1:
        raise ConfigError(
            f"recover.share is {config.share}, which of {batches} training batches gives no full batch. "
            "Raise the share, give more data or use a smaller batch size."
        )
    return max(1, round(config.group_epochs * batches_a_pass))
