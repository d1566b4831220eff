"""Images in memory: batches are cut out, augmented and normalised as whole tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cosep.data.loader import Batch
from cosep.data.order import batches_of, chance, epoch_order
from cosep.errors import DataError


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """Images as bytes with their labels, and how they become inputs: (pixel / 255 - mean) / std per channel."""

    images: Tensor  # (n, channels, height, width) uint8
    labels: Tensor  # (n,) int64
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int = 4  # augmentation: a window of the image with this black border, ...
    flip: bool = True  # ... mirrored half of the time

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise DataError(
                f"images: {self.images.dtype} {tuple(self.images.shape)}; needed: uint8 (n, channels, height, width)."
            )
        if self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{len(self.images)} images have labels of shape {tuple(self.labels.shape)}; each needs one."
            )
        if not len(self.mean) == len(self.std) == self.images.shape[1]:
            raise DataError(
                f"images of {self.images.shape[1]} channels need as many values of mean and std; "
                f"there are {len(self.mean)} and {len(self.std)}."
            )

    def __len__(self) -> int:
        return len(self.images)

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
    ) -> Iterator[Batch]:
        """Yield (input (b, channels, height, width) float32, label (b,) int64) from step `start` of an epoch on."""
        order = epoch_order(
            torch.arange(len(self)) if indices is None else indices, shuffle=shuffle, seed=seed, epoch=epoch
        )
        for step, chosen in batches_of(order, batch_size, start=start, drop_last=drop_last):
            images = self.images.index_select(0, chosen)
            if augment:
                down, right, mirrored = _draw(len(chosen), self.pad, self.flip, chance("augment", seed, epoch, step))
                images = crop(images, down, right, mirrored, self.pad)
            yield self.normalise(images), self.labels[chosen]

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes to inputs: (b, channels, height, width) uint8 -> float32."""
        std = torch.tensor(self.std).view(-1, 1, 1)
        mean = torch.tensor(self.mean).view(-1, 1, 1)
        return images.float().mul_(1 / (255 * std)).sub_(mean / std)


def crop(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor, pad: int) -> Tensor:
    """A window of each padded image, maybe mirrored: (b, c, h, w), offsets (b,) in [0, 2 pad] -> (b, c, h, w)."""
    height, width = images.shape[2:]
    if pad:
        windows = (
            F.pad(images, (pad, pad, pad, pad)).unfold(2, height, 1).unfold(3, width, 1)
        )  # (b, c, 2p+1, 2p+1, h, w)
        images = windows[torch.arange(len(images)), :, down, right]
    rows = mirrored.nonzero().flatten()
    return images.index_copy(0, rows, images.index_select(0, rows).flip(3)) if len(rows) else images


def _draw(count: int, pad: int, flip: bool, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    down, right = torch.randint(0, 2 * pad + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < (0.5 if flip else 0.0)
    return down, right, mirrored
