"""Criteria that look at feature maps: HRank and CHIP. Torch-Pruning has neither."""

from __future__ import annotations

import torch
from torch import Tensor

from cosep.errors import ConfigError

BLOCK_NUMBERS = 8_000_000  # of float64 that CHIP works on at once: 64 MB


def hrank(maps: Tensor) -> Tensor:
    """The mean rank of each channel's map: (images, channels, height, width) -> (channels,); Lin et al. 2020."""
    return torch.linalg.matrix_rank(_checked("hrank", maps)).double().mean(0)


def chip(maps: Tensor) -> Tensor:
    """How much nuclear norm an image's feature maps lose without each channel: (images, channels, height, width) ->
    (channels,), the mean over images; a channel that the others can replace loses little (Sui et al. 2021)."""
    rows = _checked("chip", maps).flatten(2)  # (images, channels, positions)
    return torch.stack([_nuclear_norm_lost(image) for image in rows]).mean(0).cpu()


def _nuclear_norm_lost(rows: Tensor) -> Tensor:
    """What the nuclear norm of a matrix (channels, positions) loses without each of its rows: (channels,)."""
    channels, positions = rows.shape
    # Singular values are the roots of the eigenvalues of either Gram matrix; the smaller one is taken.
    by_position = positions < channels
    gram = rows.T @ rows if by_position else rows @ rows.T
    whole = _nuclear(gram)
    lost = []
    for some in torch.arange(channels, device=rows.device).split(max(1, BLOCK_NUMBERS // len(gram) ** 2)):
        if by_position:
            without = gram - rows[some].unsqueeze(2) * rows[some].unsqueeze(1)
        else:
            without = gram.repeat(len(some), 1, 1)
            each = torch.arange(len(some), device=rows.device)
            without[each, some, :] = without[each, :, some] = 0
        lost.append(whole - _nuclear(without))
    return torch.cat(lost)


def _nuclear(grams: Tensor) -> Tensor:
    """The nuclear norms (...) of matrices, from their Gram matrices (..., rows, rows)."""
    return torch.linalg.eigvalsh(grams).clamp(min=0).sqrt().sum(-1)


def _checked(name: str, maps: Tensor) -> Tensor:
    if maps.ndim != 4:
        raise ConfigError(
            f"{name} needs feature maps (images, channels, height, width), and this layer gives {tuple(maps.shape)}. "
            "It is defined for convolutions: leave it out for models whose linear layers are pruned."
        )
    if not bool(maps.isfinite().all()):
        raise ConfigError(f"{name} needs finite feature maps, and this layer gives nan or infinite values.")
    return maps.detach().double()
