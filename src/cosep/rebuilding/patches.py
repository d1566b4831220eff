"""How a consumer reads a group: always `weight (outputs, units, taps)` times `patch (units, taps)`.

Units are the group's inputs, taps the kernel positions; behind a flatten, units are channels and taps their span.
A grouped convolution is one such product for each of its groups that reads the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

# Given the number of positions that there are, which ones to read: (positions,) int64.
Sampler = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class View:
    """What one convolution group of a consumer (all of a linear layer) reads of the pruned group."""

    outputs: Tensor  # (outputs,) int64: the consumer's outputs that it makes
    inputs: Tensor  # (units,) int64, for a linear layer (units, taps): the consumer's inputs, as the model is now
    channels: Tensor  # (units,) int64: the group's channel in each unit
    block: int  # which convolution group; 0 for a linear layer
    taps: int

    @property
    def columns(self) -> int:
        return len(self.channels) * self.taps


def why_unreadable(module: nn.Module) -> str:
    """Why this consumer's weight cannot be re-solved, in words; "" where it can be."""
    plain = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    kind = next((k for k in plain if isinstance(module, k)), None)
    if kind is None:
        return f"a {type(module).__name__} is neither a convolution nor a linear layer"
    # A subclass that pads or standardises on its own computes something else than its weight and settings say.
    if type(module).forward is not kind.forward or "forward" in vars(module):
        return f"{type(module).__name__} has a forward of its own"
    if isinstance(module, _ConvNd) and getattr(type(module), "_conv_forward", None) is not getattr(
        kind, "_conv_forward", None
    ):
        return f"{type(module).__name__} has a forward of its own"
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is computed from other parameters"
    return ""


def views_of(module: nn.Module, channels: Tensor, positions: Tensor) -> tuple[View, ...]:
    """The views of a consumer whose inputs `positions` (channels, span) hold the group's `channels` (channels,)."""
    if isinstance(module, nn.Linear):
        return (View(torch.arange(module.out_features), positions, channels, 0, positions.shape[1]),)
    assert isinstance(module, _ConvNd)
    inputs, of_channel = positions.flatten(), channels.repeat_interleave(positions.shape[1])
    per_block, out = module.in_channels // module.groups, module.out_channels // module.groups
    taps = 1 if isinstance(module, _ConvTransposeNd) else math.prod(module.kernel_size)
    views = []
    for block in (inputs // per_block).unique().tolist():
        mine = inputs // per_block == block
        outputs = torch.arange(block * out, (block + 1) * out)
        views.append(View(outputs, inputs[mine], of_channel[mine], int(block), taps))
    return tuple(views)


def read_weight(module: nn.Module, view: View) -> Tensor:
    """The weight of a view: (outputs, units, taps) float64 on the CPU. A transposed convolution's taps are outputs."""
    weight = _weight(module).detach().cpu().double()
    if isinstance(module, nn.Linear):
        return weight[:, view.inputs.flatten()].unflatten(1, tuple(view.inputs.shape))
    assert isinstance(module, _ConvNd)
    if isinstance(module, _ConvTransposeNd):
        return weight[view.inputs].flatten(1).T.unsqueeze(2)
    local = view.inputs - view.block * (module.in_channels // module.groups)
    return weight[view.outputs][:, local].flatten(2)


@torch.no_grad()
def write_weight(module: nn.Module, view: View, values: Tensor) -> None:
    """Put a view's weight back, from the form that `read_weight` gives; the rest of the weight stays."""
    weight = _weight(module)
    values = values.to(weight)
    inputs, outputs = view.inputs.to(weight.device), view.outputs.to(weight.device)
    if isinstance(module, nn.Linear):
        weight[:, inputs.flatten()] = values.flatten(1)
        return
    assert isinstance(module, _ConvNd)
    if isinstance(module, _ConvTransposeNd):
        weight[inputs] = values.squeeze(2).T.reshape(len(inputs), *weight.shape[1:])
        return
    local = inputs - view.block * (module.in_channels // module.groups)
    weight[outputs.unsqueeze(1), local] = values.unflatten(2, tuple(weight.shape[2:]))


def read_patches(module: nn.Module, views: tuple[View, ...], x: Tensor, sample: Sampler) -> Iterator[Tensor]:
    """For each view, patches of an input at sampled output positions: (images, positions, units, taps)."""
    if isinstance(module, nn.Linear):
        tokens = x.reshape(1, 1, -1) if x.dim() == 1 else x.reshape(len(x), -1, x.shape[-1])
        if tokens.shape[1] > 1:
            tokens = tokens[:, sample(tokens.shape[1]).to(x.device)]
        for view in views:
            yield tokens[:, :, view.inputs.flatten().to(x.device)].unflatten(2, tuple(view.inputs.shape))
        return
    assert isinstance(module, _ConvNd)
    if x.dim() == len(module.kernel_size) + 1:
        x = x.unsqueeze(0)
    if isinstance(module, _ConvTransposeNd):
        where = sample(math.prod(x.shape[2:])).to(x.device)
        values = x.flatten(2)[:, :, where].unsqueeze(3)
    else:
        values = _unfold(module, x, sample)
    values = values.transpose(1, 2)  # (images, positions, inputs, taps)
    for view in views:
        whole = torch.equal(view.inputs, torch.arange(values.shape[2]))
        yield values if whole else values[:, :, view.inputs.to(x.device)]


def _unfold(module: _ConvNd, x: Tensor, sample: Sampler) -> Tensor:
    """The taps of sampled output positions, zero where they lie in the padding: (images, inputs, positions, taps)."""
    # torch keeps the padding of every mode, "same" included, as (last axis before, after, the axis before it, ...).
    padding = list(module._reversed_padding_repeated_twice)
    if module.padding_mode != "zeros":
        x = F.pad(x, padding, mode=module.padding_mode)
        padding = [0] * len(padding)
    before, after = padding[::2][::-1], padding[1::2][::-1]
    size, kernel = x.shape[2:], module.kernel_size
    out = [
        (s + b + a - d * (k - 1) - 1) // step + 1
        for s, b, a, d, k, step in zip(size, before, after, module.dilation, kernel, module.stride, strict=True)
    ]
    position, tap = sample(math.prod(out)), torch.arange(math.prod(kernel))
    index = torch.zeros(len(position), len(tap), dtype=torch.int64)
    inside = torch.ones(len(position), len(tap), dtype=torch.bool)
    stride = 1
    for axis in reversed(range(len(out))):
        along = (position % out[axis]).unsqueeze(1) * module.stride[axis] - before[axis]
        along = along + (tap % kernel[axis]) * module.dilation[axis]
        inside &= (along >= 0) & (along < size[axis])
        index += along.clamp(0, size[axis] - 1) * stride
        position, tap, stride = position // out[axis], tap // kernel[axis], stride * size[axis]
    values = x.flatten(2).index_select(2, index.flatten().to(x.device)).unflatten(2, tuple(index.shape))
    # masked_fill, not a product: an infinite value next to the border must not become nan in the padding.
    return values if bool(inside.all()) else values.masked_fill(~inside.to(x.device), 0)


def _weight(module: nn.Module) -> nn.Parameter:
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    return weight
