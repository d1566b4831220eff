"""Linear layers: channels are last, behind a flatten or in tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cosep.layers.kind import MixingKind, Sampler, TensorCut, View, doubled, own_forward, weight_of
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

    def why_unreadable(self, module: nn.Linear) -> str:
        return own_forward(module, nn.Linear)

    def views(self, module: nn.Linear, channels: Tensor, positions: Tensor) -> tuple[View, ...]:
        return (View(torch.arange(module.out_features), positions, channels, 0, positions.shape[1]),)

    def read_weight(self, module: nn.Linear, view: View) -> Tensor:
        return doubled(weight_of(module))[:, view.inputs.flatten()].unflatten(1, tuple(view.inputs.shape))

    @torch.no_grad()
    def write_weight(self, module: nn.Linear, view: View, values: Tensor) -> None:
        weight = weight_of(module)
        weight[:, view.inputs.to(weight.device).flatten()] = values.to(weight).flatten(1)

    def read_patches(self, module: nn.Linear, views: tuple[View, ...], x: Tensor, sample: Sampler) -> Iterator[Tensor]:
        tokens = x.reshape(1, 1, -1) if x.dim() == 1 else x.reshape(len(x), -1, x.shape[-1])
        if tokens.shape[1] > 1:
            tokens = tokens[:, sample(tokens.shape[1]).to(x.device)]
        for view in views:
            yield tokens[:, :, view.inputs.flatten().to(x.device)].unflatten(2, tuple(view.inputs.shape))
