"""Before a command prunes: is the network on these data what its weights were trained to be?

A checkpoint whose names and shapes fit can still be of another network, be fed images normalised in another way, or
know the classes in another order. A few hundred labelled images tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cosep.cli.common import console, percent
from cosep.data import Data, Loader
from cosep.data.batches import pair_of
from cosep.errors import ModelError
from cosep.models.modes import evaluating, logits_of
from cosep.zoo import load_model, twin

IMAGES = 256
# Errors of chance on a few hundred images: three standard deviations, so about one false alarm in 700.
DEVIATIONS = 3.0


def check_trained(spec: str, model: nn.Module, data: Data) -> None:
    """Refuse weights that are of the model's twin (other strides, equal names and shapes); warn of chance accuracy."""
    right = correct(model, some_of(data.calibration if data.holdout is None else data.holdout, IMAGES))
    if right is None:
        return
    other = twin(spec)
    if other is not None:
        _refuse_twin(spec, other, model, data, right)
    classes = len(data.class_names)
    if classes < 2:
        return
    chance, share = 1 / classes, _share(right)
    noise = DEVIATIONS * (chance * (1 - chance) / len(right)) ** 0.5
    if share <= chance + noise:
        console.print(
            f"{spec} has {percent(share)} accuracy on {len(right)} images, no better than chance "
            f"({percent(chance)}). Are these the weights of this model, and are the classes in the order, --mean and "
            "--std those that it was trained with?",
            style="bold yellow",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _refuse_twin(spec: str, other: str, model: nn.Module, data: Data, right: Tensor) -> None:
    twin_model = load_model(other, classes=len(data.class_names) or None)
    twin_model.load_state_dict(model.state_dict())
    theirs = correct(twin_model, some_of(data.calibration if data.holdout is None else data.holdout, IMAGES))
    assert theirs is not None
    won, lost = int((theirs & ~right).sum()), int((right & ~theirs).sum())
    if won - lost > DEVIATIONS * (won + lost) ** 0.5:  # McNemar's test: only images on which they differ count
        raise ModelError(
            f"the weights are of {other}, not of {spec}: the two differ only in their strides, so the file fits both, "
            f"and of {len(right)} images {percent(_share(theirs))} are right as {other} and {percent(_share(right))} "
            f"as {spec}. Name {other}."
        )


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def some_of(loader: Iterable[Any], images: int) -> Iterable[Any]:
    """About so many images of a loader: spread evenly over it where it lets us choose, its first batches elsewhere."""
    if isinstance(loader, Loader):
        count = len(loader.indices)
        return loader.subset(torch.linspace(0, count - 1, min(images, count)).long())
    return _first(loader, images)


def _first(loader: Iterable[Any], images: int) -> Iterable[Any]:
    given = 0
    for batch in loader:
        yield batch
        given += len(batch[0]) if isinstance(batch, (tuple, list)) and len(batch) else images
        if given >= images:
            return


def correct(model: nn.Module, batches: Iterable[Any]) -> Tensor | None:
    """Which images a network gets right, (images,); None where labels are no class numbers, so that none can be."""
    found = []
    with evaluating(model):
        for batch in batches:
            inputs, labels = pair_of(batch, "a batch of the data")
            if labels.ndim != 1 or labels.is_floating_point():
                return None
            found.append(logits_of(model, inputs).argmax(1) == labels)
    return torch.cat(found) if found else None
