"""Criteria that look at feature maps: HRank and CHIP. Torch-Pruning has neither."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cosep.criteria.view import GroupView
from cosep.errors import ConfigError
from cosep.groups.numbering import output_columns
from cosep.models.modes import evaluating
from cosep.observation.taps import tapped

HRANK_IMAGES = 500  # as in its paper
CHIP_IMAGES = 640  # the five batches of 128 of its authors' code
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


def by_hrank(view: GroupView) -> Tensor:
    """The mean rank of each channel's feature maps."""
    return _by_maps(view, "hrank", hrank, HRANK_IMAGES)


def by_chip(view: GroupView) -> Tensor:
    """How much of the feature maps' nuclear norm each channel carries alone."""
    return _by_maps(view, "chip", chip, CHIP_IMAGES)


def _by_maps(view: GroupView, name: str, criterion: Callable[[Tensor], Tensor], images: int) -> Tensor:
    """The mean of a criterion over images; one pass serves all groups."""

    def gather() -> dict[str, Tensor]:
        groups, layout, seen = view.network.groups, view.layout, 0
        total = {group.name: torch.zeros(group.width, dtype=torch.float64) for group in groups}
        producers = list(dict.fromkeys(name for group in groups for name in group.producers))
        with evaluating(view.model), tapped(view.model, producers, "activation", pooled=False) as maps:
            for inputs, _ in view.images(images):
                view.model(inputs)
                seen += len(inputs)
                for group in groups:
                    for producer in group.producers:
                        for columns in output_columns(group, producer, layout):
                            total[group.name] += len(inputs) * criterion(maps[producer][:, columns]).cpu()
        return {group: sums / seen for group, sums in total.items()}

    return view.network.once(name, gather)[view.group.name]
