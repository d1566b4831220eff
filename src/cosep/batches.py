"""The one form of data that every stage takes: batches that are pairs (inputs, labels)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cosep.errors import DataError


def pair_of(batch: Any, where: str) -> tuple[Tensor, Tensor]:
    """The inputs and labels of a batch; `where` it came from is told if it is something else."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    found = type(batch).__name__
    if isinstance(batch, Mapping):
        found += f" with the keys {', '.join(repr(key) for key in list(batch)[:5])}"
    elif isinstance(batch, (tuple, list)):
        found += f" of {len(batch)} ({', '.join(type(part).__name__ for part in batch[:5])})"
    raise DataError(
        f"{where} is a {found}; a pair of tensors (inputs, labels) is needed. "
        "Give the loader a `collate_fn` that returns such pairs."
    )
