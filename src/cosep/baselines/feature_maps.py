"""Criteria that look at feature maps: HRank and CHIP. Torch-Pruning has neither."""

from __future__ import annotations

import torch
from torch import Tensor

from cosep.errors import ConfigError


def hrank(maps: Tensor) -> Tensor:
    """The mean rank of each channel's map: (images, channels, height, width) -> (channels,); Lin et al. 2020."""
    return torch.linalg.matrix_rank(_checked("hrank", maps)).double().mean(0)


def chip(maps: Tensor) -> Tensor:
    """How much nuclear norm an image's feature maps lose without each channel: (images, channels, height, width) ->
    (channels,), the mean over images; a channel that the others can replace loses little (Sui et al. 2021)."""
    rows = _checked("chip", maps).flatten(2)  # (images, channels, positions)
    channels = rows.shape[1]
    # Singular values are those of the Gram matrix, squared; without a channel, its row and column are zero.
    total = torch.zeros(channels, dtype=torch.float64)
    for image in rows:
        gram = image @ image.T
        mask = 1.0 - torch.eye(channels, dtype=gram.dtype, device=gram.device)
        without = gram * mask.unsqueeze(1) * mask.unsqueeze(2)
        norms = _nuclear(torch.cat([gram.unsqueeze(0), without]))
        total += (norms[0] - norms[1:]).cpu()
    return total / len(rows)


def _nuclear(grams: Tensor) -> Tensor:
    """The nuclear norms (n,) of matrices, from their Gram matrices (n, rows, rows)."""
    return torch.linalg.eigvalsh(grams).clamp(min=0).sqrt().sum(-1)


def _checked(name: str, maps: Tensor) -> Tensor:
    if maps.ndim != 4:
        raise ConfigError(
            f"{name} needs feature maps (images, channels, height, width), and this layer gives {tuple(maps.shape)}. "
            "It is defined for convolutions: leave it out for models whose linear layers are pruned."
        )
    return maps.detach().double()
