"""What calibration data must be like before statistics are made of it: the border of this stage."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from cosep.errors import CalibrationError

_LISTED = 10  # how many offenders a message names before it only counts the rest


def enumerated(items: Iterable[object]) -> str:
    """The first few items in words, and how many more there are."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def as_tensor(what: str, values: object) -> Tensor:
    """A tensor, array or list of numbers as a tensor without gradient; refuses anything else."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        # Torch warns of read-only arrays and refuses reversed ones; such are copied.
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise CalibrationError(
            f"{what} are {type(values).__name__}, not an array of numbers ({error}). Give a tensor or an array."
        ) from error


def checked_labels(labels: object, images: int, classes: int | None) -> Tensor:
    """Labels of a batch as (images,) int64 on the CPU; refuses what is not one class number for each image."""
    found = as_tensor("labels", labels).cpu()
    if found.ndim != 1:
        remedy = "Use labels.reshape(-1) if it holds one number for each image."
        if found.ndim == 2 and found.shape[1] > 1:
            remedy = (
                "One-hot or soft labels become class numbers with labels.argmax(1); an image of several classes "
                "(multi-label) has no class number: give it one, or leave it out."
            )
        raise CalibrationError(f"labels have the shape {tuple(found.shape)}; they must have ({images},). {remedy}")
    if len(found) != images:
        raise CalibrationError(
            f"{len(found)} labels came with {images} images; each image needs one. Check the loader's collate function."
        )
    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        raise CalibrationError(
            f"labels are {found.dtype}; they must be integer class numbers. Convert them with labels.long() "
            "if their values are 0, 1, 2, ..."
        )
    found = found.long()
    if images == 0:
        return found
    lowest, highest = (int(edge) for edge in torch.aminmax(found))
    if lowest < 0:
        raise CalibrationError(
            f"a label is {lowest}; class numbers start at 0. Number the classes from 0, and leave out images "
            "that are marked as unlabelled."
        )
    if classes is not None and highest >= classes:
        raise CalibrationError(
            f"a label is {highest}, but {classes} classes were declared, numbered 0 to {classes - 1}. "
            "Raise `classes` or renumber the labels."
        )
    return found


def check_classes(count: Tensor) -> None:
    """Refuse class counts (classes,) from which no separability follows: fewer than two classes that have a variance.

    Classes with fewer than two samples are none of the reader's business otherwise: the space leaves them out.
    """
    if int((count > 0).sum()) < 2:
        found = enumerated(int(c) for c in count.nonzero().flatten())
        raise CalibrationError(
            f"the calibration data hold one class only ({found}); separability needs at least 2. Use images of more "
            "classes: a loader that is sorted by class and cut short shows only the first."
        )
    if int((count >= 2).sum()) < 2:
        found = enumerated(f"class {int(c)} has {int(count[c])}" for c in count.nonzero().flatten())
        raise CalibrationError(
            f"too few calibration samples: {found}; a variance needs at least 2, and separability two such classes. "
            "Add samples, or let the statistics see more images (the setting observe.images; 0: all)."
        )


def check_declared(classes: int | None) -> None:
    """Refuse a declared number of classes that leaves nothing to separate."""
    if classes is not None and classes < 2:
        raise CalibrationError(
            f"classes is {classes}; separability needs at least 2. Give the number of classes, or leave it out to take "
            "the largest label plus one."
        )


def check_finite(values: Tensor, layers: Sequence[str], widths: Sequence[int], first: int) -> None:
    """Refuse NaN and infinite values (images, channels), naming layer and channel; `first` numbers the first image."""
    # A sum of finite float64 numbers is finite, so the matrix itself is searched only after something went wrong.
    if bool(torch.isfinite(values.sum())):
        return
    bad = ~torch.isfinite(values)
    if not bool(bad.any()):
        return  # finite but so large that sums overflow: the moments say so in the end
    image, column = (int(i) for i in bad.nonzero()[0])
    ends = list(accumulate(widths))
    which = bisect_right(ends, column)
    channel = column - ends[which] + widths[which]
    where = f"layer {layers[which]!r}, channel {channel}" if layers[which] else f"channel {channel}"
    raise CalibrationError(
        f"{where}, is {float(values[image, column])} for image {first + image} (in this batch {int(bad.any(0).sum())} "
        "channels have such values); statistics need finite numbers. Look for bad inputs (missing normalization, "
        "corrupt images), damaged weights, or a precision that overflows (float16)."
    )


def checked_layers(model: nn.Module, layers: Iterable[str]) -> dict[str, nn.Module]:
    """The named modules of a model, in the given order; refuses unknown names, with the nearest that exist."""
    if isinstance(layers, str):
        raise CalibrationError(f"layers is the single string {layers!r}; give a list of names: [{layers!r}].")
    names = list(dict.fromkeys(layers))
    if not names:
        raise CalibrationError("no layers to observe were named; give at least one, as in model.named_modules().")
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(str(name), modules, n=3, cutoff=0.5)
            hint = f"Did you mean {', '.join(map(repr, near))}?" if near else "See model.named_modules() for its names."
            raise CalibrationError(f"the model has no layer {name!r}. {hint}")
    return {name: modules[name] for name in names}
