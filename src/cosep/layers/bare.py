"""Tensors of no known kind of layer: a parameter or buffer that some module uses in its own way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cosep.records import Side

# Layers written by hand repeat their width under one of these names.
_WIDTHS = ("num_features", "num_channels", "channels", "normalized_shape")


def bare_axis(tensor: Tensor, side: Side = "out") -> int:
    """The axis along which a parameter of no known layer holds channels: its only long one, or else the first.

    A table has two sides, as a weight has: its last axis is the side "in".
    """
    if side == "in":
        return tensor.ndim - 1
    long = [d for d in range(tensor.ndim) if tensor.shape[d] > 1]
    return long[0] if len(long) == 1 else 0


def resize_bare(module: nn.Module, before: int, count: int) -> None:
    """Set, in place, what a module says of its own size, after one of its tensors was cut."""
    for name in _WIDTHS:
        held = module.__dict__.get(name)
        if held == before and isinstance(held, int):
            setattr(module, name, count)
        elif isinstance(held, (tuple, torch.Size)) and tuple(held) == (before,):
            setattr(module, name, (count,))
