"""Image folders (DIR/train/CLASS/*.jpg, DIR/val/CLASS/*.jpg) with the standard ImageNet transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cosep.data.loader import Batch
from cosep.data.order import batches_of, chance, epoch_order, steps_of
from cosep.errors import DataError
from cosep.outside import import_extra

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224  # of ImageNet's crops; other sizes keep the same proportions
_Item = tuple[int, int]  # which image, and the seed of its augmentation


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Images on disk with their labels; inputs are (3, size, size)."""

    paths: tuple[str, ...]
    labels: Tensor  # (n,) int64
    workers: int = 2
    size: int = SIZE

    def __len__(self) -> int:
        return len(self.paths)

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
        """Yield (input (b, 3, size, size) float32, label (b,) int64) from step `start` of an epoch on."""
        order = epoch_order(
            torch.arange(len(self)) if indices is None else indices, shuffle=shuffle, seed=seed, epoch=epoch
        )
        loader = DataLoader(
            _Images(self.paths, self.labels, _transform(augment, self.size)),
            batch_sampler=_Steps(order, batch_size, drop_last, seed, epoch, start),
            num_workers=self.workers,
            generator=torch.Generator(),  # it would draw from the caller's otherwise
        )
        yield from loader


@dataclass(frozen=True)
class _Steps:
    """The items of each batch, for torch's DataLoader."""

    order: Tensor
    batch_size: int
    drop_last: bool
    seed: int
    epoch: int
    start: int

    def __len__(self) -> int:
        return max(0, steps_of(len(self.order), self.batch_size, drop_last=self.drop_last) - self.start)

    def __iter__(self) -> Iterator[list[_Item]]:
        for step, chosen in batches_of(self.order, self.batch_size, start=self.start, drop_last=self.drop_last):
            seeds = torch.randint(0, 2**62, (len(chosen),), generator=chance("augment", self.seed, self.epoch, step))
            yield list(zip(chosen.tolist(), seeds.tolist(), strict=True))


class _Images(Dataset[Batch]):
    """One transformed image by (index, seed)."""

    def __init__(self, paths: tuple[str, ...], labels: Tensor, transform: Callable[[Any], Tensor]) -> None:
        self.paths = paths
        self.labels = labels
        self.transform = transform

    def __getitem__(self, item: _Item) -> Batch:
        index, seed = item
        from PIL import Image

        try:
            with Image.open(self.paths[index]) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError) as failure:
            raise DataError(
                f"{self.paths[index]} cannot be read as an image ({failure}). Remove or replace it."
            ) from failure
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
            torch.manual_seed(seed)
            return self.transform(image), self.labels[index]


def _transform(augment: bool, size: int) -> Callable[[Any], Tensor]:
    import_extra("torchvision", DataError)
    from torchvision import transforms as t

    whole = round(size * 256 / 224)  # ImageNet's custom: the crop is 7/8 of the image
    resize = [t.RandomResizedCrop(size), t.RandomHorizontalFlip()] if augment else [t.Resize(whole), t.CenterCrop(size)]
    transform: Callable[[Any], Tensor] = t.Compose([*resize, t.ToTensor(), t.Normalize(MEAN, STD)])
    return transform


def read_folders(
    directory: str | Path, *, workers: int, size: int = SIZE
) -> tuple[FolderSplit, FolderSplit, tuple[str, ...]]:
    """The images below DIR/train and DIR/val as (train, test, class names), one class a subfolder."""
    root = Path(directory).expanduser()
    missing = [str(root / part) for part in ("train", "val") if not (root / part).is_dir()]
    if missing:
        raise DataError(
            f"there is no folder {' nor '.join(missing)}; imagefolder:DIR needs DIR/train and DIR/val with one "
            "subfolder of images for each class."
        )
    train, names = _list_images(root / "train", workers, size)
    test, test_names = _list_images(root / "val", workers, size)
    if names != test_names:
        odd = sorted(set(names) ^ set(test_names))
        raise DataError(
            f"{root}: the classes of train and val differ in {', '.join(odd[:5])}; both need the same subfolders."
        )
    return train, test, names


def _list_images(folder: Path, workers: int, size: int) -> tuple[FolderSplit, tuple[str, ...]]:
    import_extra("torchvision", DataError)
    from torchvision.datasets import ImageFolder

    try:
        listed = ImageFolder(str(folder))
    except FileNotFoundError as failure:
        raise DataError(f"{folder} has no class folders or one without images ({failure}).") from failure
    labels = torch.tensor([label for _, label in listed.samples], dtype=torch.int64)
    return FolderSplit(tuple(path for path, _ in listed.samples), labels, workers, size), tuple(listed.classes)
