"""What a training from scratch may do to its images beyond the loader's augmentation: let them grow, or mix them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosep.data.batches import pair_of

LEAST = 16  # pixels: of smaller images nothing could be taken away
STEPS = 5  # sizes from the first to the whole, each for as many updates


class Growing(AbstractContextManager["Growing"]):
    """While it is entered, a model in training mode sees its images smaller: by how much, `done` updates decide.

    It is a hook of the model because the size belongs to the update and not to the data: a training that goes on sets
    `done` and is where it was.
    """

    def __init__(self, model: nn.Module, first: float, updates: int, done: int = 0) -> None:
        self.first, self.updates, self.done = first, updates, done
        self._model = model
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def __enter__(self) -> Growing:
        if self.first < 1:
            self._handle = self._model.register_forward_pre_hook(self._shrink)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle:
            self._handle.remove()

    def share(self) -> float:
        """The side of the images at this update, as a share of the whole."""
        step = min(STEPS * self.done // self.updates, STEPS - 1)
        return self.first + (1 - self.first) * step / (STEPS - 1)

    def _shrink(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        images, share = inputs[0], self.share()
        if not module.training or not isinstance(images, Tensor) or images.ndim != 4 or share == 1:
            return None
        size = [max(round(share * side), min(side, LEAST)) for side in images.shape[2:]]
        exact = images.to(
            torch.promote_types(images.dtype, torch.float32)
        )  # torch has no such filter in half precision
        small = F.interpolate(exact, size, mode="bilinear", align_corners=False, antialias=True)
        return small.to(images.dtype), *inputs[1:]


class Mixed:
    """CutMix (Yun et al., 2019) over a loader: in a share of the batches, each image gets a rectangle of another.

    Labels become probabilities, by the areas. It draws from torch's generator, which the training seeds for every pass.
    """

    def __init__(self, loader: Iterable[Any], share: float, classes: int) -> None:
        self.loader, self.share, self.classes = loader, share, classes

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader the number of the pass, if it wants to know."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader:
            images, labels = pair_of(batch, "a batch of the loader for training")
            chance, area, down, right = torch.rand(4).tolist()
            whole = labels.ndim == 1 and not labels.is_floating_point() and images.ndim == 4
            if chance < self.share and whole:
                yield cutmix(images, F.one_hot(labels.long(), self.classes).float(), area, down, right)
            else:
                yield images, labels


def cutmix(images: Tensor, labels: Tensor, area: float, down: float, right: float) -> tuple[Tensor, Tensor]:
    """A rectangle of this share of the area, from the batch's next image: images (n, c, h, w), probabilities (n, k).

    `down` and `right` in [0, 1) say where between the edges it lies.
    """
    sides = [round(side * area**0.5) for side in images.shape[2:]]
    top, left = (
        int(at * (side - cut + 1)) for at, side, cut in zip((down, right), images.shape[2:], sides, strict=True)
    )
    window = (..., slice(top, top + sides[0]), slice(left, left + sides[1]))
    mixed = images.clone()
    mixed[window] = images.roll(1, 0)[window]
    share = sides[0] * sides[1] / (images.shape[2] * images.shape[3])
    return mixed, (1 - share) * labels + share * labels.roll(1, 0)
