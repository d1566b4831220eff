"""Averages of the weights over the updates of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


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
