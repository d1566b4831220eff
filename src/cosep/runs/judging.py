"""Whether a training helped: which images judge it, and what is done where the uncut network knows them by heart."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor, nn

from cosep.models.modes import evaluating, logits_of
from cosep.runs.remaking import images_of_rebuild, not_fitted, points_lost
from cosep.runs.state import Job, calibration_pass, first_images

Labelled = Iterator[tuple[Tensor, Tensor | None]]

DECIDING_IMAGES = 2000  # of the calibration data, where no others are there to decide
COMPARED_IMAGES = 2000  # of the calibration data, beside the held-out ones, to find out whether these are known too
BLEND = 0.3  # of each image is another one: then it was never learnt, and its own class is still the answer
CLEAR = 2.0  # standard errors


def points_gained(job: Job, before: nn.Module, after: nn.Module) -> tuple[float, str]:
    """The points of accuracy that a training has won or lost (below 0), and the images that say so, in words."""
    name = _name(job)
    blend = not (job.holdout is not None and _never_learnt(job))
    lost = []
    for model in (before, after):
        images = _deciding(job)
        lost.append(points_lost(job, model, _blended(images, job.config.seed) if blend else images))
    known = " (each with three tenths of another in it, as the network may know the images themselves)"
    return lost[0] - lost[1], name + known * blend


def _name(job: Job) -> str:
    if job.holdout is not None:
        return "held-out images"
    return "calibration images" if job.aside is None else "a part of the calibration data set aside"


def _deciding(job: Job) -> Labelled:
    """The images that judge, the same every time: nothing before the training, and no training, has seen them."""
    for batches in (job.holdout, job.aside):
        if batches is not None:
            yield from first_images(batches, 0, job.config.seed)
            return
    # On the images that it was fitted to the rebuilt network is better than on others, and training would seem to harm.
    fitted = images_of_rebuild(job, job.config.rebuild)
    yield from not_fitted(job, fitted, fitted and fitted + DECIDING_IMAGES)


def _blended(batches: Labelled, seed: int) -> Labelled:
    """Each image with a part of another one of its batch; what is no number with fractions stays as it is.

    A network that has learnt an image by heart gives a cut one a memory of it, which any training blurs: on such images
    even a good training looks harmful.
    """
    generator = torch.Generator().manual_seed(seed)
    for x, labels in batches:
        others = torch.randperm(len(x), generator=generator).to(x.device)
        yield torch.lerp(x, x[others], BLEND) if x.is_floating_point() else x, labels


def _never_learnt(job: Job) -> bool:
    """Whether the uncut network is clearly better on calibration images than on held-out ones: it has not learnt these.

    Where it is no better, it knows both, or neither by heart, and no difference can be seen; the same without labels.
    """
    held_out = _right(job, first_images(job.holdout or (), 0, job.config.seed))
    learnt = _right(job, calibration_pass(job, COMPARED_IMAGES))
    if not held_out or not learnt:
        return False
    (right, images), (right_there, images_there) = held_out, learnt
    share = (right + right_there) / (images + images_there)
    error = sqrt(share * (1 - share) * (1 / images + 1 / images_there))
    clear = right_there / images_there - right / images > CLEAR * error
    return bool(job.fabric.broadcast(clear))


def _right(job: Job, batches: Labelled) -> tuple[int, int] | None:
    """How many images the uncut network puts into their class, and of how many; None where there are no labels."""
    right = images = 0
    with evaluating(job.original):
        for x, labels in batches:
            if labels is None or labels.ndim != 1:
                return None
            found = logits_of(job.original, job.fabric.to_device(x)).argmax(1).cpu()
            right += int((found == labels.cpu()).sum())
            images += len(x)
    return (right, images) if images else None
