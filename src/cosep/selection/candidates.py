"""What a criterion says of a group: for any k which channels stay, and a curve over k that says how good that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cosep.errors import ConfigError
from cosep.records import Selection


@dataclass(frozen=True, eq=False)
class Candidates:
    """Every choice that a criterion offers for a group. A width rule picks the k, `at` gives the channels."""

    group: str
    channels: int
    choose: Callable[[int], Selection]  # k -> the k channels that stay, with what led to them
    ranking: Tensor  # (channels,): by which rounding and balancing add or drop channels
    ks: tuple[int, ...] = ()  # where the curve is known
    curve: tuple[float, ...] = ()  # how good the choice of each of these k is; higher is better
    counts: tuple[float, ...] | None = None  # how many values each point of the curve is the mean of
    losses: tuple[float, ...] = ()  # what the choice of each k loses, where the criterion knows it
    preferred: int | None = None  # the width that the criterion itself asks for, where it does
    spare: int = 0  # how many channels can go and nothing is lost, where the criterion knows of such
    why_whole: str = ""  # why there is no curve, in words
    notes: tuple[str, ...] = ()  # what the report says of the data behind them, whatever the width
    evidence: Any = None  # what the report shows beyond the selection

    @property
    def needed(self) -> int:
        """The channels that are not to spare."""
        return self.channels - self.spare

    @property
    def half(self) -> int:
        """The width at which the damage of groups is compared."""
        return max(1, self.needed // 2)

    def at(self, k: int) -> Selection:
        """The selection of k channels, with the curve; the reason and the fit are the width rule's to say."""
        if not 1 <= k <= self.channels:
            raise ConfigError(
                f"the width {k} was asked for; the layer has {self.channels} channels: ask for 1 to {self.channels}."
            )
        found = self.choose(k)
        if len(found.kept) != k or found.channels != self.channels:
            raise ConfigError(
                f"the criterion of {self.group} was asked for {k} of {self.channels} channels and gave "
                f"{len(found.kept)} of {found.channels}."
            )
        return replace(found, candidates=self.ks, scores=self.curve, losses=self.losses) if self.ks else found


def ranked(
    group: str, scores: Tensor, *, blocks: int = 1, name: str = "scores", ranking: Tensor | None = None
) -> Candidates:
    """Candidates from one number a channel (channels,): the k largest stay, equally many in each block where they can.

    The curve is the share of all scores, counted from the smallest, that the kept channels hold.
    """
    scores = torch.as_tensor(scores).detach().double().cpu()
    if scores.ndim != 1:
        raise ConfigError(
            f"{name} gives scores of shape {tuple(scores.shape)} in {group}; one number a channel is due."
        )
    if not bool(scores.isfinite().all()):
        raise ConfigError(f"{name} gives scores that are not finite in {group}. Leave {name} out.")
    width = len(scores)
    above = scores - scores.min() if width and scores.min() < 0 else scores
    held = above.sort(descending=True).values.cumsum(0)
    whole = float(held[-1]) if width else 0.0
    ks = tuple(range(2, width))
    curve = tuple(float(held[k - 1]) / whole if whole > 0 else k / width for k in ks)
    return Candidates(
        group=group,
        channels=width,
        choose=lambda k: best_channels(scores, k, blocks=blocks if k % blocks == 0 else 1, reason=name),
        ranking=scores if ranking is None else ranking,
        ks=ks,
        curve=curve,
    )


# What a reader of a table should know of a choice by scores.
TIED = "the last that stay and the first that go have the same score: the lower number decided"


def best_channels(scores: Tensor, kept: int, *, blocks: int = 1, reason: str) -> Selection:
    """The `kept` channels with the largest `scores` (width,), of equals the first; equally many in each block."""
    width = len(scores)
    if not 1 <= kept <= width or width % blocks or kept % blocks:
        raise ConfigError(f"{kept} of {width} channels cannot be kept, equally many in each of {blocks} equal blocks.")
    order = scores.reshape(blocks, -1).argsort(dim=1, descending=True, stable=True)[:, : kept // blocks]
    chosen = order + torch.arange(blocks).unsqueeze(1) * (width // blocks)
    found = Selection(channels=width, kept=tuple(sorted(chosen.flatten().tolist())), reason=reason)
    return replace(found, notes=(TIED,)) if _tied(scores, found, blocks) else found


def _tied(scores: Tensor, found: Selection, blocks: int) -> bool:
    """Whether the cut runs through equal scores in a block, so that the criterion did not decide."""
    stays = torch.zeros(len(scores), dtype=torch.bool)
    stays[list(found.kept)] = True
    for block, kept in zip(scores.cpu().chunk(blocks), stays.chunk(blocks), strict=True):
        if not bool(kept.all()) and bool(block[kept].min() == block[~kept].max()):
            return True
    return False


def fixed(group: str, chosen: Selection, ranking: Tensor) -> Candidates:
    """Candidates around one choice that somebody made: it at its own width, else its best or its next-best channels."""

    def choose(k: int) -> Selection:
        if k == len(chosen.kept):
            return chosen
        kept = set(chosen.kept)
        order = sorted(range(chosen.channels), key=lambda c: (c not in kept, -float(ranking[c]), c))
        return Selection(chosen.channels, tuple(sorted(order[:k])), chosen.reason, notes=chosen.notes)

    return Candidates(group, chosen.channels, choose, ranking, preferred=len(chosen.kept))
