"""What a page shows of a group beyond its plan: profiles, a map of the space, weights, and who separated which classes.

Recorded while a run goes on, for nothing of it can be had from the pruned network afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cosep.errors import ArtifactError
from cosep.records import Space
from cosep.storage.schemas import COUNT, FINITE, Where, misfit

EVIDENCE_FORMAT = 1
MOST_CLASSES = 200  # pairs among more classes than these are not recorded
MOST_PAIRS = 300  # columns of the stored profile matrix
LARGEST_LABEL = 100_000  # a page has a name for every class below the largest one
HEADER_LIMIT = 1 << 20  # bytes; the names of nine tensors, and a document with the classes
BLOCK_ENTRIES = 2**21  # of the profile matrix that are in memory at once

ProfileOf = Callable[[Tensor], Tensor]  # channels (some,) -> their profiles (some, pairs)


@dataclass(frozen=True, eq=False)
class Evidence:
    """One group as it was when its channels were chosen; channels in the numbering of the uncut network."""

    group: str
    metric: str
    classes: tuple[int, ...]  # whose pairs are meant below, in the order of `torch.triu_indices`
    spanning: int  # classes that span the space: more than `classes` where those had to be limited
    shares: tuple[float, float]  # of the spread of the profiles, along each of the two coordinates
    weights: Tensor  # (channels,) float32: norms
    separability: Tensor  # (channels,) float32: the mean of each channel's profile
    coordinates: Tensor  # (channels, 2) float32
    columns: Tensor  # (shown,) int32: the pairs in `profiles`, ascending; those in which channels differ most
    profiles: Tensor  # (channels, shown) float16
    best: Tensor  # (pairs,) int32: the channel that separates each pair best
    best_score: Tensor  # (pairs,) float32
    best_kept: Tensor  # (pairs,) int32: the same among the channels that stay
    best_kept_score: Tensor  # (pairs,) float32

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Both classes of every pair."""
        return [(a, b) for i, a in enumerate(self.classes) for b in self.classes[i + 1 :]]


_TENSORS = (
    "weights",
    "separability",
    "coordinates",
    "columns",
    "profiles",
    "best",
    "best_score",
    "best_kept",
    "best_kept_score",
)


def collect_evidence(
    group: str, space: Space, weights: Tensor, kept: Sequence[int], classes: Sequence[int], profile_of: ProfileOf
) -> Evidence:
    """The evidence of a group from its space, its weights (channels,) and the profiles over all pairs of `classes`.

    Profiles are asked for some channels at a time, and a second time if there are more pairs than are kept.
    """
    pairs = len(classes) * (len(classes) - 1) // 2
    parts = torch.arange(space.channels).split(max(BLOCK_ENTRIES // pairs, 1))
    stays = torch.zeros(space.channels, dtype=torch.bool)
    stays[list(kept)] = True
    everyone, survivors = _Best(pairs), _Best(pairs)
    sums, squares = torch.zeros(2, pairs, dtype=torch.float64)
    whole: list[Tensor] = []
    for part in parts:
        block = profile_of(part).double().cpu()
        sums += block.sum(dim=0)
        squares += block.square().sum(dim=0)
        everyone.add(part, block)
        survivors.add(part[stays[part]], block[stays[part]])
        if pairs <= MOST_PAIRS:
            whole.append(block)
    columns = torch.arange(pairs)
    if pairs > MOST_PAIRS:
        variance = squares / space.channels - (sums / space.channels).square()
        # Rounded: which of two equal pairs is shown must not hang on the order of summation.
        columns = variance.round(decimals=9).argsort(descending=True, stable=True)[:MOST_PAIRS].sort().values
        whole = [profile_of(part).double().cpu()[:, columns] for part in parts]
    coordinates, shares = projection(space.distances.cpu())
    largest = torch.finfo(torch.float16).max  # Wasserstein distances have no bound
    return Evidence(
        group=group,
        metric=space.metric,
        classes=tuple(classes),
        spanning=len(space.classes),
        shares=shares,
        weights=weights.detach().cpu().float(),
        separability=space.separability.cpu().float(),
        coordinates=coordinates.float(),
        columns=columns.int(),
        profiles=torch.cat(whole).clamp(max=largest).half(),
        best=everyone.channel.int(),
        best_score=everyone.score.float(),
        best_kept=survivors.channel.int(),
        best_kept_score=survivors.score.float(),
    )


def projection(distances: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Classical scaling: distances (channels, channels) -> (channels, 2), and each axis' share of all the spread.

    For Euclidean distances between profiles these are the first two principal components. An eigenvector's sign is
    arbitrary, so that of each axis' largest coordinate is made positive.
    """
    count = len(distances)
    coordinates = torch.zeros(count, 2, dtype=torch.float64)
    squared = distances.double().square()
    centred = squared - squared.mean(dim=0) - squared.mean(dim=1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    values = values.clamp(min=0)
    total = float(values.sum())
    if total <= 0:
        return coordinates, (0.0, 0.0)
    axes = min(2, count)
    found = vectors[:, -axes:].flip(1) * values[-axes:].flip(0).sqrt()
    peak = found.gather(0, found.abs().argmax(dim=0, keepdim=True))
    coordinates[:, :axes] = found * torch.where(peak < 0, -1.0, 1.0)
    shares = [*(values[-axes:].flip(0) / total).tolist(), 0.0]
    return coordinates, (shares[0], shares[1])


class _Best:
    """The best channel of every pair so far, the first of equals."""

    def __init__(self, pairs: int) -> None:
        self.score = torch.full((pairs,), -torch.inf, dtype=torch.float64)
        self.channel = torch.full((pairs,), -1)

    def add(self, channels: Tensor, block: Tensor) -> None:
        if len(channels):
            score, position = block.max(dim=0)
            better = score > self.score
            self.score = torch.where(better, score, self.score)
            self.channel = torch.where(better, channels[position], self.channel)


def evidence_to_bytes(evidence: Evidence) -> bytes:
    """As safetensors; the same evidence gives the same bytes."""
    from safetensors.torch import save

    document = {
        "format": EVIDENCE_FORMAT,
        "group": evidence.group,
        "metric": evidence.metric,
        "classes": list(evidence.classes),
        "spanning": evidence.spanning,
        "shares": list(evidence.shares),
    }
    # One entry of metadata only: the order of several is not always the same.
    return save({name: getattr(evidence, name).contiguous() for name in _TENSORS}, {"document": json.dumps(document)})


def evidence_from_bytes(data: bytes, source: str) -> Evidence:
    """What `evidence_to_bytes` wrote; `source` names it in errors."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        size = int.from_bytes(data[:8], "little")
        if size > HEADER_LIMIT:
            raise ValueError(f"its header has {size:,} bytes")
        tensors = load(data)
        document: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["document"])
        found = misfit(document, {"format": int}, "its document")
        if not found and document["format"] == EVIDENCE_FORMAT:
            found = misfit(document, _DOCUMENT, "its document") or _misshapen(tensors, len(document["classes"]))
        if found:
            raise ValueError(found)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ArtifactError(
            f"{source} is damaged ({error}). Remove it to draw the page without it, or run again."
        ) from error
    if document["format"] != EVIDENCE_FORMAT:
        raise ArtifactError(
            f"{source} has format {document['format']}; this cosep reads {EVIDENCE_FORMAT}. "
            "Draw the page with the version that made the run."
        )
    return Evidence(
        group=document["group"],
        metric=document["metric"],
        classes=tuple(document["classes"]),
        spanning=document["spanning"],
        shares=(document["shares"][0], document["shares"][1]),
        **{name: tensors[name] for name in _TENSORS},
    )


_DOCUMENT = {
    "group": str,
    "metric": str,
    "classes": Where(
        [Where(COUNT, lambda label: label < LARGEST_LABEL, f"below {LARGEST_LABEL}")],
        lambda labels: 2 <= len(labels) <= MOST_CLASSES,
        f"2 to {MOST_CLASSES} classes",
    ),
    "spanning": COUNT,
    "shares": Where([FINITE], lambda shares: len(shares) == 2, "two numbers"),
}


def _misshapen(tensors: dict[str, Tensor], classes: int) -> str:
    """What is wrong with the tensors, in words; "" if the page can rely on them."""
    missing = [name for name in _TENSORS if name not in tensors]
    if missing:
        return f"it has no {missing[0]}"
    pairs, channels, shown = classes * (classes - 1) // 2, len(tensors["weights"]), len(tensors["columns"])
    shapes = {
        **dict.fromkeys(("weights", "separability"), (channels,)),
        "coordinates": (channels, 2),
        "columns": (shown,),
        "profiles": (channels, shown),
        **dict.fromkeys(("best", "best_score", "best_kept", "best_kept_score"), (pairs,)),
    }
    whole = ("columns", "best", "best_kept")
    for name, shape in shapes.items():
        kinds = (torch.int32,) if name in whole else (torch.float16, torch.float32)
        if tuple(tensors[name].shape) != shape or tensors[name].dtype not in kinds or not tensors[name].numel():
            return f"its {name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}, which does not fit"
    columns = tensors["columns"]
    return "" if bool((columns >= 0).all() and (columns < pairs).all()) else "its columns are no pairs of classes"
