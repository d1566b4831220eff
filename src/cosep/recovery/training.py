"""Plain training from scratch: what makes the base models that are pruned later, and recipes for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import Optimizer, RecoverConfig, check_at_least, check_between, check_choice, setting
from cosep.data.batches import pair_of
from cosep.errors import ConfigError, RecoveryError
from cosep.models.formats import in_fast_format
from cosep.models.modes import evaluating, logits_of
from cosep.recovery import Progress, batch_count, recover
from cosep.recovery.inputs import Growing, Mixed
from cosep.recovery.partial import read_partial, write_partial

if TYPE_CHECKING:
    from lightning_fabric import Fabric

TRAINING_SECONDS = "training_seconds"  # the key in the metadata of weights


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """SGD with Nesterov momentum 0.9, AdamW or Muon; a linear warm-up, a cosine to zero. `recipe` has one a model."""

    epochs: float = setting(30.0, "passes over the training data")
    batch_size: int = setting(
        128, "images an update; for whoever makes the loader, `train` takes its batches as they are"
    )
    lr: float = setting(0.1, "the peak learning rate")
    weight_decay: float = setting(5e-4, "of every parameter")
    warmup: float = setting(0.1, "the part of the updates in which the rate rises to its peak")
    label_smoothing: float = setting(0.0, "of the cross-entropy")
    ema: float = setting(0.0, "the decay of a moving average of the weights, which is then the result; 0: no average")
    seed: int = setting(0, "of the initial weights and the order of the data")
    optimizer: Optimizer = setting(
        "sgd", "SGD with Nesterov momentum, AdamW, or Muon (with AdamW for what is no matrix)"
    )
    first_size: float = setting(
        1.0,
        "the side of the first images, as a share of the full one; it grows in equal steps, the last fifth is whole",
    )
    cutmix: float = setting(0.0, "the share of the batches in which a rectangle of each image is taken from another")
    channels_last: bool = setting(False, "work in the memory format in which most convolutions are faster")
    distill: float = setting(0.9, "the weight of a teacher's outputs in the loss, if there is a teacher")

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("lr", 0), ("weight_decay", 0), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)
        check_choice("optimizer", self.optimizer, Optimizer)
        for name in ("warmup", "label_smoothing", "cutmix", "distill"):
            check_between(name, getattr(self, name), 0, 1)
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema is {self.ema}; it must be a decay from 0 (no average) up to but not including 1.")
        if not 0 < self.first_size <= 1:
            raise ConfigError(
                f"first_size is {self.first_size}; it must be a share above 0 and at most 1 (whole images)."
            )


# What the recipes share: 5 epochs of warm-up as in Goyal et al. (2017, arXiv 1706.02677), cosine and label smoothing as
# in He et al. (2019, arXiv 1812.01187).
_SHORT = TrainConfig(epochs=100.0, warmup=0.05, label_smoothing=0.1, ema=0.999)
_RECIPES = {
    "vgg16": _SHORT,
    "vgg19": _SHORT,
    "mobilenetv2": _SHORT,
    "densenet40": replace(_SHORT, weight_decay=1e-4, batch_size=64),
    "vit6": replace(
        _SHORT,
        optimizer="muon",
        lr=3e-3,
        weight_decay=0.05,
        warmup=0.1,
        cutmix=0.25,
        first_size=0.5,
        channels_last=True,
    ),
}


def recipe(model: str, *, fast: bool = False) -> TrainConfig:
    """How to train a model of the zoo on CIFAR, by its name; the plain defaults for others.

    Peak rate 0.1, batches and weight decay are as published: VGG and MobileNet-V2 as in the public projects
    kuangliu/pytorch-cifar and weiaicunzai/pytorch-cifar100 (128, 5e-4, 200 epochs), DenseNet as in Huang et al. (2017,
    section 4.2: 64, 1e-4, 300 epochs). The number of epochs is ours, a third to a half of theirs; nothing was tuned.
    The ViT has DeiT's weight decay (Touvron et al., 2021) and less of its CutMix, for its training is short; its
    matrices are trained by Muon (Jordan et al., 2024), and what came of it is in docs/research.md.

    `fast` is any of them in 15 passes: one cycle of the rate (Smith, 2018, arXiv 1803.09820), a quarter of it rising,
    and images that grow from half of their side to the whole (as fast.ai's entry to DAWNBench, 2018), which costs 59 %
    of as many passes over whole images. A network so trained is some points below one that was trained for long.
    """
    found = _RECIPES.get(model, TrainConfig())
    if not fast:
        return found
    return replace(
        found, epochs=15.0, warmup=0.25, label_smoothing=0.1, ema=0.995, first_size=0.5, cutmix=0.0, channels_last=True
    )


def train(
    build: Callable[[], nn.Module],
    loader: Iterable[Any],
    config: TrainConfig,
    *,
    fabric: Fabric,
    teacher: nn.Module | None = None,
    on_update: Callable[[int, int, float], None] | None = None,
    partial: Path | None = None,
    about: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 60.0,
    on_end: Callable[[float], None] | None = None,
) -> nn.Module:
    """A network with fresh weights, trained on batches of (inputs, labels) towards their labels.

    With a `teacher`, a trained network of the same classes, its outputs are targets too. It sees whole images.
    With `ema`, the result is the moving average of the weights over the updates, its BatchNorm statistics included.
    `partial` is a file for the training so far: the same call goes on from it, to the same result as without a stop. It
    is for exactly these settings and facts `about` the model and the data, and the caller's to remove in the end.
    `on_end` is told the seconds that it took, those before a stop included.
    """
    batches = batch_count(loader)
    described = {**asdict(config), **(about or {}), "batches": batches}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        model = fabric.to_device(build())
        first = fabric.to_device(pair_of(next(iter(loader)), "a batch of the loader for training")[0][:1])
        if config.channels_last:
            model, _ = in_fast_format(model, first)
        progress, spent = read_partial(partial, described, model) if partial else (None, 0.0)
        last = began = time.monotonic()
        updates = max(1, round(config.epochs * batches))
        size = Growing(model, config.first_size, updates, done=progress.update if progress else 0)

        def checkpoint(_done: int, now: Callable[[], Progress]) -> None:
            nonlocal last
            # One process writes: all would take the same temporary name.
            if partial and fabric.is_global_zero and time.monotonic() - last >= checkpoint_seconds:
                write_partial(partial, described, now(), spent + time.monotonic() - began)
                last = time.monotonic()

        def told(done: int, updates: int, loss: float) -> None:
            size.done = done
            if on_update:
                on_update(done, updates, loss)

        with size:
            done = recover(
                model,
                Mixed(loader, config.cutmix, _outputs(model, first)) if config.cutmix else loader,
                updates,
                RecoverConfig(
                    optimizer=config.optimizer,
                    lr=config.lr,
                    nesterov=True,
                    weight_decay=config.weight_decay,
                    warmup=config.warmup,
                    distill=config.distill if teacher else 0.0,
                    features=0.0,
                    label_smoothing=config.label_smoothing,
                    ema=config.ema,
                ),
                fabric=fabric,
                batches_a_pass=batches,
                seed=config.seed,
                teacher=teacher,
                progress=progress,
                checkpoint=checkpoint,
                on_update=told,
            )
    if done.outcome != "done":
        if partial:
            partial.unlink(missing_ok=True)  # from there it would only diverge again
        raise RecoveryError(f"the training {done.outcome}. Use a lower learning rate or a longer warm-up.")
    if on_end:
        on_end(spent + time.monotonic() - began)
    return model.to(memory_format=torch.contiguous_format) if config.channels_last else model  # type: ignore[call-overload]


def training_seconds(weights: Path) -> float | None:
    """How long the training took that `cosep train` wrote these weights after; None if the file does not say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="pt") as file:
            seconds = float((file.metadata() or {}).get(TRAINING_SECONDS, "nan"))
    except (SafetensorError, OSError, ValueError):
        return None  # a state dict of torch's, or metadata of somebody else's: loading the weights has its own checks
    return seconds if 0 < seconds < math.inf else None


def _outputs(model: nn.Module, inputs: Tensor) -> int:
    """How many classes a model scores."""
    with evaluating(model):
        return logits_of(model, inputs).shape[1]
