"""Plain training from scratch: what makes the base models that are pruned later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cosep.config import RecoverConfig, check_at_least
from cosep.tune import batch_count, recover

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A short recipe that works for the networks of the zoo."""

    epochs: float = 30.0
    lr: float = 0.1
    weight_decay: float = 5e-4
    warmup: float = 0.1
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 0)
        check_at_least("lr", self.lr, 0)


def train(
    build: Callable[[], nn.Module],
    loader: Iterable[Any],
    config: TrainConfig,
    *,
    fabric: Fabric,
    on_update: Callable[[int, int, float], None] | None = None,
) -> nn.Module:
    """A network with fresh weights, trained on batches of (inputs, labels) towards their labels alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        model = build()
        batches = batch_count(loader)
        recover(
            model,
            loader,
            max(1, round(config.epochs * batches)),
            RecoverConfig(
                lr=config.lr,
                nesterov=True,
                weight_decay=config.weight_decay,
                warmup=config.warmup,
                distill=0.0,
                features=0.0,
                label_smoothing=config.label_smoothing,
            ),
            fabric=fabric,
            batches_a_pass=batches,
            seed=config.seed,
            on_update=on_update,
        )
    return model
