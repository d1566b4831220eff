"""Image folders (DIR/train/CLASS/*.jpg, DIR/val/CLASS/*.jpg) with the standard ImageNet transforms."""

from __future__ import annotations

import os
import warnings
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
from cosep.measurement.machine import cores
from cosep.plugins import import_extra

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224  # of ImageNet's crops; other sizes keep the same proportions
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
WORKERS = 2  # processes that read images, where there are as many cores
MOST_ELONGATED = 100  # the longer side over the shorter one, which is resized to a few hundred pixels
_Item = tuple[int, int]  # which image, and the seed of its augmentation


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Images on disk with their labels; inputs are (3, size, size)."""

    paths: tuple[str, ...]
    labels: Tensor  # (n,) int64
    workers: int
    size: int = SIZE
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

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
            _Images(self.paths, self.labels, _transform(augment, self)),
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
        image = _opened(self.paths[index])
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
            torch.default_generator.manual_seed(seed)  # not the GPUs' with it: nobody would put theirs back
            return self.transform(image), self.labels[index]


def _opened(path: str) -> Any:
    """The image in a file, in RGB; its size is checked before its pixels are made."""
    from PIL import Image

    try:
        if not os.path.isfile(path):
            raise ValueError("it is no regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Only these, whatever the file is called: for some formats (EPS) Pillow runs another program.
            with Image.open(path, formats=FORMATS) as file:
                if max(file.size) > MOST_ELONGATED * min(file.size):
                    raise ValueError(f"it is {file.size[0]} x {file.size[1]} pixels; as wide as high, it would be huge")
                return file.convert("RGB")
    except Exception as failure:  # Pillow's decoders let almost any exception out
        raise DataError(f"{path} cannot be read as an image ({failure}). Remove or replace it.") from failure


def _transform(augment: bool, split: FolderSplit) -> Callable[[Any], Tensor]:
    import_extra("torchvision", DataError)
    from torchvision import transforms as t

    size = split.size
    whole = round(size * 256 / 224)  # ImageNet's custom: the crop is 7/8 of the image
    resize = [t.RandomResizedCrop(size), t.RandomHorizontalFlip()] if augment else [t.Resize(whole), t.CenterCrop(size)]
    transform: Callable[[Any], Tensor] = t.Compose([*resize, t.ToTensor(), t.Normalize(split.mean, split.std)])
    return transform


def read_folders(
    directory: str | Path, *, workers: int | None = None, size: int = SIZE
) -> tuple[FolderSplit, FolderSplit, tuple[str, ...]]:
    """The images below DIR/train and DIR/val as (train, test, class names), one class a subfolder."""
    import_extra("torchvision", DataError)
    workers = min(WORKERS, cores()) if workers is None else workers  # torch warns of more than there are cores
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
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    found = [list(_images_below(folder / name)) for name in classes]
    if not classes or not all(found):
        empty = [name for name, paths in zip(classes, found, strict=True) if not paths]
        what = f"no images in the class folder {empty[0]}" if empty else "no class folders"
        raise DataError(f"{folder} has {what}; each class needs a folder with images ({', '.join(SUFFIXES)}).")
    labels = torch.tensor([label for label, paths in enumerate(found) for _ in paths], dtype=torch.int64)
    return FolderSplit(tuple(path for paths in found for path in paths), labels, workers, size), tuple(classes)


def _images_below(folder: Path) -> Iterator[str]:
    """The images in a folder and in those below it, in order; links to folders are left: they may lead in circles."""
    for place, _, names in sorted(os.walk(folder)):
        yield from (os.path.join(place, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))
