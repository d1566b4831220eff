"""Top-1 accuracy over a loader, in all and by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cosep.data.batches import pair_of
from cosep.errors import DataError
from cosep.models.modes import device_of, evaluating, logits_of


@dataclass(frozen=True)
class Score:
    """How many samples of each class there were, and how many of them were told right."""

    right: tuple[int, ...]
    seen: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """The share of all samples, in [0, 1]."""
        return sum(self.right) / sum(self.seen)

    @property
    def by_class(self) -> tuple[float | None, ...]:
        """The share of each class's samples; None for a class without any."""
        return tuple(right / seen if seen else None for right, seen in zip(self.right, self.seen, strict=True))


def accuracy(model: nn.Module, batches: Iterable[Any], *, on_batch: Callable[[int], None] | None = None) -> float:
    """The share of samples whose largest score is their label, in [0, 1]; batches are pairs (inputs, labels).

    `on_batch` is told how many samples are done. A row of scores with a NaN counts as wrong, never as its arg max.
    """
    return score(model, batches, on_batch=on_batch).accuracy


def score(model: nn.Module, batches: Iterable[Any], *, on_batch: Callable[[int], None] | None = None) -> Score:
    """As `accuracy`, counted by class in the same pass."""
    device = device_of(model)
    counts: Tensor | None = None  # (2, classes): right, seen
    done = 0
    with evaluating(model):
        for number, batch in enumerate(batches):
            inputs, labels = _checked(batch, number)
            logits = logits_of(model, inputs.to(device))
            labels = labels.to(device)
            _check_labels(labels, logits, number)
            right = (logits.argmax(1) == labels) & ~logits.isnan().any(1)
            if counts is None:
                counts = torch.zeros(2, logits.shape[1], dtype=torch.int64, device=device)
            counts[1].index_add_(0, labels.long(), torch.ones_like(labels, dtype=torch.int64))
            counts[0].index_add_(0, labels.long(), right.long())
            done += len(labels)
            if on_batch is not None:
                on_batch(done)
    if counts is None or done == 0:
        raise DataError(
            "the loader gave no samples, so there is no accuracy. Check its data set, its filters and whether "
            "`drop_last` drops its only batch; an iterator that was already used up must be made anew."
        )
    right_of, seen_of = counts.tolist()
    return Score(tuple(right_of), tuple(seen_of))


def _checked(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    inputs, labels = pair_of(batch, f"batch {number} of the loader")
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(
            f"the labels of batch {number} are {labels.dtype} of shape {tuple(labels.shape)}; class numbers are "
            "needed: integers of shape (batch,). For one-hot or soft labels pass `labels.argmax(1)`."
        )
    if len(inputs) != len(labels):
        raise DataError(f"batch {number} has {len(inputs)} inputs and {len(labels)} labels; they must be as many.")
    return inputs, labels


def _check_labels(labels: Tensor, logits: Tensor, number: int) -> None:
    if len(logits) != len(labels):
        raise DataError(f"batch {number} has {len(labels)} samples and the model gave {len(logits)} rows of scores.")
    if len(labels) == 0:
        return
    low, high, classes = int(labels.min()), int(labels.max()), logits.shape[1]
    if low < 0 or high >= classes:
        raise DataError(
            f"batch {number} has the label {low if low < 0 else high}, but the model has {classes} outputs: labels "
            f"must lie in 0 ... {classes - 1}. Use the data set the model was trained for, or renumber its classes."
        )
