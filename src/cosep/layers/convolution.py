"""Convolutions of any dimension: plain, depthwise, in groups, transposed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from cosep.layers.kind import MixingKind, TensorCut, doubled, weight_of
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
