"""How a consumer reads a group: always `weight (outputs, units, taps)` times `patch (units, taps)`.

Units are the group's inputs, taps the kernel positions; behind a flatten, units are channels and taps their span.
A grouped convolution is one such product for each of its groups that reads the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from cosep.layers import Sampler, View, mixing, mixing_kind_of

__all__ = ["Sampler", "View", "read_patches", "read_weight", "views_of", "why_unreadable", "write_weight"]


def why_unreadable(module: nn.Module) -> str:
    """Why this consumer's weight cannot be re-solved, in words; "" where it can be."""
    kind = mixing_kind_of(module)
    if kind is None:
        return f"a {type(module).__name__} is neither a convolution nor a linear layer"
    return kind.why_unreadable(module)


def views_of(module: nn.Module, channels: Tensor, positions: Tensor) -> tuple[View, ...]:
    """The views of a consumer whose inputs `positions` (channels, span) hold the group's `channels` (channels,)."""
    return mixing(module).views(module, channels, positions)


def read_weight(module: nn.Module, view: View) -> Tensor:
    """The weight of a view: (outputs, units, taps) float64 on the CPU. A transposed convolution's taps are outputs."""
    return mixing(module).read_weight(module, view)


def write_weight(module: nn.Module, view: View, values: Tensor) -> None:
    """Put a view's weight back, from the form that `read_weight` gives; the rest of the weight stays."""
    mixing(module).write_weight(module, view, values)


def read_patches(module: nn.Module, views: tuple[View, ...], x: Tensor, sample: Sampler) -> Iterator[Tensor]:
    """For each view, patches of an input at sampled output positions: (images, positions, units, taps)."""
    return mixing(module).read_patches(module, views, x, sample)
