"""Linear layers: channels are last, behind a flatten or in tokens."""

from __future__ import annotations

from torch import Tensor, nn

from cosep.layers.kind import MixingKind, TensorCut, doubled, weight_of
from cosep.records import Side


class Linear(MixingKind):
    """A product with a weight (outputs, inputs)."""

    types = (nn.Linear,)
    tensors = ("weight", "bias")
    operation = "product"

    def size(self, module: nn.Linear, side: Side) -> int:
        return module.out_features if side == "out" else module.in_features

    def side_of(self, module: nn.Linear, tensor: str, axis: int) -> Side | None:
        return "out" if axis == 0 else "in"

    def cuts(self, module: nn.Linear, side: Side, index: Tensor, grouped: bool) -> tuple[TensorCut, ...]:
        if side == "in":
            return (TensorCut("weight", 1, index),)
        return TensorCut("weight", 0, index), TensorCut("bias", 0, index)

    def resize(self, module: nn.Linear, side: Side, count: int, grouped: bool) -> None:
        if side == "out":
            module.out_features = count
        else:
            module.in_features = count

    def channel_axis(self, module: nn.Linear) -> int:
        return -1

    def plain(self, module: nn.Linear) -> bool:
        return type(module).forward is nn.Linear.forward

    def filters(self, module: nn.Linear) -> Tensor:
        return doubled(weight_of(module))

    def reading(self, module: nn.Linear) -> Tensor:
        # Summed as for a convolution of one block: another order would round differently.
        return doubled(weight_of(module)).unsqueeze(0).square().sum((1,)).flatten()

    def masked(self, module: nn.Linear, gone: Tensor) -> Tensor:
        weight = module.weight.detach().clone()
        weight[:, gone.to(weight.device)] = 0
        return weight
