"""Convolutions of any dimension: plain, depthwise, in groups, transposed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from cosep.layers.kind import MixingKind, Sampler, TensorCut, View, doubled, own_forward, weight_of
from cosep.records import Side

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Convolution(MixingKind):
    """A weight (outputs, inputs / groups, ...); of a transposed convolution (inputs, outputs / groups, ...)."""

    types = (_ConvNd,)
    tensors = ("weight", "bias")
    operation = "convolution"
    parts_name = "grouped convolution"

    def size(self, module: _ConvNd, side: Side) -> int:
        return module.out_channels if side == "out" else module.in_channels

    def side_of(self, module: _ConvNd, tensor: str, axis: int) -> Side | None:
        if tensor == "bias":
            return "out"
        if axis > 1 or (module.groups > 1 and axis == 1):
            return None  # with groups, this axis is shared by all of them: it is not any side's own
        return "out" if (axis == 0) != module.transposed else "in"

    def cuts(self, module: _ConvNd, side: Side, index: Tensor, grouped: bool) -> tuple[TensorCut, ...]:
        if self.passes(module) and not grouped:
            many = module.out_channels // module.groups
            rows = index[::many] // many if module.transposed else index
            return TensorCut("weight", 0, rows), TensorCut("bias", 0, index)
        if (side == "out") != module.transposed:
            weight = TensorCut("weight", 0, index)
        else:
            weight = TensorCut("weight", 1, index, module.groups)
        return (weight, TensorCut("bias", 0, index)) if side == "out" else (weight,)

    def resize(self, module: _ConvNd, side: Side, count: int, grouped: bool) -> None:
        if self.passes(module) and not grouped:
            many = module.out_channels // module.groups
            module.out_channels = count
            module.groups = module.in_channels = count // many
        elif side == "out":
            module.out_channels = count
        else:
            module.in_channels = count

    def refusal(self, module: _ConvNd, side: Side, index: Tensor, grouped: bool) -> str:
        if module.groups == 1 or (self.passes(module) and not grouped):
            return ""
        counts = torch.bincount(index // (self.size(module, side) // module.groups), minlength=module.groups)
        if not bool((counts != counts[0]).any()):
            return ""
        return (
            f"is a convolution with {module.groups} groups, which must keep equally many channels; "
            f"between {int(counts.min())} and {int(counts.max())} would be kept."
        )

    def parts(self, module: _ConvNd) -> int:
        return module.groups if module.groups != module.in_channels else 1

    def passes(self, module: _ConvNd) -> bool:
        return module.groups == module.in_channels and module.groups > 1

    def plain(self, module: _ConvNd) -> bool:
        return any(type(module).forward is kind.forward for kind in _PLAIN)

    def filters(self, module: _ConvNd) -> Tensor:
        weight = doubled(weight_of(module))
        if module.transposed:  # the outputs of one block share the rows of its inputs
            weight = weight.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
        return weight.flatten(1)

    def reading(self, module: _ConvNd) -> Tensor:
        weight = doubled(weight_of(module))
        if module.transposed:
            return weight.flatten(1).square().sum(1)
        # The inputs of one block are read by its own outputs only.
        blocks = weight.unflatten(0, (module.groups, -1))
        return blocks.square().sum((1, *range(3, blocks.ndim))).flatten()

    def masked(self, module: _ConvNd, gone: Tensor) -> Tensor:
        weight = module.weight.detach().clone()
        gone = gone.to(weight.device)
        if module.transposed:
            weight[gone] = 0
            return weight
        blocks = weight.unflatten(0, (module.groups, -1))
        for block, columns in zip(blocks, gone.reshape(module.groups, -1), strict=True):
            block[:, columns] = 0
        return weight

    def why_unreadable(self, module: _ConvNd) -> str:
        return own_forward(module, next((kind for kind in _PLAIN if isinstance(module, kind)), None))

    def takes_constant(self, module: _ConvNd) -> bool:
        # The outputs of a transposed convolution overlap: a constant at the taps is not a constant of the output.
        return not module.transposed

    def views(self, module: _ConvNd, channels: Tensor, positions: Tensor) -> tuple[View, ...]:
        inputs, of_channel = positions.flatten(), channels.repeat_interleave(positions.shape[1])
        per_block, out = module.in_channels // module.groups, module.out_channels // module.groups
        taps = 1 if module.transposed else math.prod(module.kernel_size)  # a transposed one's taps are outputs
        views = []
        for block in (inputs // per_block).unique().tolist():
            mine = inputs // per_block == block
            outputs = torch.arange(block * out, (block + 1) * out)
            views.append(View(outputs, inputs[mine], of_channel[mine], int(block), taps))
        return tuple(views)

    def read_weight(self, module: _ConvNd, view: View) -> Tensor:
        weight = doubled(weight_of(module))
        if module.transposed:
            return weight[view.inputs].flatten(1).T.unsqueeze(2)
        local = view.inputs - view.block * (module.in_channels // module.groups)
        return weight[view.outputs][:, local].flatten(2)

    @torch.no_grad()
    def write_weight(self, module: _ConvNd, view: View, values: Tensor) -> None:
        weight = weight_of(module)
        values = values.to(weight)
        inputs, outputs = view.inputs.to(weight.device), view.outputs.to(weight.device)
        if module.transposed:
            weight[inputs] = values.squeeze(2).T.reshape(len(inputs), *weight.shape[1:])
            return
        local = inputs - view.block * (module.in_channels // module.groups)
        weight[outputs.unsqueeze(1), local] = values.unflatten(2, tuple(weight.shape[2:]))

    def read_patches(self, module: _ConvNd, views: tuple[View, ...], x: Tensor, sample: Sampler) -> Iterator[Tensor]:
        if x.dim() == len(module.kernel_size) + 1:
            x = x.unsqueeze(0)
        if module.transposed:
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
