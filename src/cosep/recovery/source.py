"""Training batches as a pure function of (seed, epoch, position), so that a stopped recovery can go on exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from cosep.errors import ConfigError

ASIDE = 16  # one part of so many is set aside to tell whether training helped


def batch_count(loader: Iterable[Any]) -> int:
    """How many batches one pass gives; a loader without a length is counted by one pass."""
    try:
        count = len(loader)  # type: ignore[arg-type]
    except TypeError:
        count = sum(1 for _ in loader)
    if count < 1:
        raise ConfigError("the loader for recovery gives no batch. Give more data or use a smaller batch size.")
    return count


def without_some(loader: Iterable[Any], *, seed: int) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """A loader without a sixteenth of its data, and that part; the loader itself and None where it cannot be split.

    A list of batches gives up its last ones, a DataLoader that draws from a data set by itself a random part of it.
    """
    if isinstance(loader, (list, tuple)) and len(loader) >= ASIDE:
        count = len(loader) // ASIDE
        return loader[:-count], loader[-count:]
    if isinstance(loader, DataLoader) and _draws_by_itself(loader):
        images = len(loader.dataset)  # type: ignore[arg-type]
        assert loader.batch_size is not None
        count = images // ASIDE
        if images - count >= loader.batch_size and count:
            order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
            rest, aside = order[count:].sort().values, order[:count].sort().values
            return _over(loader, rest), _over(loader, aside, whole=True)
    return loader, None


def fixed_part(loader: Iterable[Any], share: float, *, seed: int) -> Iterable[Any]:
    """A loader of the same part of the images in every pass, in an order and with an augmentation of each pass's own.

    Our own loaders take the share of every class; of a DataLoader that draws from a data set by itself a random share
    of the data set is taken. Anything else can only be cut short: its first batches, drawn alike every time.
    """
    if hasattr(loader, "share"):
        part: Iterable[Any] = loader.share(share, seed=seed)
        return part
    if isinstance(loader, DataLoader) and _draws_by_itself(loader):
        images = len(loader.dataset)  # type: ignore[arg-type]
        assert loader.batch_size is not None
        count = min(max(round(share * images), loader.batch_size if loader.drop_last else 1), images)
        chosen = torch.randperm(images, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        return _over(loader, chosen)
    return _FirstBatches(loader, max(1, int(share * batch_count(loader))), seed)


def _over(loader: DataLoader[Any], images: Tensor, *, whole: bool = False) -> DataLoader[Any]:
    """A loader like this one over some of its images; `whole`: over all of them, in order."""
    return DataLoader(
        Subset(loader.dataset, images.tolist()),
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler) and not whole,
        drop_last=loader.drop_last and not whole,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )


def _draws_by_itself(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader draws each image of a data set once: nothing of the user's own decides which and when."""
    if loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader.sampler) is RandomSampler:
        return not loader.sampler.replacement and loader.sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(loader.sampler) is SequentialSampler


@dataclass(frozen=True, eq=False)
class _FirstBatches:
    """The first batches of a loader, of which nothing more is known than that the same seed gives the same batches."""

    loader: Iterable[Any]
    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        torch.manual_seed(self.seed)
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(0)
        return islice(iter(self.loader), self.count)


def endless(
    loader: Iterable[Any],
    *,
    seed: int,
    batches_a_pass: int,
    skip: int = 0,
    rng_state: Tensor | None = None,
) -> Iterator[Any]:
    """Batch after batch, pass after pass, beginning with batch number `skip`.

    Each pass starts by seeding torch's generator with its own number, which fixes the order and the augmentation of
    ordinary DataLoaders too; a loader with `set_epoch` is told the number. `rng_state` is the generator's state after
    update `skip` − 1: with it, batch `skip` is loaded just as it would have been.
    """
    epoch, position = divmod(skip, batches_a_pass)
    while True:
        number = epoch + seed * 1_000_003
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
