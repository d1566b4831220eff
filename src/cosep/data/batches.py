"""The form of data that every stage takes: batches that are pairs (inputs, labels), or inputs where that is enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosep.errors import DataError

# Probabilities that were made in half precision still add up to 1 within this.
_ROUNDING = 1e-2
SMALL_BATCH = 64  # images of a batch that is run step by step: few enough to stay in a processor's cache


def check_loader(loader: object, where: str) -> None:
    """Refuse what does not give the same batches again and again; `where` says which argument it is."""
    from torch.utils.data import Dataset, IterableDataset

    if isinstance(loader, Tensor) or (not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__")):
        raise DataError(
            f"{where} is a {type(loader).__name__}; batches of (inputs, labels) are needed. "
            "Give a DataLoader or a list of such pairs."
        )
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            f"{where} is a data set ({type(loader).__name__}), which gives single images; batches are needed. "
            f"Give DataLoader({where}, batch_size=128)."
        )
    if hasattr(loader, "__next__") and not hasattr(loader, "__len__"):
        raise DataError(
            f"{where} is a {type(loader).__name__}, which is used up after one pass, and the data are needed several "
            "times. Give a DataLoader, a list of batches, or an object whose __iter__ starts anew."
        )


def even_batches(batches: Iterable[Tensor]) -> list[Tensor]:
    """The same images in small batches of one size, but for the last: each size has to be traced anew, with a pass.

    No batch is larger than the largest given; images of several sizes stay as they are.
    """
    given = [x for x in batches if len(x)]
    images = sum(len(x) for x in given)
    if len({x.shape[1:] for x in given}) != 1:
        return given
    most = min(SMALL_BATCH if small_images(given[0].shape) else SMALL_BATCH // 4, max(len(x) for x in given))
    size = next((n for n in range(most, most // 2, -1) if images % n == 0), most)
    if any(len(x) % size for x in given):
        given = [torch.cat(given)]
    return [part for x in given for part in x.split(size)]


def images_between(batches: Iterable[Tensor], first: int, last: int) -> list[Tensor]:
    """The images with the numbers `first` up to `last`, that one not included, in the batches in which they are."""
    found, number = [], 0
    for x in batches:
        found.append(x[max(first - number, 0) : max(last - number, 0)])
        number += len(x)
    return [part for part in found if len(part)]


def small_images(shape: Sequence[int]) -> bool:
    """Whether a batch of this shape holds images of at most 64 x 64."""
    return math.prod(shape[2:]) <= 64 * 64


def pair_of(batch: Any, where: str) -> tuple[Tensor, Tensor]:
    """The inputs and labels of a batch; `where` it came from is told if it is something else.

    Labels may be a tensor, an array or a list of numbers.
    """
    inputs, labels = inputs_and_labels(batch, where)
    if labels is not None:
        return inputs, labels
    if isinstance(batch, Tensor) or len(batch) == 1 or (len(batch) == 2 and batch[1] is None):
        raise DataError(
            f"{where} has inputs without labels, which are needed here: accuracies, class statistics and training "
            "towards labels go by them. Give pairs (inputs, labels), or leave out what needs labels."
        )
    raise _no_pair(batch, where)


def inputs_and_labels(batch: Any, where: str) -> tuple[Tensor, Tensor | None]:
    """The inputs of a batch, and its labels where it has any: a tensor, or a tuple that begins with one, has none."""
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, (tuple, list)) or not batch or not isinstance(batch[0], Tensor):
        raise _no_pair(batch, where)
    if batch[0].ndim == 0:
        raise DataError(f"the inputs of {where} are a single number; they must have the shape (batch, ...).")
    if len(batch) != 2 or batch[1] is None:
        return batch[0], None
    labels = _numbers(batch[1])
    if labels is None:  # words, or None among numbers: labels that somebody meant to give
        raise _no_pair(batch, where)
    return batch[0], labels


def _no_pair(batch: Any, where: str) -> DataError:
    """The refusal of a batch that is something else."""
    found = type(batch).__name__
    if isinstance(batch, Mapping):
        found += f" with the keys {', '.join(repr(key) for key in list(batch)[:5])}"
    elif isinstance(batch, (tuple, list)):
        found += f" of {len(batch)} ({', '.join(type(part).__name__ for part in batch[:5])})"
    return DataError(
        f"{where} is a {found}; a pair of tensors (inputs, labels) is needed. "
        "Give the loader a `collate_fn` that returns such pairs."
    )


def _numbers(values: object) -> Tensor | None:
    """A tensor, array or list of numbers as a tensor; None for anything else."""
    if isinstance(values, Tensor):
        return values
    try:
        # Torch warns of read-only arrays and refuses reversed ones; such are copied.
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError):
        return None


def _whole(labels: Tensor) -> bool:
    return not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)


def check_targets(labels: Tensor, images: int, classes: int, where: str, *, soft: bool = True) -> None:
    """Refuse labels that are neither class numbers (images,) nor, with `soft`, probabilities (images, classes).

    Cross-entropy itself would take several classes an image for probabilities, and -100 for "leave this image out".
    """
    if soft and labels.is_floating_point() and labels.shape == (images, classes):
        rows = labels.double()
        if bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() <= _ROUNDING).all()):
            return
        raise DataError(
            f"the labels of {where} are rows of {classes} numbers that are no probabilities: they must be at least 0 "
            "and add up to 1. An image of several classes (multi-label) is not supported; give each image one class."
        )
    if labels.ndim != 1 or len(labels) != images or not _whole(labels):
        wanted = f"class numbers, integers of shape ({images},)"
        wanted += f", or probabilities of shape ({images}, {classes})" if soft else ""
        raise DataError(
            f"the labels of {where} are {labels.dtype} of shape {tuple(labels.shape)} for {images} images; needed are "
            f"{wanted}. Use labels.reshape(-1), labels.long() or labels.argmax(1), whichever is meant."
        )
    low, high = (int(edge) for edge in torch.aminmax(labels)) if images else (0, 0)
    if low < 0 or high >= classes:
        raise DataError(
            f"{where} has the label {low if low < 0 else high}, but the model has {classes} outputs: labels must lie "
            f"in 0 ... {classes - 1}. Renumber the classes, and leave out images that are marked as unlabelled."
        )
