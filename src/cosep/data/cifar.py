"""CIFAR-10 and CIFAR-100 as published: the binary layout, and the Python layout without running pickles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cosep.data.pickles import ByteArray, read_plain_pickle
from cosep.data.tensors import TensorSplit
from cosep.errors import DataError

# ImageNet's, by which most public CIFAR networks were trained, too.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PIXELS = 3 * 32 * 32
_TEST_RECORDS = 10_000
_NAMES_LIMIT = 100_000  # bytes of a file of class names
_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class _Layout:
    """How one of the four publications is laid out."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    classes: int
    records: int  # the most images a train file holds
    label_bytes: int = 0  # before each image, the last of them counts; 0: a pickle
    label_key: str = ""
    name_key: str = ""


_LAYOUTS = {
    "cifar10": (
        _Layout(
            "cifar-10-batches-bin",
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            "test_batch.bin",
            "batches.meta.txt",
            classes=10,
            records=10_000,
            label_bytes=1,
        ),
        _Layout(
            "cifar-10-batches-py",
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            "test_batch",
            "batches.meta",
            classes=10,
            records=10_000,
            label_key="labels",
            name_key="label_names",
        ),
    ),
    "cifar100": (
        _Layout(
            "cifar-100-binary",
            ("train.bin",),
            "test.bin",
            "fine_label_names.txt",
            classes=100,
            records=50_000,
            label_bytes=2,
        ),
        _Layout(
            "cifar-100-python",
            ("train",),
            "test",
            "meta",
            classes=100,
            records=50_000,
            label_key="fine_labels",
            name_key="fine_label_names",
        ),
    ),
}

_Arrays = tuple["np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]


def read_cifar(name: str, directory: str | Path) -> tuple[TensorSplit, TensorSplit, tuple[str, ...]]:
    """CIFAR as (train, test, class names) from the folder that holds its files, or from that folder's parent."""
    layout, folder = _find(name, Path(directory).expanduser())
    parts = [_read_file(folder / file, layout) for file in layout.train]
    test = _read_file(folder / layout.test, layout)
    _refuse_cut(folder, layout, [len(labels) for _, labels in (*parts, test)])
    pixels, labels = (np.concatenate(p) for p in zip(*parts, strict=True))
    return _as_split(pixels, labels), _as_split(*test), _class_names(folder / layout.names, layout)


def _refuse_cut(folder: Path, layout: _Layout, counts: list[int]) -> None:
    """Refuse a file that ends early after a whole image, where another is as long as published.

    A smaller data set in the same layout, all of whose files are shorter, is somebody's own and taken as it is.
    """
    published = [layout.records] * len(layout.train) + [_TEST_RECORDS]
    short = [n for n, (count, full) in enumerate(zip(counts, published, strict=True)) if count < full]
    if short and len(short) < len(counts):
        file = (*layout.train, layout.test)[short[0]]
        raise DataError(
            f"{folder / file} holds {counts[short[0]]:,} images instead of {published[short[0]]:,}: it was cut. "
            f"Get it again from {_HOME}."
        )


def _find(name: str, directory: Path) -> tuple[_Layout, Path]:
    for layout in _LAYOUTS[name]:
        for folder in (directory, directory / layout.folder):
            present = [f for f in (*layout.train, layout.test) if (folder / f).is_file()]
            missing = [f for f in (*layout.train, layout.test) if f not in present]
            if present and missing:
                raise DataError(f"{folder} lacks {', '.join(missing)}; unpack the archive from {_HOME} again.")
            if present:
                return layout, folder
    binary, python = _LAYOUTS[name]
    what = "holds no CIFAR files" if directory.is_dir() else "does not exist"
    raise DataError(
        f"{directory} {what}; sought {binary.train[0]} ({binary.folder}) and {python.train[0]} ({python.folder}) in "
        f"it and in those subfolders. Get the archive from {_HOME} and unpack it there."
    )


def _read_file(path: Path, layout: _Layout) -> _Arrays:
    """(pixels (n, 3072), labels (n,)) of one file, both uint8."""
    try:
        pixels, labels = _read_binary(path, layout) if layout.label_bytes else _read_pickle(path, layout)
    except OSError as failure:
        raise DataError(f"{path} cannot be read ({failure}).") from failure
    if labels.max() >= layout.classes:
        raise DataError(f"{path} has the label {labels.max()}; they must be below {layout.classes}. It is damaged.")
    return pixels, labels


def _read_binary(path: Path, layout: _Layout) -> _Arrays:
    record = layout.label_bytes + _PIXELS
    size = path.stat().st_size
    if size == 0 or size % record or size > layout.records * record:
        raise DataError(
            f"{path} has {size} bytes; it must be 1 to {layout.records} records of {record} bytes. It is truncated or "
            f"damaged: get it again from {_HOME}."
        )
    content = np.fromfile(path, np.uint8, size).reshape(-1, record)
    return content[:, layout.label_bytes :], content[:, layout.label_bytes - 1]


def _read_pickle(path: Path, layout: _Layout) -> _Arrays:
    # Beside the pixels: a label, a file name and the pickle's own bytes for each image.
    content = read_plain_pickle(path, largest=layout.records * (_PIXELS + 200), instructions=1000 + 20 * layout.records)
    pixels, labels = content.get("data"), content.get(layout.label_key)
    if not isinstance(pixels, ByteArray) or not isinstance(labels, list):
        raise DataError(
            f"{path} has no 'data' and {layout.label_key!r}; it is not the published file. Get it from {_HOME}."
        )
    if not labels or pixels.shape != (len(labels), _PIXELS):
        raise DataError(f"{path} has {len(labels)} labels for images of shape {pixels.shape}; it is damaged.")
    if any(not isinstance(label, int) or not 0 <= label < layout.classes for label in labels):
        raise DataError(f"{path} has labels that are not whole numbers below {layout.classes}; it is damaged.")
    return pixels.numpy(), np.array(labels, np.uint8)


def _class_names(path: Path, layout: _Layout) -> tuple[str, ...]:
    """The names in the folder, or numbers where there is no such file."""
    if not path.is_file():
        return tuple(map(str, range(layout.classes)))
    try:
        if layout.label_bytes:
            with path.open("rb") as file:
                names = file.read(_NAMES_LIMIT).decode("utf-8", errors="replace").split()
        else:
            content = read_plain_pickle(path, largest=_NAMES_LIMIT, instructions=5000)
            stored = content.get(layout.name_key)
            stored = stored if isinstance(stored, list) else []
            names = [n.decode("latin1") if isinstance(n, bytes) else n for n in stored if isinstance(n, (bytes, str))]
    except OSError as failure:
        raise DataError(f"{path} cannot be read ({failure}).") from failure
    if len(names) != layout.classes:
        raise DataError(f"{path} names {len(names)} classes instead of {layout.classes}; it is damaged.")
    return tuple(names)


def _as_split(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], labels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> TensorSplit:
    images = torch.from_numpy(pixels.copy()).view(-1, 3, 32, 32)
    return TensorSplit(images, torch.from_numpy(labels.astype(np.int64)), _MEAN, _STD)
