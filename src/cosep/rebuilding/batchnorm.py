"""BatchNorm statistics, measured again on calibration data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cosep.errors import CalibrationError
from cosep.layers import is_batchnorm
from cosep.models.frozen import frozen_batchnorms
from cosep.models.modes import evaluating
from cosep.rebuilding.sweep import input_of


@dataclass(eq=False)
class _Pooled:
    """Count, mean and scatter of a layer's inputs: (channels,) float64."""

    count: int
    mean: Tensor
    scatter: Tensor


def reestimate_batchnorm(
    model: nn.Module, batches: Iterable[Any], *, max_batches: int | None = None
) -> tuple[str, ...]:
    """Replace, in place, every tracked BatchNorm's running mean and variance by those of the batches; return the names.

    Mean and variance are exactly those of all values that reached the layer, pooled over batches, while each batch was
    normalised by its own statistics on the way there (as in training; dropout is off). Layers that do not track
    statistics, did not run or are frozen keep what they have. Batches of one image are skipped: they have no statistics
    of their own. After any failure the model is as it was.
    """
    frozen = frozen_batchnorms(model)
    layers = {
        name: m
        for name, m in model.named_modules()
        if is_batchnorm(m) and m.track_running_stats and m.running_mean is not None and m not in frozen
    }
    if not layers:
        return ()
    pooled: dict[str, _Pooled] = {}
    seen = 0
    with evaluating(model), _measuring(layers, pooled):
        for index, batch in enumerate(batches):
            if max_batches is not None and index >= max_batches:
                break
            x = input_of(batch, model)
            if len(x) > 1:
                model(x)
                seen += 1
    if not seen:
        raise CalibrationError(
            "BatchNorm statistics need at least one batch of two or more images; none was found. "
            "Give calibration data in larger batches."
        )
    for name, moments in pooled.items():
        if not bool((moments.mean.isfinite() & moments.scatter.isfinite()).all()):
            raise CalibrationError(
                f"the input of BatchNorm {name!r} is not finite on the calibration data; its statistics were left "
                "as they were. Look for infinite or nan pixels or weights."
            )
    for name, moments in pooled.items():
        layer = layers[name]
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(moments.mean)
        # torch keeps the unbiased variance.
        layer.running_var.copy_(moments.scatter / max(moments.count - 1, 1))
    return tuple(pooled)


@contextmanager
def _measuring(layers: dict[str, _BatchNorm], pooled: dict[str, _Pooled]) -> Iterator[None]:
    """Let layers normalise by each batch's own statistics and pool those into a dict; then put the layers back."""
    state = {
        name: (m.momentum, {k: v.clone() for k, v in m.named_buffers(recurse=False)}) for name, m in layers.items()
    }
    handles = []
    try:
        for name, layer in layers.items():
            layer.train()
            # With a momentum of 1 the running statistics after a batch are that batch's: no second pass over its input.
            layer.momentum = 1.0
            handles.append(layer.register_forward_hook(partial(_pool, pooled, name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name, (momentum, buffers) in state.items():
            layers[name].momentum = momentum
            for key, value in buffers.items():
                getattr(layers[name], key).copy_(value)


def _pool(pooled: dict[str, _Pooled], name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Merge one batch (Chan et al. 1979)."""
    assert is_batchnorm(layer)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    count = output.numel() // layer.num_features
    # A copy, also where the layer is in float64 on the CPU: the next batch overwrites its own.
    mean = layer.running_mean.to("cpu", torch.float64, copy=True)
    scatter = layer.running_var.to("cpu", torch.float64) * (count - 1)
    before = pooled.get(name)
    if before is None:
        pooled[name] = _Pooled(count, mean, scatter)
        return
    total = before.count + count
    gap = mean - before.mean
    before.mean = before.mean + gap * (count / total)
    before.scatter = before.scatter + scatter + gap.square() * (before.count * count / total)
    before.count = total
