"""timm's attention with fewer keys than queries (PVT v2, Twins), written out so that heads can be cut.

There one number, the width of the input, is that of the heads, of the image that a convolution reduces, and of the
result. Same tensors, same numbers; the same bits, too, but for windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class _OfTimm(nn.Module):
    """A module of timm's with all that it holds and another way to compute the same."""

    num_heads: int
    attn_drop: nn.Dropout
    proj: nn.Linear
    proj_drop: nn.Dropout

    def __init__(self, former: Any) -> None:
        super().__init__()
        self.__dict__.update(former.__dict__)

    def heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(..., tokens, parts * heads * size) -> as many of (..., heads, tokens, size)."""
        return tuple(part.transpose(-2, -3) for part in x.unflatten(-1, (parts, self.num_heads, -1)).unbind(-3))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention, with the heads behind one another again: (..., tokens, channels)."""
        dropout = self.attn_drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return mixed.transpose(-2, -3).flatten(-2)

    def output(self, mixed: Tensor) -> Tensor:
        result: Tensor = self.proj_drop(self.proj(mixed))
        return result


class ReducedAttention(_OfTimm):
    """Queries of all tokens, keys and values of a smaller image: of (batch, tokens, channels) and (height, width)."""

    q: nn.Linear
    kv: nn.Linear
    sr: nn.Module | None  # what makes the image smaller
    norm: nn.Module

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        (query,) = self.heads(self.q(x), 1)
        key, value = self.heads(self.kv(self.reduced(x, size)), 2)
        return self.output(self.attend(query, key, value))

    def reduced(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if self.sr is None:
            return x
        image = x.transpose(1, 2).unflatten(2, tuple(size))
        pool, last = (getattr(self, name, None) for name in ("pool", "act"))  # of PVT's linear attention
        image = image if pool is None else pool(image)
        fewer: Tensor = self.norm(self.sr(image).flatten(2).transpose(1, 2))
        return fewer if pool is None or last is None else last(fewer)


class LocalAttention(_OfTimm):
    """Attention within windows: of (batch, tokens, channels) and (height, width)."""

    qkv: nn.Linear
    ws: int

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        height, width = size
        side = self.ws
        x = F.pad(x.unflatten(1, (height, width)), (0, 0, 0, -width % side, 0, -height % side))
        windows = x.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)
        rows, columns = windows.shape[1:3]
        # Windows as images of their own, though timm has an axis for them: attention of five axes has no form in ONNX.
        # torch computes it by another kernel, so that the last bits may differ.
        query, key, value = self.heads(self.qkv(windows.flatten(3, 4).flatten(0, 2)), 3)
        mixed = self.attend(query, key, value).unflatten(1, (side, side)).unflatten(0, (-1, rows, columns))
        whole = mixed.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return self.output(whole[:, :height, :width].flatten(1, 2))


_WRITTEN: dict[tuple[str, str], Callable[[Any], nn.Module]] = {
    ("timm.models.pvt_v2", "Attention"): ReducedAttention,
    ("timm.models.twins", "GlobalSubSampleAttn"): ReducedAttention,
    ("timm.models.twins", "LocallyGroupedAttn"): LocalAttention,
}


def timm_written(module: nn.Module) -> Callable[[Any], nn.Module] | None:
    """What writes out an attention of timm's; None for any other module."""
    return _WRITTEN.get((type(module).__module__, type(module).__name__))
