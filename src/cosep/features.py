"""The method without a network: which columns of an activation matrix separate the same classes, and which stay."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from cosep.config import ObserveConfig, ProfileConfig, SelectConfig
from cosep.observation import class_histograms, class_moments
from cosep.profiles import separability_space
from cosep.records import Selection
from cosep.selection import check_degree, select


def select_channels(
    activations: Tensor | np.ndarray[Any, Any],
    labels: Tensor | np.ndarray[Any, Any],
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    salience: Tensor | None = None,
    classes: int | None = None,
    profile: ProfileConfig | None = None,
    select_config: SelectConfig | None = None,
    bins: int = ObserveConfig.bins,
    seed: int = 0,
) -> Selection:
    """Which columns of a matrix (samples, channels) with labels (samples,) stay: features of any kind will do.

    weights: (channels,) norms, for the representative "weighted", the default; without them, the medoids stay.
    scores: (channels,) your own figures; the largest of each cluster stays. salience: (channels,) factors of the
    profiles. classes: their number, if the labels may not show all. bins: of the metric "jm-histogram".
    seed: of the clustering's random starts.
    """
    profile = profile or ProfileConfig()
    if select_config is None:
        select_config = SelectConfig(representative="medoid" if weights is None else "weighted")
    moments = class_moments(activations, labels, classes)
    check_degree(moments.channels, select_config.degree)
    histograms = class_histograms(activations, labels, classes, bins=bins) if profile.metric == "jm-histogram" else None
    space = separability_space(moments, profile, histograms=histograms, salience=salience)
    return select(space, weights=weights, scores=scores, config=select_config, seed=seed)
