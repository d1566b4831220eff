"""Before a command prunes: is the network on these data what its weights were trained to be?

A checkpoint whose names and shapes fit can still be of another network, be fed images normalised in another way, or
know the classes in another order. A few hundred labelled images tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosep.cli.common import console, percent
from cosep.data import Data, Loader
from cosep.data.batches import inputs_and_labels
from cosep.errors import ModelError
from cosep.models.modes import evaluating, logits_of
from cosep.zoo import load_model, twin

IMAGES = 256
# In standard deviations of chance. ResNet-50's variants differ by eight points of accuracy, which few images show; but
# the right one is also more certain of four labels in five, and that a few hundred show beyond doubt.
CHANCE, MORE_RIGHT, MORE_CERTAIN = 3.0, 2.0, 4.0


@dataclass(frozen=True, eq=False)
class Answers:
    """Which images a network gets right, and the cross-entropy of each: both (images,)."""

    right: Tensor
    loss: Tensor


def check_trained(spec: str, model: nn.Module, data: Data, *, quiet: bool = False) -> None:
    """Refuse weights that are of the model's twin (other strides, equal names and shapes); warn of chance accuracy.

    `quiet` leaves out the warning, as all that is not the result or an error.
    """
    images = some_of(data.calibration if data.holdout is None else data.holdout, IMAGES)
    found = answers(model, images)
    if found is None:
        return
    other = twin(spec)
    if other is not None:
        twin_model = load_model(other, classes=len(data.class_names) or None)
        twin_model.load_state_dict(model.state_dict())
        theirs = answers(twin_model, images)
        assert theirs is not None
        _refuse_twin(spec, other, found, theirs)
    right = found.right
    classes = len(data.class_names)
    if classes < 2 or quiet:
        return
    chance, share = 1 / classes, _share(right)
    noise = CHANCE * (chance * (1 - chance) / len(right)) ** 0.5
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


def _refuse_twin(spec: str, other: str, ours: Answers, theirs: Answers) -> None:
    won, lost = int((theirs.right & ~ours.right).sum()), int((ours.right & ~theirs.right).sum())
    certain = (theirs.loss < ours.loss).sum() - (ours.loss < theirs.loss).sum()
    # McNemar's test, by the images on which the answers differ, and the sign test of the losses: each alone could be
    # wrong, as networks that know nothing differ in how loudly they say it.
    if won - lost > MORE_RIGHT * (won + lost) ** 0.5 and certain > MORE_CERTAIN * len(ours.loss) ** 0.5:
        raise ModelError(
            f"the weights are of {other}, not of {spec}: the two differ only in their strides, so the file fits both, "
            f"and of {len(ours.right)} images {percent(_share(theirs.right))} are right as {other} and "
            f"{percent(_share(ours.right))} as {spec}. Name {other}."
        )


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def some_of(loader: Iterable[Any], images: int) -> Iterable[Any]:
    """About so many images of a loader: spread evenly over it where it lets us choose, its first batches elsewhere."""
    if isinstance(loader, Loader):
        count = len(loader.indices)
        return loader.subset(torch.linspace(0, count - 1, min(images, count)).long())
    return list(_first(loader, images))


def _first(loader: Iterable[Any], images: int) -> Iterable[Any]:
    given = 0
    for batch in loader:
        yield batch
        given += len(batch[0]) if isinstance(batch, (tuple, list)) and len(batch) else images
        if given >= images:
            return


def answers(model: nn.Module, batches: Iterable[Any]) -> Answers | None:
    """What a network says of images; None without labels that are class numbers of its own, or without images."""
    right, loss = [], []
    with evaluating(model):
        for batch in batches:
            inputs, labels = inputs_and_labels(batch, "a batch of the data")
            logits = logits_of(model, inputs)
            if (
                labels is None
                or labels.ndim != 1
                or labels.is_floating_point()
                or not bool(((labels >= 0) & (labels < logits.shape[1])).all())
            ):
                return None
            right.append(logits.argmax(1) == labels)
            loss.append(F.cross_entropy(logits, labels.long(), reduction="none"))
    return Answers(torch.cat(right), torch.cat(loss)) if right else None
