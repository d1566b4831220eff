"""Plain training from scratch: what makes the base models that are pruned later, and short recipes for it."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import RecoverConfig, check_at_least, check_between, setting
from cosep.errors import ConfigError, RecoveryError, RunError
from cosep.recovery import Progress, batch_count, recover
from cosep.runs.folder import difference, failing_as_ours, write_atomically

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch.optim.swa_utils import AveragedModel

TRAINING_SECONDS = "training_seconds"  # the key in the metadata of weights

Tensors = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """SGD with Nesterov momentum 0.9, a linear warm-up and a cosine to zero. `recipe` has one for each model."""

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

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("lr", 0), ("weight_decay", 0), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)
        for name in ("warmup", "label_smoothing"):
            check_between(name, getattr(self, name), 0, 1)
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema is {self.ema}; it must be a decay from 0 (no average) up to but not including 1.")


# What the recipes share: 5 epochs of warm-up as in Goyal et al. (2017, arXiv 1706.02677), cosine and label smoothing as
# in He et al. (2019, arXiv 1812.01187).
_SHORT = TrainConfig(epochs=100.0, warmup=0.05, label_smoothing=0.1, ema=0.999)
_RECIPES = {
    "vgg16": _SHORT,
    "vgg19": _SHORT,
    "mobilenetv2": _SHORT,
    "densenet40": replace(_SHORT, weight_decay=1e-4, batch_size=64),
}


def recipe(model: str) -> TrainConfig:
    """How to train a model of the zoo on CIFAR, by its name; the plain defaults for others.

    Peak rate 0.1, batches and weight decay are as published: VGG and MobileNet-V2 as in the public projects
    kuangliu/pytorch-cifar and weiaicunzai/pytorch-cifar100 (128, 5e-4, 200 epochs), DenseNet as in Huang et al. (2017,
    section 4.2: 64, 1e-4, 300 epochs). The number of epochs is ours, a third to a half of theirs; nothing was tuned.
    """
    return _RECIPES.get(model, TrainConfig())


def train(
    build: Callable[[], nn.Module],
    loader: Iterable[Any],
    config: TrainConfig,
    *,
    fabric: Fabric,
    on_update: Callable[[int, int, float], None] | None = None,
    partial: Path | None = None,
    about: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 60.0,
    on_end: Callable[[float], None] | None = None,
) -> nn.Module:
    """A network with fresh weights, trained on batches of (inputs, labels) towards their labels alone.

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
        average = moving_average(model, config.ema) if config.ema else None
        progress, spent = _stored(partial, described, model, average) if partial else (None, 0.0)
        last = began = time.monotonic()

        def checkpoint(_done: int, now: Callable[[], Progress]) -> None:
            nonlocal last
            # One process writes: all would take the same temporary name.
            if partial and fabric.is_global_zero and time.monotonic() - last >= checkpoint_seconds:
                _store(partial, described, now(), average, spent + time.monotonic() - began)
                last = time.monotonic()

        def told(done: int, updates: int, loss: float) -> None:
            if average:
                average.update_parameters(model)
            if on_update:
                on_update(done, updates, loss)

        done = recover(
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
    return average.module if average else model


def training_seconds(weights: Path) -> float | None:
    """How long the training took that `cosep train` wrote these weights after; None if the file does not say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="pt") as file:
            seconds = float((file.metadata() or {}).get(TRAINING_SECONDS, "nan"))
    except (SafetensorError, OSError, ValueError):
        return None  # a state dict of torch's, or metadata of somebody else's: loading the weights has its own checks
    return seconds if 0 < seconds < math.inf else None


def _store(
    path: Path, described: Mapping[str, Any], progress: Progress, average: AveragedModel | None, seconds: float
) -> None:
    """Write a training between two updates; what stood there before is replaced at once or not at all."""
    content = io.BytesIO()
    state = {name: getattr(progress, name) for name in ("update", "weights", "optimizer", "rng_state", "losses")}
    state |= {"average": average and average.state_dict(), "seconds": seconds}
    torch.save({"described": dict(described), **state}, content)
    with failing_as_ours(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())


def _stored(
    path: Path, described: Mapping[str, Any], model: nn.Module, average: AveragedModel | None
) -> tuple[Progress | None, float]:
    """What an earlier start of this training left, the average put back, and its seconds; None if there is nothing."""
    if not path.exists():
        return None, 0.0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # never runs code of the file
        before = state.pop("described")
        if other := difference(before, described):
            raise RunError(
                f"{path} holds another training: {other}. Remove it to start over, or choose another place for the "
                "result."
            )
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        if {name: tensor.shape for name, tensor in state["weights"].items()} != shapes:
            raise RunError(f"{path} is of another network than this one. Remove it to start over.")
        stored = state.pop("average")
        if average:
            average.load_state_dict(stored)
        seconds = float(state.pop("seconds"))
        return Progress(**state), seconds
    except RunError:
        raise
    except Exception as error:  # torch's reader fails in many ways
        raise RunError(f"{path} is damaged ({error}). Remove it to start over.") from error


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of a model's parameters and buffers; `update_parameters` adds the model as it is.

    BatchNorm's statistics are averaged like the weights they belong to (as timm does): that costs no further pass over
    the data, and at the end of a cosine, where the weights hardly move, it is what such a pass would find. The n-th
    model counts with a decay of at most (1 + n) / (10 + n), TensorFlow's rule, so that a short training does not
    end with the average of its first steps.
    """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def add(averages: Tensors, latest: Tensors, n: Tensor | int) -> None:
        now = min(decay, (1 + int(n)) / (10 + int(n)))
        get_ema_multi_avg_fn(now)(averages, latest, n)

    return AveragedModel(model, multi_avg_fn=add, use_buffers=True)
