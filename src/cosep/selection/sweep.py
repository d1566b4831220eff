"""Clusterings of every k, once: the curve of their silhouettes, and the channels that any k keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cosep.config import SelectConfig
from cosep.errors import ConfigError
from cosep.records import Selection, Space
from cosep.selection.candidates import Candidates
from cosep.selection.clustering import Floats, assign, cluster_at, cluster_every_k
from cosep.selection.distances import as_distances
from cosep.selection.representatives import checked_ranking, ranking_of, representatives
from cosep.selection.silhouette import mean_simplified_silhouette

EVERY_K = 2048  # channels up to which every k is clustered
GRID = 128  # k that are clustered in a wider layer


@dataclass(frozen=True, eq=False)
class Sweep:
    """The k-medoids solutions of a layer. Another k is looked up, not clustered again."""

    distances: Floats
    config: SelectConfig
    seed: int
    weights: Tensor | None
    scores: Tensor | None
    mass: Floats | None
    medoids: dict[int, NDArray[np.integer]] = field(default_factory=dict)  # by k
    ks: tuple[int, ...] = ()  # from 2 on
    curve: tuple[float, ...] = ()  # the silhouette at each k
    losses: tuple[float, ...] = ()  # the k-medoids loss at each k
    why_whole: str = ""  # why there is no curve, in words
    notes: tuple[str, ...] = ()  # of what the distances are made of

    @property
    def channels(self) -> int:
        return len(self.distances)

    @property
    def counts(self) -> tuple[float, ...] | None:
        """How many channels each silhouette is a mean over (those that are no medoids), if the fit goes by that."""
        return tuple(float(self.channels - k) for k in self.ks) if self.config.weighted_fit else None

    def at(self, k: int) -> Selection:
        """One representative of each of k clusters."""
        if not 1 <= k <= self.channels:
            raise ConfigError(
                f"the width {k} was asked for; the layer has {self.channels} channels: ask for 1 to {self.channels}."
            )
        if k not in self.medoids:
            wide = self.channels > EVERY_K
            self.medoids[k] = cluster_at(self.distances, k, seed=self.seed, mass=self.mass, alone=wide).medoids
        medoids = self.medoids[k]
        clusters = tuple(assign(self.distances, medoids).tolist())
        names = tuple(medoids.tolist())
        chosen = representatives(
            clusters, names, weights=self.weights, scores=self.scores, config=self.config, seed=self.seed
        )
        return replace(
            self.evidence,
            kept=tuple(sorted(chosen)),
            k=len(names),
            clusters=clusters,
            medoids=names,
            representatives=chosen,
        )

    def candidates(self, group: str, ranking: Tensor, evidence: object = None) -> Candidates:
        """Every choice of this sweep, for a width rule; `ranking` (channels,) is what finishing goes by."""
        return Candidates(
            group=group,
            channels=self.channels,
            choose=self.at,
            ranking=ranking,
            ks=self.ks,
            curve=self.curve,
            counts=self.counts,
            losses=self.losses,
            why_whole=self.why_whole,
            notes=self.notes,
            evidence=evidence,
        )

    @property
    def evidence(self) -> Selection:
        """The curve, without a choice."""
        return Selection(self.channels, (), "", None, self.ks, self.curve, (), self.losses, notes=self.notes)


def sweep(
    space: Space | Tensor,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    config: SelectConfig | None = None,
    seed: int = 0,
) -> Sweep:
    """Cluster the channels of a space, or of distances (channels, channels), for every k, and score each clustering.

    In a very wide layer only some k are clustered, and a note says so: the time grows faster than the square of the
    width. A layer with too few channels for a curve gets none, and the sweep says why; it can still be asked for any k.
    """
    config = config or SelectConfig()
    distances = as_distances(space)
    channels = len(distances)
    ranking_of(channels, weights=weights, scores=scores, config=config)  # refuse bad input before the work
    notes = left_out(space.left_out) if isinstance(space, Space) else ()
    empty = Sweep(distances, config, seed, weights, scores, mass_of(channels, weights, config), notes=notes)
    if channels < 4:
        return replace(empty, why_whole="too few channels")
    if channels - 2 < config.degree + 1:
        return replace(empty, why_whole=f"too few channels for a fit of degree {config.degree}")
    medoids: dict[int, NDArray[np.integer]] = {}
    losses, curve = [], []
    ks = grid(channels) if channels > EVERY_K else None
    for clustering in cluster_every_k(distances, seed=seed, mass=empty.mass, only=ks):
        medoids[clustering.k] = clustering.medoids.astype(np.int32)
        if clustering.k > 1:
            losses.append(clustering.loss)
            curve.append(mean_simplified_silhouette(clustering, config.silhouette))
    if ks is not None:
        thinned = f"of {channels} channels {len(ks)} of the {channels - 2} possible widths were clustered"
        empty = replace(empty, notes=(*notes, thinned))
    ks = ks or tuple(range(2, channels))
    return replace(empty, medoids=medoids, ks=ks, curve=tuple(curve), losses=tuple(losses))


def grid(channels: int) -> tuple[int, ...]:
    """Evenly spread k for a curve of a very wide layer, each in the middle of those that it stands for.

    A polynomial through them is nearly the one through all: none counts for more than its share.
    """
    step = (channels - 2) / GRID
    return tuple(2 + int((i + 0.5) * step) for i in range(GRID))


def mass_of(channels: int, weights: Tensor | None, config: SelectConfig) -> Floats | None:
    """How much each channel counts in the clustering, (channels,); None where all count alike."""
    if config.mass == 0 or channels == 0:
        return None
    if weights is None:
        raise ConfigError(
            f"select.mass is {config.mass:g}, which needs the weights of the channels. Give `weights`, or set it to 0."
        )
    norms = checked_ranking("weights", weights, channels)
    if norms.min() < 0:
        raise ConfigError(f"select.mass needs norms; the weight of channel {norms.argmin()} is {norms.min():g}.")
    # Powers of large or small norms would leave the range of numbers; where all are 0 none counts more than another.
    largest = norms.max()
    return (norms / largest) ** config.mass if largest > 0 else None


def left_out(classes: tuple[int, ...], shown: int = 10) -> tuple[str, ...]:
    """The note of classes that have no part in the distances; none where all have."""
    if not classes:
        return ()
    more = f" and {len(classes) - shown} more" if len(classes) > shown else ""
    what = "class" if len(classes) == 1 else "classes"
    named = ", ".join(map(str, classes[:shown])) + more
    return (f"{len(classes)} {what} with fewer than 2 calibration images left out of the class pairs: {named}",)
