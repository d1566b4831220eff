"""A layer as a linear map of rows: what it reads at one output position, times its weights, plus a constant.

Rows are (parts, rows, columns): a grouped convolution is one small map for each of its groups, a BatchNorm one for each
channel. Columns are kernel taps times the part's inputs. Weights have the form (parts, columns, outputs of the part).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


@dataclass(frozen=True, eq=False)
class LinearMap:
    """One plain layer, seen as a map of rows."""

    module: nn.Module

    @property
    def parts(self) -> int:
        if isinstance(self.module, _BatchNorm):
            return self.module.num_features
        return self.module.groups if isinstance(self.module, _ConvNd) else 1

    @property
    def outputs(self) -> int:
        if isinstance(self.module, _BatchNorm):
            return self.module.num_features
        return self.module.out_channels if isinstance(self.module, _ConvNd) else int(self.module.out_features)  # type: ignore[arg-type]

    @property
    def columns(self) -> int:
        """Of each part."""
        if isinstance(self.module, _BatchNorm):
            return 1
        if isinstance(self.module, _ConvNd):
            return self.module.in_channels // self.module.groups * math.prod(self.module.kernel_size)
        return int(self.module.in_features)  # type: ignore[arg-type]

    @property
    def inputs(self) -> int:
        if isinstance(self.module, _BatchNorm):
            return self.module.num_features
        return self.module.in_channels if isinstance(self.module, _ConvNd) else int(self.module.in_features)  # type: ignore[arg-type]

    def inputs_of_columns(self) -> Tensor:
        """Which input each column reads: (parts, columns)."""
        per = self.inputs // self.parts
        return torch.arange(self.columns).remainder(per) + per * torch.arange(self.parts).unsqueeze(1)

    @property
    def channel_axis(self) -> int:
        return -1 if isinstance(self.module, nn.Linear) else 1

    def places(self, output: Tensor) -> int:
        """How many positions an image has in an output of the layer."""
        shape = output.movedim(self.channel_axis, -1).shape
        return math.prod(shape[1:-1])

    def outputs_at(self, output: Tensor, where: Tensor, channels: Tensor | None = None) -> Tensor:
        """An output at positions (images, positions): (images, positions, outputs), all channels or some."""
        rows = _at(output.movedim(self.channel_axis, -1), where)
        return rows if channels is None else rows.index_select(2, channels)

    def rows(self, x: Tensor, where: Tensor) -> Tensor:
        """What the layer reads at output positions (images, positions): (images, positions, parts, columns)."""
        if not isinstance(self.module, _ConvNd):
            rows = self.outputs_at(x, where)
            return rows.unsqueeze(-1) if isinstance(self.module, _BatchNorm) else rows.unsqueeze(2)
        taps = _taps(self.module, x, where)  # (images, positions, taps, inputs)
        if self.module.groups == 1:
            return taps.flatten(2).unsqueeze(2)
        return taps.unflatten(3, (self.module.groups, -1)).movedim(3, 2).flatten(3)

    def weight(self) -> Tensor:
        """The weights now, in float64 on the CPU: (parts, columns, outputs of the part)."""
        if isinstance(self.module, _BatchNorm):
            return batchnorm_scale(self.module).reshape(-1, 1, 1)
        weight: Tensor = self.module.get_parameter("weight").detach().to("cpu", torch.float64, copy=True)
        if isinstance(self.module, nn.Linear):
            return weight.T.unsqueeze(0)
        by_part = weight.unflatten(0, (self.parts, -1)).flatten(3)  # (parts, outputs, inputs, taps)
        return by_part.transpose(2, 3).flatten(2).transpose(1, 2)

    @torch.no_grad()
    def write(self, weight: Tensor) -> None:
        """Give the layer weights in the form of `weight()`; not for BatchNorm."""
        own = self.module.get_parameter("weight")
        if isinstance(self.module, _ConvNd):
            taps = math.prod(self.module.kernel_size)
            by_part = weight.transpose(1, 2).unflatten(2, (taps, -1)).transpose(2, 3)
            weight = by_part.flatten(0, 1).unflatten(2, self.module.kernel_size)
        else:
            weight = weight[0].T
        own.copy_(weight.to(own))

    def constant(self) -> Tensor:
        """What the layer adds, in float64 on the CPU: (outputs,)."""
        if isinstance(self.module, _BatchNorm):
            scale, mean = batchnorm_scale(self.module), self.module.running_mean
            shift = -scale * mean.detach().cpu().double() if mean is not None else torch.zeros_like(scale)
        else:
            shift = torch.zeros(self.outputs, dtype=torch.float64)
        bias = self.module._parameters.get("bias")
        return shift if bias is None else shift + bias.detach().cpu().double()


def sampled(of: LinearMap, output: Tensor, rows: int, most: int, images: int, generator: torch.Generator) -> Tensor:
    """Positions (images, positions) of an output to look at, so that so many images give `rows` rows for each column.

    At least eight an image, at most `most`; another choice for every image.
    """
    places = of.places(output)
    count = min(places, most, max(-(-rows * of.columns // images), 8))
    if count == places:
        return torch.arange(places, device=output.device).expand(len(output), -1)
    return torch.rand(len(output), places, generator=generator).topk(count, dim=1).indices.to(output.device)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a convolution, linear layer or BatchNorm that computes what its class says."""
    if not isinstance(module, (_ConvNd, nn.Linear, _BatchNorm)) or "forward" in vars(module):
        return False
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(type(module).forward is kind.forward for kind in kinds)


def is_kernel(module: nn.Module) -> bool:
    """Whether a module is a convolution that adds nothing to its weights but zeros around its input, if it applies them
    as its settings say: plain ones do, of those with a forward of their own a trace tells."""
    own = isinstance(module, _ConvNd) and isinstance(module._parameters.get("weight"), nn.Parameter)
    return own and not isinstance(module, _ConvTransposeNd) and module.padding_mode == "zeros"


def may_be_solved(module: nn.Module) -> bool:
    """Whether a module is a layer that the rebuild may give other weights, as far as one sees without running it."""
    return (is_plain(module) or is_kernel(module)) and not why_no_map(module)


def applied(module: nn.Module, x: Tensor) -> Tensor:
    """A plain layer's output; of a convolution with a forward of its own, that of its weights alone."""
    if is_plain(module):
        found: Tensor = type(module).forward(module, x)
        return found
    assert isinstance(module, _ConvNd)
    how = (module.stride, module.padding, module.dilation, False, module.output_padding, module.groups)
    return torch.convolution(x, module.weight, module.bias, *how)  # type: ignore[arg-type]


def why_no_map(module: nn.Module) -> str:
    """Why a plain layer is no map that could be solved for, in words; "" where it is one."""
    if isinstance(module, _ConvTransposeNd):
        return "the outputs of a transposed convolution overlap"
    if isinstance(module, _BatchNorm):
        return "" if module.running_mean is not None and module.running_var is not None else "it keeps no statistics"
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is computed from other parameters"
    return ""


def batchnorm_scale(norm: _BatchNorm) -> Tensor:
    """What a BatchNorm in evaluation mode multiplies by: (channels,) float64 on the CPU."""
    assert norm.running_var is not None
    scale = (norm.running_var.detach().cpu().double() + norm.eps).rsqrt()
    weight = norm.weight
    return scale if weight is None else scale * weight.detach().cpu().double()


def _taps(module: _ConvNd, x: Tensor, where: Tensor) -> Tensor:
    """The inputs under the kernel at output positions, zero in the padding: (images, positions, taps, inputs)."""
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
    position, tap = where.unsqueeze(-1), torch.arange(math.prod(kernel), device=where.device)
    index = torch.zeros((*where.shape, len(tap)), dtype=torch.int64, device=where.device)
    inside = torch.ones_like(index, dtype=torch.bool)
    stride = 1
    for axis in reversed(range(len(out))):
        along = (position % out[axis]) * module.stride[axis] - before[axis]
        along = along + (tap % kernel[axis]) * module.dilation[axis]
        inside &= (along >= 0) & (along < size[axis])
        index += along.clamp(0, size[axis] - 1) * stride
        position, tap, stride = position // out[axis], tap // kernel[axis], stride * size[axis]
    values = _at(x.movedim(1, -1), index.flatten(1)).unflatten(1, tuple(index.shape[1:]))
    # masked_fill, not a product: an infinite value next to the border must not become nan in the padding.
    return values if bool(inside.all()) else values.masked_fill(~inside.unsqueeze(-1), 0)


def _at(values: Tensor, where: Tensor) -> Tensor:
    """Values (images, ..., channels) at places (images, positions) of each image: (images, positions, channels)."""
    flat = values.flatten(0, -2)  # no copy in the format channels_last
    first = torch.arange(len(where), device=where.device).unsqueeze(1) * (len(flat) // max(len(where), 1))
    return flat.index_select(0, (first + where).flatten()).unflatten(0, tuple(where.shape))
