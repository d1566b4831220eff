"""Normalisation: by statistics of each channel (BatchNorm, InstanceNorm), of parts (GroupNorm), of all (LayerNorm)."""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from cosep.layers.kind import Channelwise, LayerKind, TensorCut
from cosep.records import Side

CHANNEL_NORM = Channelwise((_NormBase,), ("weight", "bias", "running_mean", "running_var"), "num_features")


def is_batchnorm(module: object) -> TypeGuard[_BatchNorm]:
    """Whether a layer is a BatchNorm, whose running statistics stand in for its batch's."""
    return isinstance(module, _BatchNorm)


class GroupNorm(Channelwise):
    """Statistics over equal parts of the channels."""

    over_channels = True
    parts_name = "group normalisation"

    def __init__(self) -> None:
        super().__init__((nn.GroupNorm,), ("weight", "bias"), "num_channels")

    def refusal(self, module: nn.GroupNorm, side: Side, index: Tensor, grouped: bool) -> str:
        if module.num_groups == module.num_channels or len(index) % module.num_groups == 0:
            return ""
        return f"has {module.num_groups} groups; {len(index)} channels cannot be shared out equally."

    def resize(self, module: nn.GroupNorm, side: Side, count: int, grouped: bool) -> None:
        if module.num_groups == module.num_channels:
            module.num_groups = count
        module.num_channels = count

    def parts(self, module: nn.GroupNorm) -> int:
        return module.num_groups if module.num_groups != module.num_channels else 1


class LayerNorm(LayerKind):
    """Statistics over all channels, which are the last axis; over several axes they cannot be told apart."""

    types = (nn.LayerNorm,)
    tensors = ("weight", "bias")
    over_channels = True

    def size(self, module: nn.LayerNorm, side: Side) -> int:
        return int(module.normalized_shape[-1])

    def side_of(self, module: nn.LayerNorm, tensor: str, axis: int) -> Side | None:
        return "out" if len(module.normalized_shape) == 1 else None

    def cuts(self, module: nn.LayerNorm, side: Side, index: Tensor, grouped: bool) -> tuple[TensorCut, ...]:
        return TensorCut("weight", -1, index), TensorCut("bias", -1, index)

    def resize(self, module: nn.LayerNorm, side: Side, count: int, grouped: bool) -> None:
        module.normalized_shape = (*module.normalized_shape[:-1], count)

    def channel_axis(self, module: nn.LayerNorm) -> int:
        # One with a forward of its own (timm, torchvision) has them behind the batch.
        last = type(module).forward is nn.LayerNorm.forward and len(module.normalized_shape) == 1
        return -1 if last else 1
