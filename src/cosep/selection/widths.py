"""Selections changed afterwards, because a width was asked for: each change is noted in the record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from torch import Tensor

from cosep.config import SelectConfig
from cosep.errors import ConfigError
from cosep.records import Selection, Space
from cosep.selection.distances import as_distances
from cosep.selection.representatives import checked_ranking
from cosep.selection.rules.protocol import WIDTH_GIVEN, width_note
from cosep.selection.sweep import Sweep, mass_of


def with_width(
    selection: Selection,
    space: Space | Tensor,
    width: int,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    config: SelectConfig | None = None,
    seed: int = 0,
) -> Selection:
    """The selection that another k on the same curve would have given; the evidence of the curve is kept."""
    config = config or SelectConfig()
    distances = as_distances(space)
    channels = selection.channels
    if not 1 <= width <= channels:
        raise ConfigError(
            f"the width {width} was asked for; the layer has {channels} channels: ask for 1 to {channels}."
        )
    if len(distances) != channels:
        raise ConfigError(f"the selection is of {channels} channels and the distances are of {len(distances)}.")
    chosen = Sweep(distances, config, seed, weights, scores, mass_of(channels, weights, config)).at(width)
    return replace(
        selection,
        kept=chosen.kept,
        reason=WIDTH_GIVEN,
        k=chosen.k,
        clusters=chosen.clusters,
        medoids=chosen.medoids,
        representatives=chosen.representatives,
        notes=(*selection.notes, width_note(width, len(selection.kept), selection.reason)),
    )


def round_up(selection: Selection, multiple: int, scores: Tensor) -> Selection:
    """Keep more channels until their number is a multiple, or all are kept.

    Each further channel comes from the cluster that has lost most of its channels so far, the lowest of equals, and is
    the best of those by `scores` (channels,).
    """
    if multiple < 1:
        raise ConfigError(f"the multiple is {multiple}; it must be at least 1, and 1 changes nothing.")
    ranking = checked_ranking("scores", scores, selection.channels)
    before = len(selection.kept)
    wanted = min(-(-before // multiple) * multiple, selection.channels)
    if wanted == before:
        return selection
    # A selection without clusters (another criterion's) is one cluster: the next-best channels of all.
    clusters = selection.clusters or (0,) * selection.channels
    kept, removed = set(selection.kept), set(selection.removed)
    while len(kept) < wanted:
        lost = Counter(clusters[channel] for channel in removed)
        cluster = min(lost, key=lambda c: (-lost[c], c))
        best = _best([channel for channel in removed if clusters[channel] == cluster], ranking)
        kept.add(best)
        removed.discard(best)
    note = f"rounded up from {before} to {wanted} channels" + (
        f", a multiple of {multiple}" if wanted % multiple == 0 else ""
    )
    return replace(selection, kept=tuple(sorted(kept)), notes=(*selection.notes, note))


def balance(selection: Selection, blocks: int, scores: Tensor) -> Selection:
    """Keep equally many channels in each of so many equal consecutive blocks, at least as many in all as before.

    Each block keeps the rounded-up average: of its chosen channels the best by `scores` (channels,), and where those
    are too few the next-best of the others. Only adding would keep nearly everything where blocks are many and small.
    """
    channels = selection.channels
    if blocks < 1 or channels % blocks:
        raise ConfigError(f"{channels} channels cannot be split into {blocks} equal blocks.")
    ranking = checked_ranking("scores", scores, channels)
    size, chosen = channels // blocks, set(selection.kept)
    each = -(-len(chosen) // blocks)
    kept: list[int] = []
    for start in range(0, channels, size):
        block = sorted(range(start, start + size), key=lambda c: (c not in chosen, -ranking[c], c))
        kept += block[:each]
    if set(kept) == chosen:
        return selection
    added, dropped = len(set(kept) - chosen), len(chosen - set(kept))
    note = f"balanced to {each} channels in each of {blocks} blocks: {added} added, {dropped} dropped"
    return replace(selection, kept=tuple(sorted(kept)), notes=(*selection.notes, note))


def _best(members: list[int], ranking: np.ndarray) -> int:
    return min(members, key=lambda channel: (-ranking[channel], channel))
