"""Training batches as a pure function of (seed, epoch, position), so that a stopped recovery can go on exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cosep.errors import ConfigError


def batch_count(loader: Iterable[Any]) -> int:
    """How many batches one pass gives; a loader without a length is counted by one pass."""
    try:
        count = len(loader)  # type: ignore[arg-type]
    except TypeError:
        count = sum(1 for _ in loader)
    if count < 1:
        raise ConfigError("the loader for recovery gives no batch. Give more data or use a smaller batch size.")
    return count


def endless(
    loader: Iterable[Any],
    *,
    seed: int,
    batches_a_pass: int,
    fixed: bool,
    skip: int = 0,
    rng_state: Tensor | None = None,
) -> Iterator[Any]:
    """Batch after batch, pass after pass, beginning with batch number `skip`.

    Each pass starts by seeding torch's generator with its own number, which fixes the order and the augmentation of
    ordinary DataLoaders too; a loader with `set_epoch` is told the number. With `fixed`, every pass is cut to its
    first `batches_a_pass` batches and shuffled alike, so all passes see the same part of the data. `rng_state` is the
    generator's state after update `skip` − 1: with it, batch `skip` is loaded just as it would have been.
    """
    epoch, position = divmod(skip, batches_a_pass)
    while True:
        number = 0 if fixed else epoch
        number += seed * 1_000_003
        torch.manual_seed(number)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(number)
        given = 0
        for given, batch in enumerate(loader, start=1):
            if given > position:
                yield batch
            if given == position and rng_state is not None:
                torch.set_rng_state(rng_state)
            if given == batches_a_pass:
                break
        if given < batches_a_pass:
            raise ConfigError(
                f"a pass over the loader for recovery gave {given} batches where {batches_a_pass} were expected. "
                "A loader must give the same number of batches in every pass."
            )
        epoch, position = epoch + 1, 0
