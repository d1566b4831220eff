"""What must be known of a kind of layer, so that its channels can be followed, cut, masked, weighed and re-solved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosep.layers.bare import bare_axis
from cosep.records import Side


@dataclass(frozen=True, eq=False)
class TensorCut:
    """What is kept of one parameter or buffer of a layer."""

    name: str
    axis: int
    index: Tensor  # int64: positions along the axis
    # With more than one, the rows fall into this many equal blocks, each with columns of its own, and `index` runs
    # over the columns of all blocks one after the other.
    blocks: int = 1


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


def weight_of(module: nn.Module) -> Tensor:
    """A layer's weight, without its history."""
    return module.get_parameter("weight").detach()


def doubled(weight: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU."""
    return weight.detach().to("cpu").to(torch.float64)
