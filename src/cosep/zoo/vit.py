"""A small Vision Transformer (Dosovitskiy et al., 2021) for CIFAR, of plain modules.

As in Beyer et al. (2022, arXiv 2205.01580), the mean over the tokens is classified and there is no class token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention with a linear layer each for queries, keys and values: (n, tokens, width) -> the same.

    The size of a head is fixed and their number follows from the projections, so that heads can be cut out of these.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(n, tokens, heads * size) -> (n, heads, tokens, size)."""
        return x.unflatten(2, (-1, self.head_size)).transpose(1, 2)


class Block(nn.Module):
    """Attention, then two linear layers on each token, both added to the stream: (n, tokens, width) -> the same."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class CifarViT(nn.Module):
    """Tokens of 4 x 4 pixels through `layers` blocks: (n, 3, 32, 32) -> logits (n, classes)."""

    def __init__(
        self, layers: int = 6, *, width: int = 192, heads: int = 3, classes: int = 10, size: int = 32, patch: int = 4
    ) -> None:
        super().__init__()
        side = size // patch
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, width, side, side))
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        positions: Tensor = self.positions
        if x.shape[2:] != positions.shape[2:]:  # images of another size, as in a training that begins with small ones
            positions = F.interpolate(positions, x.shape[2:], mode="bilinear", align_corners=False)
        x = self.blocks((x + positions).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))
