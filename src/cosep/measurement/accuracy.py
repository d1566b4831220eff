"""Top-1 accuracy over a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cosep.data.batches import pair_of
from cosep.errors import DataError
from cosep.models.modes import device_of, evaluating, logits_of


def accuracy(model: nn.Module, batches: Iterable[Any], *, on_batch: Callable[[int], None] | None = None) -> float:
    """The share of samples whose largest score is their label, in [0, 1]; batches are pairs (inputs, labels).

    `on_batch` is told how many samples are done. A row of scores with a NaN counts as wrong, never as its arg max.
    """
    device = device_of(model)
    correct, seen = torch.zeros((), dtype=torch.int64, device=device), 0
    with evaluating(model):
        for number, batch in enumerate(batches):
            inputs, labels = _checked(batch, number)
            logits = logits_of(model, inputs.to(device))
            labels = labels.to(device)
            _check_labels(labels, logits, number)
            right = (logits.argmax(1) == labels) & ~logits.isnan().any(1)
            correct += right.sum()
            seen += len(labels)
            if on_batch is not None:
                on_batch(seen)
    if seen == 0:
        raise DataError(
            "the loader gave no samples, so there is no accuracy. Check its data set, its filters and whether "
            "`drop_last` drops its only batch; an iterator that was already used up must be made anew."
        )
    return int(correct) / seen


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
