"""What must be known of a kind of layer, so that its channels can be followed, cut, masked, weighed and re-solved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosep.layers.bare import bare_axis
from cosep.records import Side

# Given the number of positions that there are, which ones to read: (positions,) int64.
Sampler = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class TensorCut:
    """What is kept of one parameter or buffer of a layer."""

    name: str
    axis: int
    index: Tensor  # int64: positions along the axis
    # With more than one, the rows fall into this many equal blocks, each with columns of its own, and `index` runs
    # over the columns of all blocks one after the other.
    blocks: int = 1


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


class LayerKind(ABC):
    """A kind of layer: the questions that cutting, following and masking ask, with the answers of most layers."""

    types: tuple[type[nn.Module], ...]
    tensors: tuple[str, ...]  # the parameters and buffers that hold its channels, by name
    # The operation of torch in which the layer multiplies its input by its weight; None: it mixes no channels.
    operation: Literal["convolution", "product"] | None = None
    over_channels = False  # whether it computes statistics over its channels, which change when some of them go
    parts_name = ""  # what to call a layer of this kind that divides its channels into equal parts

    @abstractmethod
    def size(self, module: Any, side: Side) -> int:
        """How many channels a side holds."""

    @abstractmethod
    def side_of(self, module: Any, tensor: str, axis: int) -> Side | None:
        """The side whose channels lie along an axis of one of its tensors; None: none that can be cut by itself."""

    @abstractmethod
    def cuts(self, module: Any, side: Side, index: Tensor, grouped: bool) -> tuple[TensorCut, ...]:
        """What stays of its tensors if these positions (kept,) of a side stay; names that are absent do no harm.

        `grouped` says that the layer's inputs are cut on their own: a convolution with as many groups as inputs that
        is not treated as a depthwise one.
        """

    @abstractmethod
    def resize(self, module: Any, side: Side, count: int, grouped: bool) -> None:
        """Set, in place, what the layer says of its own size, after its tensors were cut."""

    def refusal(self, module: Any, side: Side, index: Tensor, grouped: bool) -> str:
        """Why these positions cannot be all that stays, in words that follow the layer's name; "" where they can."""
        return ""

    def channel_axis(self, module: Any) -> int:
        """Along which axis of its output the channels lie."""
        return 1

    def parts(self, module: Any) -> int:
        """Into how many equal parts it divides its channels, which must stay equal."""
        return 1

    def passes(self, module: Any) -> bool:
        """Whether each channel goes through on its own: always, unless it mixes them."""
        return True

    def plain(self, module: Any) -> bool:
        """Whether it multiplies its input by its own weight as it is: then zeroing the weight masks the input."""
        return False


class MixingKind(LayerKind):
    """A kind of layer that makes channels out of other ones by a weight: producers and consumers."""

    def passes(self, module: Any) -> bool:
        return False

    @abstractmethod
    def filters(self, module: Any) -> Tensor:
        """The weights that make each output: (outputs, weights) float64 on the CPU."""

    @abstractmethod
    def reading(self, module: Any) -> Tensor:
        """The squared L2 norm of the weights that read each input: (inputs,) float64 on the CPU."""

    @abstractmethod
    def masked(self, module: Any, gone: Tensor) -> Tensor:
        """A copy of the weight with zeros for inputs in `gone` (inputs,) bool."""

    @abstractmethod
    def why_unreadable(self, module: Any) -> str:
        """Why its weight cannot be re-solved, in words; "" where it can be: then the methods below work."""

    def takes_constant(self, module: Any) -> bool:
        """Whether a constant added at every position is a constant of the output."""
        return True

    @abstractmethod
    def views(self, module: Any, channels: Tensor, positions: Tensor) -> tuple[View, ...]:
        """The views of a consumer whose inputs `positions` (channels, span) hold the group's `channels` (channels,)."""

    @abstractmethod
    def read_weight(self, module: Any, view: View) -> Tensor:
        """The weight of a view: (outputs, units, taps) float64 on the CPU."""

    @abstractmethod
    def write_weight(self, module: Any, view: View, values: Tensor) -> None:
        """Put a view's weight back, from the form that `read_weight` gives; the rest of the weight stays."""

    @abstractmethod
    def read_patches(self, module: Any, views: tuple[View, ...], x: Tensor, sample: Sampler) -> Iterator[Tensor]:
        """For each view, patches of an input at sampled output positions: (images, positions, units, taps)."""


class Channelwise(LayerKind):
    """Layers whose tensors have one entry for each channel, and which write their width down in one attribute.

    A tensor may have further axes of size 1, such as (1, channels, 1, 1).
    """

    def __init__(self, types: tuple[type[nn.Module], ...], tensors: tuple[str, ...], width: str) -> None:
        self.types, self.tensors, self.width = types, tensors, width

    def size(self, module: Any, side: Side) -> int:
        return int(getattr(module, self.width))

    def side_of(self, module: Any, tensor: str, axis: int) -> Side | None:
        return "out" if axis == bare_axis(getattr(module, tensor)) else None

    def cuts(self, module: Any, side: Side, index: Tensor, grouped: bool) -> tuple[TensorCut, ...]:
        there = [name for name in self.tensors if getattr(module, name, None) is not None]
        return tuple(TensorCut(name, bare_axis(getattr(module, name)), index) for name in there)

    def resize(self, module: Any, side: Side, count: int, grouped: bool) -> None:
        setattr(module, self.width, count)


def own_forward(module: nn.Module, kind: type[nn.Module] | None) -> str:
    """Why a layer may compute something else than torch's layer of that kind with its weight, in words; else ""."""
    name = type(module).__name__
    if kind is None:
        return f"a {name} is neither a convolution nor a linear layer"
    # A subclass that pads or standardises on its own computes something else than its weight and settings say.
    if type(module).forward is not kind.forward or "forward" in vars(module):
        return f"{name} has a forward of its own"
    if getattr(type(module), "_conv_forward", None) is not getattr(kind, "_conv_forward", None):
        return f"{name} has a forward of its own"
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is computed from other parameters"
    return ""


def weight_of(module: nn.Module) -> Tensor:
    """A layer's weight, without its history."""
    return module.get_parameter("weight").detach()


def doubled(weight: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU."""
    return weight.detach().to("cpu").to(torch.float64)
