"""torch's MultiheadAttention, written out in linear layers of which heads can be cut.

Its three projections are one parameter of no layer, and in evaluation it is one operation in which nothing can be
followed. So wherever a network is followed or cut, this stands in its place: same numbers, same call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cosep.layers.reduced import timm_written
from cosep.layers.windows import WindowAttention, is_torchvision_window


class PlainAttention(nn.Module):
    """Attention with a linear layer each for queries, keys, values and outputs; called as `nn.MultiheadAttention`."""

    # What torch's own Transformer layers look at before they take a way of their own past this module.
    in_proj_weight = in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, former: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = former.num_heads, former.head_dim
        self.dropout, self.batch_first = former.dropout, former.batch_first
        weights = _parts(former.in_proj_weight) or (former.q_proj_weight, former.k_proj_weight, former.v_proj_weight)
        biases = _parts(former.in_proj_bias) or (None, None, None)
        self.query, self.key, self.value = (_linear(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = _linear(former.out_proj.weight, former.out_proj.bias)
        self.train(former.training)

    @property
    def embed_dim(self) -> int:
        return self.out_proj.out_features

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x) for x in (self.query(query), self.key(key), self.value(value)))
        mask = self._mask(key_padding_mask, attn_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout, dropout > 0)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, heads * size) -> (batch, heads, tokens, size)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """Both masks as numbers to add to (batch, heads, tokens, keys); of bool, True is what is not attended to."""
        masks = []
        if padding is not None:
            masks.append(_added(padding, query).reshape(len(query) if padding.ndim > 1 else 1, 1, 1, -1))
        if mask is not None:
            added = _added(mask, query)
            masks.append(added if added.ndim == 2 else added.unflatten(0, (-1, self.num_heads)))
        return sum(masks[1:], masks[0]) if masks else None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def _parts(tensor: Tensor | None) -> tuple[Tensor, ...]:
    """The parts of a joint parameter for queries, keys and values; () where there is none."""
    return () if tensor is None else tuple(_kept(part.detach().clone(), tensor) for part in tensor.chunk(3))


def _kept(part: Tensor, whole: Tensor) -> nn.Parameter:
    return nn.Parameter(part, requires_grad=whole.requires_grad)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer of these very parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.register_parameter("weight", weight)  # type: ignore[arg-type]
    layer.register_parameter("bias", bias)  # type: ignore[arg-type]
    return layer


def written_out(model: nn.Module) -> nn.Module:
    """The model, or, where it has attention to be written out, a copy with that and with the same other tensors."""
    if not any(_plain(module) for module in model.modules()):
        return model
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, memo)
    made: dict[int, nn.Module] = {}
    if plain := _plain(model):
        return plain(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if plain := _plain(child):
                made.setdefault(id(child), plain(child))
                parent._modules[name] = made[id(child)]
    return model


def _plain(module: nn.Module) -> Callable[[Any], nn.Module] | None:
    """What writes a module out; None where it stays as it is."""
    if _hooked(module):
        return None
    if _replaceable(module):
        return PlainAttention
    return WindowAttention if is_torchvision_window(module) else timm_written(module)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _replaceable(module: nn.Module) -> bool:
    """Whether a module is torch's own attention, with nothing about it that the plain one does not have."""
    if type(module) is not nn.MultiheadAttention:
        return False
    return module.bias_k is None and module.bias_v is None and not module.add_zero_attn
