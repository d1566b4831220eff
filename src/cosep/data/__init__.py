"""Data sets that a command can name: embedded digits, CIFAR, image folders, and factories in users' files."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from cosep.config import check_at_least
from cosep.data.batches import inputs_and_labels
from cosep.data.cifar import read_cifar
from cosep.data.digits import read_digits
from cosep.data.folders import SIZE, FolderSplit, read_folders
from cosep.data.loader import Batch, Loader, all_of
from cosep.data.order import class_by_class, stratified
from cosep.data.tensors import TensorSplit
from cosep.errors import ConfigError, DataError
from cosep.plugins import call_factory, file_factory, is_file_factory

__all__ = ["Data", "Loader", "TensorSplit", "data_names", "load_data"]

_NAMES = ("digits", "cifar10:DIR", "cifar100:DIR", "imagefolder:DIR", "path/to/file.py:factory")


@dataclass(frozen=True, eq=False)
class Data:
    """A data set ready for a run: each part is an iterable of (input, label) batches that can be iterated repeatedly.

    The parts are Loaders, except where a user's factory made them: those are whatever it returned.
    """

    name: str
    train: Iterable[Batch]  # shuffled and augmented; its set_epoch chooses the order
    calibration: Iterable[Batch]  # the images of train, as they are, the classes taking turns
    holdout: Iterable[Batch] | None  # training images kept from `train`, for decisions; None if there are none
    test: Iterable[Batch] | None  # for reports only; None if a user's factory gives none
    class_names: tuple[str, ...]  # empty if unknown
    input_shape: tuple[int, ...]  # (channels, height, width)
    mean: tuple[float, ...] | None = None  # of the normalisation; None if unknown
    std: tuple[float, ...] | None = None


def data_names() -> tuple[str, ...]:
    """The forms that a name of a data set may have."""
    return _NAMES


def load_data(
    spec: str,
    *,
    holdout: float = 0.1,
    seed: int = 0,
    batch_size: int = 128,
    eval_batch_size: int | None = None,
    augment: bool = True,
    workers: int | None = None,
    image_size: int = SIZE,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Data:
    """The data set that a name stands for, with a share of every class of its training set held out.

    spec: `digits`, `cifar10:DIR`, `cifar100:DIR`, `imagefolder:DIR`, or `path/to/file.py:factory`, a function that
    returns a tuple (train, test) of loaders or a dict with "train" and, if wanted, "test", "holdout", "calibration",
    "class_names". Training and calibration batches may be inputs without labels. It may take `batch_size`, `seed` and
    `holdout`; nothing is held out from its loaders here.
    `seed` decides what is held out, the order and the augmentation; `workers` processes read image folders (by default
    two, where there are two cores), whose images become squares of `image_size`. Inputs are
    (pixel / 255 - `mean`) / `std`, a number for each channel: those that the network was trained with, if not the
    data set's usual ones.
    """
    check_at_least("seed", seed, 0)
    check_at_least("image_size", image_size, 1)
    if not 0 <= holdout < 1:
        raise ConfigError(
            f"holdout is {holdout}; it must be a share of the training set, from 0 up to but not including 1."
        )
    if is_file_factory(spec):
        if mean is not None or std is not None:
            raise ConfigError(f"{spec} normalises its images itself: leave out mean and std, or use them there.")
        return _from_file(spec, batch_size=batch_size, seed=seed, holdout=holdout)
    train, test, names, shape = _read(spec, workers, image_size)
    train, test = (_normalised(split, mean, std, channels=shape[0]) for split in (train, test))
    rest, held_out = stratified(train.labels, holdout, seed=seed, purpose="holdout")
    # Folders hold class after class, and what looks at the first few held-out images must see every class.
    held_out = held_out[class_by_class(train.labels[held_out], seed=seed)] if len(held_out) else held_out
    plain = eval_batch_size or (512 if isinstance(train, TensorSplit) else batch_size)
    return Data(
        name=spec,
        train=Loader(train, rest, batch_size, shuffle=True, augment=augment, drop_last=True, seed=seed),
        calibration=Loader(train, rest[class_by_class(train.labels[rest], seed=seed)], plain, seed=seed),
        holdout=Loader(train, held_out, plain) if len(held_out) else None,
        test=Loader(test, all_of(test), plain),
        class_names=names,
        input_shape=shape,
        mean=train.mean,
        std=train.std,
    )


_Split = TensorSplit | FolderSplit
_Read = tuple[_Split, _Split, tuple[str, ...], tuple[int, ...]]


def _normalised(split: _Split, mean: Sequence[float] | None, std: Sequence[float] | None, *, channels: int) -> _Split:
    """The split with another mean and standard deviation, where they are given."""
    for name, given in (("mean", mean), ("std", std)):
        if given is None:
            continue
        told = ", ".join(f"{value:g}" for value in given)
        if len(given) != channels:
            raise ConfigError(f"{name} is {told}; images of {channels} channels need as many numbers.")
        if not all(math.isfinite(value) and (value > 0 or name == "mean") for value in given):
            raise ConfigError(f"{name} is {told}; {'numbers' if name == 'mean' else 'numbers above 0'} are needed.")
    return replace(split, mean=tuple(mean or split.mean), std=tuple(std or split.std))


def _read(spec: str, workers: int | None, image_size: int) -> _Read:
    name, _, directory = spec.partition(":")
    if name == "digits" and not directory:
        return _in_memory(*read_digits())
    if name in ("cifar10", "cifar100", "imagefolder"):
        if not directory:
            raise DataError(f"{name} needs the folder of its files: {name}:DIR.")
        if name == "imagefolder":
            return *read_folders(directory, workers=workers, size=image_size), (3, image_size, image_size)
        return _in_memory(*read_cifar(name, directory))
    close = difflib.get_close_matches(name, [n.partition(":")[0] for n in _NAMES[:4]], n=1)
    hint = next((n for n in _NAMES if close and n.startswith(close[0])), None)
    known = f"did you mean {hint}?" if hint else f"known are {', '.join(_NAMES)}."
    raise DataError(f"unknown data set {spec!r}; {known}")


def _in_memory(train: TensorSplit, test: TensorSplit, names: tuple[str, ...]) -> _Read:
    return train, test, names, tuple(train.images.shape[1:])


def _from_file(spec: str, **wanted: object) -> Data:
    with file_factory(spec, DataError) as factory:
        made = call_factory(factory, spec, DataError, **wanted)
    parts: dict[str, Any] = {}
    if isinstance(made, Mapping):
        parts = dict(made)
    elif isinstance(made, tuple) and len(made) == 2:
        parts = {"train": made[0], "test": made[1]}
    unknown = sorted(set(parts) - {"train", "test", "holdout", "calibration", "class_names"})
    if unknown or "train" not in parts:
        raise DataError(
            f"{spec} returned {_described(made)}; it must return (train, test) or a dict with 'train' and, if wanted, "
            "'test', 'holdout', 'calibration', 'class_names'."
        )
    loaders = {part: parts.get(part) for part in ("train", "test", "holdout", "calibration")}
    for part, loader in loaders.items():
        if loader is not None and (not isinstance(loader, Iterable) or iter(loader) is loader):
            raise DataError(
                f"{spec}: {part} is a {type(loader).__name__}, which cannot be iterated again and again; "
                "return a DataLoader or a list of batches."
            )
    return Data(
        name=spec,
        train=parts["train"],
        calibration=parts["train"] if loaders["calibration"] is None else parts["calibration"],
        holdout=loaders["holdout"],
        test=loaders["test"],
        class_names=tuple(map(str, parts.get("class_names", ()))),
        input_shape=_shape_of_first(loaders, spec),
    )


def _shape_of_first(loaders: Mapping[str, Iterable[Any] | None], spec: str) -> tuple[int, ...]:
    """Of the test images, which need labels; without such, of the training images, which need none."""
    part = "train" if loaders["test"] is None else "test"
    batch = next(iter(loaders[part] or ()), None)
    if part == "train" and batch is not None:
        return tuple(inputs_and_labels(batch, f"the first batch of {spec}: train")[0].shape[1:])
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    if batch is None or not pair:
        raise DataError(f"{spec}: {part} yields {_described(batch)}; batches must be pairs of tensors (input, label).")
    return tuple(batch[0].shape[1:])


def _described(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value))}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
