"""Tensors of no known kind of layer: a parameter or buffer that some module uses in its own way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cosep.records import Side

# Layers written by hand repeat their width under one of these names.
_WIDTHS = ("num_features", "num_channels", "channels")
_SHAPES = ("normalized_shape", "bias_shape")  # the last entry of these


def bare_axis(tensor: Tensor, side: Side = "out") -> int:
    """The axis along which a parameter of no known layer holds channels: its first long one.

    Of positions in the form of an image, (1, channels, height, width), that is the second one. A table has two sides,
    as a weight has: its last axis is the side "in".
    """
    if side == "in":
        return tensor.ndim - 1
    long = [d for d in range(tensor.ndim) if tensor.shape[d] > 1]
    return long[0] if long else 0


def resize_bare(module: nn.Module, before: int, count: int) -> None:
    """Set, in place, what a module says of its own size, after one of its tensors was cut."""
    for name in _WIDTHS:
        held = module.__dict__.get(name)
        if held == before and isinstance(held, int):
            setattr(module, name, count)
    for name in _SHAPES:
        held = module.__dict__.get(name)
        if isinstance(held, (tuple, torch.Size)) and held[-1:] == (before,):
            setattr(module, name, (*held[:-1], count))


def forget_computed(module: nn.Module) -> None:
    """Let a module drop what it keeps of its tensors between passes, as it does when they move to another device."""
    if type(module)._apply is not nn.Module._apply:
        module._apply(lambda tensor: tensor)
