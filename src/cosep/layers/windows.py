"""torchvision's attention in shifted windows (Swin), written out so that heads can be cut.

There it is one function that takes the width of its input for that of its heads, too. Same numbers, same tensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_SWIN = "torchvision.models.swin_transformer"
_FAR = -100.0  # added to the attention between tokens that only a shift has brought into one window


def is_torchvision_window(module: nn.Module) -> bool:
    """Whether a module is torchvision's own attention in windows, of version 1 or 2."""
    kind = type(module)
    return kind.__module__ == _SWIN and kind.__name__ in ("ShiftedWindowAttention", "ShiftedWindowAttentionV2")


class _Keyless(nn.Linear):
    """Queries, keys and values of version 2: whatever their bias says, keys have none."""

    def __init__(self, former: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(former.__dict__)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.bias.chunk(3)
        return F.linear(x, self.weight, torch.cat((query, torch.zeros_like(key), value)))


class WindowAttention(nn.Module):
    """Attention within windows of (batch, height, width, channels), which may be shifted."""

    qkv: nn.Linear
    proj: nn.Linear
    num_heads: int
    window_size: list[int]
    shift_size: list[int]
    attention_dropout: float
    dropout: float

    def __init__(self, former: Any) -> None:
        super().__init__()
        self.__dict__.update(former.__dict__)
        if hasattr(former, "logit_scale") and former.qkv.bias is not None:
            self._modules = {**self._modules, "qkv": _Keyless(former.qkv)}
        self.positions = type(former).get_relative_position_bias  # a bias for every head and pair of tokens

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        down, across = self.window_size
        x = F.pad(x, (0, 0, 0, -width % across, 0, -height % down))
        padded = (x.shape[1], x.shape[2])
        shift = [
            0 if window >= size else s for window, size, s in zip((down, across), padded, self.shift_size, strict=True)
        ]
        if any(shift):
            x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        rows, columns = padded[0] // down, padded[1] // across
        x = x.view(-1, rows, down, columns, across, x.shape[-1]).transpose(2, 3)
        x = self.attend(x.reshape(-1, down * across, x.shape[-1]), padded, shift)
        x = x.view(-1, rows, columns, down, across, x.shape[-1]).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if any(shift):
            x = torch.roll(x, (shift[0], shift[1]), (1, 2))
        return x[:, :height, :width].contiguous()

    def attend(self, x: Tensor, padded: tuple[int, int], shift: list[int]) -> Tensor:
        """Windows of tokens (images * windows, tokens, channels), each by itself."""
        scale = getattr(self, "logit_scale", None)
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if scale is None:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        else:
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
            scores = scores * torch.clamp(scale, max=math.log(100.0)).exp()
        scores = scores + self.positions(self)
        if any(shift):
            far = self._far(padded, shift, scores)
            scores = (scores.unflatten(0, (-1, len(far))) + far.unsqueeze(1)).flatten(0, 1)
        attention = F.dropout(torch.softmax(scores, dim=-1), self.attention_dropout, self.training)
        return F.dropout(self.proj((attention @ v).transpose(1, 2).flatten(2)), self.dropout, self.training)

    def _far(self, padded: tuple[int, int], shift: list[int], like: Tensor) -> Tensor:
        """What is added to scores in shifted windows: (windows, tokens, tokens)."""
        regions = []
        for size, window, by in zip(padded, self.window_size, shift, strict=True):
            place = torch.arange(size, device=like.device)
            regions.append((place >= size - window).long() + (place >= size - by) if by else torch.zeros_like(place))
        region = 3 * regions[0].unsqueeze(1) + regions[1]
        down, across = self.window_size
        region = region.unflatten(1, (-1, across)).unflatten(0, (-1, down)).transpose(1, 2).reshape(-1, down * across)
        apart = region.unsqueeze(1) != region.unsqueeze(2)
        return torch.zeros_like(apart, dtype=like.dtype).masked_fill(apart, _FAR)
