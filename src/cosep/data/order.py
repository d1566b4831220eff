"""Which image comes when: pure functions of labels, seed, epoch and step, so that a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cosep.errors import ConfigError

_PURPOSES = {"order": 0, "augment": 1, "holdout": 2, "share": 3, "turns": 4}  # one independent stream of chance each


def chance(purpose: Literal["order", "augment", "holdout", "share", "turns"], *numbers: int) -> torch.Generator:
    """A fresh generator that depends on the purpose and the numbers (seed, epoch, step) and on nothing else."""
    entropy = np.random.SeedSequence([_PURPOSES[purpose], *numbers]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(entropy[0]))


def epoch_order(indices: Tensor, *, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """The indices in the order of an epoch: (n,) -> (n,)."""
    return indices[torch.randperm(len(indices), generator=chance("order", seed, epoch))] if shuffle else indices


def class_by_class(labels: Tensor, *, seed: int) -> Tensor:
    """Positions (n,) of all labels (n,) so that the classes take turns: of any beginning, every class has its part.

    A turn has one image of each class that has any left, in a random order; which one is random too. So the first
    images of a set of 1,000 classes hold as many of each, where a plain shuffle would leave some of them nearly empty.
    """
    mixed = torch.randperm(len(labels), generator=chance("turns", seed))
    by_class = mixed[labels[mixed].argsort(stable=True)]
    counts = labels.unique(return_counts=True)[1]
    # The place of each image within its class: its turn. Images of one turn stay as the shuffle had them.
    turn = torch.empty_like(mixed)
    turn[by_class] = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return mixed[turn[mixed].argsort(stable=True)]


def steps_of(count: int, batch_size: int, *, drop_last: bool) -> int:
    """How many batches an epoch of `count` images has."""
    return count // batch_size if drop_last else -(-count // batch_size)


def batches_of(
    order: Tensor, batch_size: int, *, start: int = 0, drop_last: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Yield (step, the indices of its images) from step `start` on."""
    for step in range(start, steps_of(len(order), batch_size, drop_last=drop_last)):
        yield step, order[step * batch_size : (step + 1) * batch_size]


def stratified(
    labels: Tensor, share: float, *, seed: int, purpose: Literal["holdout", "share"]
) -> tuple[Tensor, Tensor]:
    """Disjoint, ascending indices (rest, part) that cover all labels (n,); the part has this share of every class.

    A class of two or more images gives at least one to each side, as long as 0 < share < 1.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"the {purpose} is {share}; it must lie between 0 and 1.")
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    generator = chance(purpose, seed)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        count = round(share * len(members))
        if 0 < share < 1 and len(members) > 1:
            count = min(max(count, 1), len(members) - 1)
        chosen[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()
