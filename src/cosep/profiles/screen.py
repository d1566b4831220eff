"""Which classes span the space when there are too many of them: the best separated from all the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cosep.profiles.metrics import jm
from cosep.records import ClassMoments


def rest_of(moments: ClassMoments) -> ClassMoments:
    """For every class, the moments of all samples that are not of it, in closed form from the totals."""
    count = moments.count.double().unsqueeze(1)
    everything = count.sum()
    others = (everything - count).clamp(min=1)
    centre = (count * moments.mean).sum(dim=0) / everything.clamp(min=1)
    gap = moments.mean - centre
    between = count * gap.square()
    total = moments.scatter.sum(dim=0) + between.sum(dim=0)
    scatter = total - moments.scatter - between * (everything / others)
    # What is left after subtracting nearly everything is rounding: below 1e-13 of the total it is none at all.
    scatter = torch.where(scatter > 1e-13 * total, scatter, 0.0)
    return ClassMoments(moments.count.sum() - moments.count, centre - gap * (count / others), scatter)


def one_versus_rest(moments: ClassMoments) -> Tensor:
    """JM of every class against all the others together: (classes, channels), each in [0, 2]."""
    rest = rest_of(moments)
    both = torch.cat([moments.mean, rest.mean]), torch.cat([moments.variance, rest.variance])
    own = torch.arange(moments.classes, device=moments.mean.device)
    return jm(*both, own, own + moments.classes).T


def top_classes(producers: Sequence[ClassMoments], limit: int) -> tuple[int, ...]:
    """The `limit` classes with the highest one-versus-rest JM, averaged over all channels of all producers, ascending.

    All classes where there are no more than that, but for those with fewer than two samples, which have no variance. Of
    classes with equal scores the lower ones stay.
    """
    usable = torch.stack([moments.count >= 2 for moments in producers]).all(dim=0)
    if int(usable.sum()) <= limit:
        return tuple(usable.nonzero().flatten().tolist())
    channels = sum(moments.channels for moments in producers)
    score = torch.stack([one_versus_rest(moments).sum(dim=1) for moments in producers]).sum(dim=0) / channels
    # Rounded, so that scores which differ only in the order of summation are ties, on any number of threads.
    ranking = score.round(decimals=12).where(usable, -torch.inf).argsort(descending=True, stable=True)
    return tuple(sorted(ranking[:limit].tolist()))
