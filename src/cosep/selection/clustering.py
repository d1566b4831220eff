"""k-medoids for every k: the only home of the package `kmedoids` (FasterPAM)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# An exchange that lowers the loss by less than this share of it is rounding.
_ROUNDING = 1e-10

# With few channels or few clusters a poor local optimum shows. Further starts: for every k so many divided by the
# channels, where each costs little, and for the first few k, which are few, at least two.
_STARTS = 128
_FIRST_K, _FIRST_STARTS = 16, 2

# The last so many k are also approached from above. Their losses are sums of few distances, so one poor merge shows.
_FROM_ABOVE = 32


@dataclass(frozen=True, eq=False)
class Clustering:
    """A k-medoids solution and what a silhouette needs of it; all of it grows with the channels, not their square.

    near, second and total are distances times the channel's mass.
    """

    medoids: Indices  # (k,), ascending
    near: Floats  # (channels,): to the own medoid, the nearest one
    second: Floats  # (channels,): to the nearest of the other medoids; infinite for k = 1
    total: Floats  # (channels,): to all medoids together

    @property
    def k(self) -> int:
        return len(self.medoids)

    @property
    def loss(self) -> float:
        """What k-medoids minimises: the sum of the masses' distances to the own medoids."""
        return float(self.near.sum())


def cluster_every_k(
    distances: Floats,
    last: int | None = None,
    *,
    seed: int = 0,
    mass: Floats | None = None,
    only: Collection[int] | None = None,
) -> Iterator[Clustering]:
    """Yield the clusterings of k = 1, 2, ... `last` (channels - 1) from (channels, channels) symmetric distances.

    With `only`, the clusterings of these k: on the way to each of them channels are added and nothing is exchanged.

    With `mass` (channels,) a channel's distance counts so many times: what is light may be far from its medoid.
    Each k starts from the medoids of k - 1 and the channel whose addition lowers the loss most (PAM's BUILD step),
    and FasterPAM exchanges medoids until no exchange helps. Small layers and the first few k also try random starts,
    drawn by the seed, and the last few k a start from k + 1 medoids less the cheapest one. One thread does it all:
    the same answer everywhere. Two savings make every k affordable, and neither changes an answer. The gain of each
    possible addition is kept up to date instead of being summed anew. And FasterPAM, which needs at least one look at
    the whole matrix, only runs where an exchange that helps exists. As the previous solution had none, and an
    addition only lowers what others can gain, such an exchange must remove a medoid of a cluster that the addition
    touched: only those are examined.
    """
    import kmedoids

    matrix, to = _costs(distances, mass)
    channels = len(matrix)
    last = channels - 1 if last is None else last
    order = np.array([matrix.sum(axis=0).argmin()])  # medoids, in the order of their clusters' numbers
    near = to[order[0]].copy()
    second = np.full(channels, np.inf)
    total = near.copy()
    owner = np.zeros(channels, dtype=np.int64)
    gain = np.zeros(channels)  # by how much each channel would lower the loss, were it a medoid too
    gain += _savings(matrix, np.arange(channels), near)
    if last >= 1 and (only is None or 1 in only):
        yield _frozen(order, near, second, total)

    above: dict[int, Any] = {}
    for k in range(2, last + 1):
        free = gain.copy()
        free[order] = -np.inf
        added = free.argmax()
        to_added = to[added]
        closer = to_added < near
        closer[added] = True  # also where it coincides with an older medoid: no cluster is empty
        between = ~closer & (to_added < second)
        touched = np.zeros(k, dtype=bool)
        touched[owner[closer | between]] = True
        touched[k - 1] = True

        nearer = np.flatnonzero(closer)
        gain += _savings(matrix, nearer, to_added) - _savings(matrix, nearer, near)
        second[closer], second[between] = near[closer], to_added[between]
        near[closer] = to_added[closer]
        owner[closer] = k - 1
        total += to_added
        order = np.append(order, added)

        if only is not None and k not in only:
            continue
        found = None
        if only is not None or _can_improve(matrix, near, second, owner, gain, touched):
            found = kmedoids.fasterpam(matrix, order, n_cpu=1)
        if only is None and k == max(2, channels - _FROM_ABOVE):
            above = _from_above(matrix, to)
        others = [above[k]] if k in above else []
        for start in range(max(_STARTS // channels, _FIRST_STARTS if k <= _FIRST_K else 0)):
            others.append(kmedoids.fasterpam(matrix, k, random_state=seed + start, n_cpu=1))
        for other in others:
            if other.loss < (1 - _ROUNDING) * (near.sum() if found is None else found.loss):
                found = other
        if found is not None:
            order = np.asarray(found.medoids, dtype=np.int64)
            before = near
            near, second, total, owner = _measured(to, order, np.asarray(found.labels, dtype=np.int64))
            moved = np.flatnonzero(near != before)
            gain += _savings(matrix, moved, near) - _savings(matrix, moved, before)
        yield _frozen(order, near, second, total)


def cluster_at(
    distances: Floats, k: int, *, seed: int = 0, mass: Floats | None = None, alone: bool = False
) -> Clustering:
    """The clustering that `cluster_every_k` finds for one k between 1 and the number of channels.

    `alone`: where it is asked for no other k, which takes far less time and is nearly as good.
    """
    if k >= len(distances):
        everyone = np.arange(len(distances))
        near, second, total, _ = _measured(_costs(distances, mass)[1], everyone, everyone)
        return _frozen(everyone, near, second, total)
    *_, wanted = cluster_every_k(distances, k, seed=seed, mass=mass, only=(k,) if alone else None)
    return wanted


def assign(distances: Floats, medoids: NDArray[np.integer]) -> Indices:
    """The cluster of every channel: (channels,), the position in `medoids` of the nearest, the first of equals.

    A medoid belongs to its own cluster, also where it coincides with another one: no cluster is empty.
    """
    owner = distances[medoids].argmin(axis=0).astype(np.int64)
    owner[medoids] = np.arange(len(medoids))
    return owner


def _costs(distances: Floats, mass: Floats | None) -> tuple[Floats, Floats]:
    """What channel i costs at medoid j, [i, j], and transposed. kmedoids reads its matrix in the first way only."""
    matrix = np.ascontiguousarray(distances, dtype=np.float64)
    if mass is None:
        return matrix, matrix
    matrix = matrix * mass[:, None]
    return matrix, np.ascontiguousarray(matrix.T)


def _from_above(matrix: Floats, to: Floats) -> dict[int, Any]:
    """FasterPAM's results for the last k, each started from the medoids of k + 1 without the cheapest to lose."""
    import kmedoids

    medoids = owner = np.arange(len(matrix))
    results = {}
    for k in range(len(matrix) - 1, max(1, len(matrix) - _FROM_ABOVE - 1), -1):
        near, second, _, owner = _measured(to, medoids, owner)
        cost = np.bincount(owner, weights=second - near, minlength=k + 1)
        results[k] = kmedoids.fasterpam(matrix, np.delete(medoids, cost.argmin()), n_cpu=1)
        medoids, owner = (np.asarray(part, dtype=np.int64) for part in (results[k].medoids, results[k].labels))
    return results


def _savings(matrix: Floats, rows: Indices, near: Floats) -> Floats:
    """What each channel, as a medoid, would save those of the given rows: (channels,). In blocks, to save memory."""
    saved = np.zeros(len(matrix))
    for some in np.array_split(rows, max(1, len(rows) // 256)):
        saved += np.maximum(near[some, None] - matrix[some], 0.0).sum(axis=0)
    return saved


def _can_improve(
    matrix: Floats, near: Floats, second: Floats, owner: Indices, gain: Floats, touched: NDArray[np.bool_]
) -> bool:
    """Whether exchanging the medoid of a touched cluster for any channel lowers the loss.

    Removing medoid m and adding channel j changes the loss by Σ(second - near) over m's members, which fall back to
    their second medoids, less what j gains from all, less what j then saves m's members between near and second.
    """
    rows = np.flatnonzero(touched[owner])
    rows = rows[owner[rows].argsort(kind="stable")]
    starts = np.flatnonzero(np.diff(owner[rows], prepend=-1))
    low, high = near[rows], second[rows]
    saved = high[:, None] - np.clip(matrix[rows], low[:, None], high[:, None])
    change = np.add.reduceat(high - low, starts)[:, None] - np.add.reduceat(saved, starts, axis=0) - gain
    return bool(change.min() < -_ROUNDING * near.sum())


def _measured(to: Floats, medoids: Indices, owner: Indices) -> tuple[Floats, Floats, Floats, Indices]:
    """near, second, total and the clusters of a solution found elsewhere; `to` [j, i] is what i costs at medoid j."""
    everyone = np.arange(len(to))
    to_medoids = to[medoids]  # (k, channels)
    total = to_medoids.sum(axis=0)
    owner = owner.copy()
    owner[medoids] = np.arange(len(medoids))
    near = to_medoids[owner, everyone]
    to_medoids[owner, everyone] = np.inf
    return near, to_medoids.min(axis=0), total, owner


def _frozen(order: Indices, near: Floats, second: Floats, total: Floats) -> Clustering:
    return Clustering(np.sort(order), near.copy(), second.copy(), total.copy())
