"""Loaders: epochs of (input, label) batches that can start at any step, over images in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from cosep.config import check_at_least
from cosep.data.order import steps_of, stratified

Batch = tuple[Tensor, Tensor]


class Split(Protocol):
    """Images with labels that can be read in batches."""

    @property
    def labels(self) -> Tensor: ...

    def batches(
        self,
        batch_size: int,
        *,
        indices: Tensor | None = None,
        shuffle: bool = False,
        augment: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
    ) -> Iterator[Batch]: ...


@dataclass
class Loader:
    """Iterates over some images of a split; the batch at a step depends on (seed, epoch, step) and on nothing else."""

    split: Split
    indices: Tensor  # (n,) int64: the images to use
    batch_size: int
    shuffle: bool = False
    augment: bool = False
    drop_last: bool = False
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("seed", self.seed, 0)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return steps_of(len(self.indices), self.batch_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, start_step: int = 0) -> Iterator[Batch]:
        """The batches of the present epoch from a step on; those before it are not read."""
        return self.split.batches(
            self.batch_size,
            indices=self.indices,
            shuffle=self.shuffle,
            augment=self.augment,
            drop_last=self.drop_last,
            seed=self.seed,
            epoch=self.epoch,
            start=start_step,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the augmentation of another epoch; until then every pass is the same."""
        self.epoch = epoch

    @property
    def labels(self) -> Tensor:
        """The labels of the images in use, in the order of `indices`: (n,) int64."""
        return self.split.labels[self.indices]

    def share(self, fraction: float, *, seed: int = 0) -> Loader:
        """A loader of a fixed part of these images, the same fraction of every class."""
        return self.subset(stratified(self.labels, fraction, seed=seed, purpose="share")[1])

    def subset(self, positions: Tensor) -> Loader:
        """A loader of the images at these positions of `indices`."""
        return replace(self, indices=self.indices[positions])

    def plain(self, *, batch_size: int | None = None) -> Loader:
        """The same images in their own order, not augmented, none left out."""
        size = self.batch_size if batch_size is None else batch_size
        return replace(self, shuffle=False, augment=False, drop_last=False, batch_size=size)


def all_of(split: Split) -> Tensor:
    """The indices of every image of a split: (n,) int64."""
    return torch.arange(len(split.labels))
