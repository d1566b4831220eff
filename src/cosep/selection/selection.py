"""Which channels of a layer stay: cluster for every k, score, find the knee, represent."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosep.config import SelectConfig
from cosep.errors import CalibrationError, ConfigError
from cosep.records import Selection, Space
from cosep.selection.clustering import Floats, assign, cluster_every_k
from cosep.selection.knee import find_knee, fit_curve
from cosep.selection.representatives import checked_ranking, ranking_of, representatives
from cosep.selection.silhouette import mean_simplified_silhouette
from cosep.selection.stability import instability


def select(
    space: Space | Tensor,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    config: SelectConfig | None = None,
) -> Selection:
    """Choose the channels to keep from a space, or from distances (channels, channels); the evidence comes with it.

    `weights` (channels,) are what the representative "weighted" and the setting "mass" go by; `scores` (channels,), if
    given, choose the representatives whatever the setting is. A layer without a knee is kept whole, and the reason says
    why: no knee, a flat curve, a knee at the edge, or too few channels (fewer than four, or fewer than the polynomial
    needs).
    """
    config = config or SelectConfig()
    distances = as_distances(space)
    channels = len(distances)
    ranking_of(channels, weights=weights, scores=scores, config=config)  # refuse bad input before the work
    mass = mass_of(channels, weights, config)

    notes = _left_out(space.left_out) if isinstance(space, Space) else ()
    if channels < 4:
        return _whole(channels, "too few channels", notes)
    candidates = tuple(range(2, channels))
    if len(candidates) < config.degree + 1:
        return _whole(channels, f"too few channels for a fit of degree {config.degree}", notes)

    medoids, losses, curve = [], [], []
    for clustering in islice(cluster_every_k(distances, seed=config.seed, mass=mass), 1, None):  # from k = 2 on
        medoids.append(clustering.medoids.astype(np.int32))
        losses.append(clustering.loss)
        curve.append(mean_simplified_silhouette(clustering, config.silhouette))

    # At k clusters, the silhouette is a mean over the channels that are not medoids themselves.
    counts = [channels - k for k in candidates] if config.weighted_fit else None
    fit = fit_curve(candidates, curve, config.degree, counts)
    knee = find_knee(candidates, fit, config.sensitivity)
    if doubt := instability(candidates, curve, config.degree, config.sensitivity, counts):
        notes = (*notes, doubt)
    evidence = Selection(channels, (), knee.reason, None, candidates, tuple(curve), fit, tuple(losses), notes=notes)
    if knee.x is None:
        return replace(evidence, kept=tuple(range(channels)), reason=f"{knee.reason}: kept whole")
    k = int(knee.x)
    return represented(evidence, distances, medoids[k - 2], weights=weights, scores=scores, config=config)


def represented(
    evidence: Selection,
    distances: Floats,
    medoids: NDArray[np.integer],
    *,
    weights: Tensor | None,
    scores: Tensor | None,
    config: SelectConfig,
) -> Selection:
    """The selection that keeps one representative of each medoid's cluster, with the curve of `evidence`."""
    clusters = tuple(assign(distances, medoids).tolist())
    names = tuple(medoids.tolist())
    chosen = representatives(clusters, names, weights=weights, scores=scores, config=config)
    return replace(
        evidence, kept=tuple(sorted(chosen)), k=len(names), clusters=clusters, medoids=names, representatives=chosen
    )


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


def as_distances(space: Space | Tensor) -> Floats:
    """The distances of a space, or a tensor of them, checked: (channels, channels) float64, finite, symmetric."""
    given = space.distances if isinstance(space, Space) else torch.as_tensor(space)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise CalibrationError(
            f"the distances have shape {tuple(given.shape)}; they must be (channels, channels). "
            "Make them with `separability_space`, or give one distance for every two channels."
        )
    distances = given.detach().cpu().double()
    if not bool(torch.isfinite(distances).all()):
        one, other = (~torch.isfinite(distances)).nonzero()[0].tolist()
        raise CalibrationError(
            f"the distance between channels {one} and {other} is not finite. "
            "Look for NaN or infinite values in what the distances were made of."
        )
    # float32 distances from matrix products are not quite symmetric, nor quite 0 between a channel and itself.
    rounding = 1e-2 * float(distances.abs().max()) if len(distances) else 0.0
    if (
        bool((distances < 0).any())
        or bool(((distances - distances.T).abs() > rounding).any())
        or bool((distances.diagonal() > rounding).any())
    ):
        raise CalibrationError(
            "the distances are negative, not symmetric, or not zero between a channel and itself. "
            "Give a distance matrix, not similarities or features."
        )
    return np.asarray(((distances + distances.T) / 2).fill_diagonal_(0).numpy())


def _whole(channels: int, why: str, notes: tuple[str, ...]) -> Selection:
    return Selection(channels, tuple(range(channels)), f"{why}: kept whole", notes=notes)


def _left_out(classes: tuple[int, ...], shown: int = 10) -> tuple[str, ...]:
    """The note of classes that have no part in the distances; none where all have."""
    if not classes:
        return ()
    more = f" and {len(classes) - shown} more" if len(classes) > shown else ""
    what = "class" if len(classes) == 1 else "classes"
    named = ", ".join(map(str, classes[:shown])) + more
    return (f"{len(classes)} {what} with fewer than 2 calibration images left out of the class pairs: {named}",)
