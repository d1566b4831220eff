"""The Mean Simplified Silhouette of a clustering, in the two readings of the literature."""

from __future__ import annotations

import numpy as np

from cosep.config import Silhouette, check_choice
from cosep.selection.clustering import Clustering


def mean_simplified_silhouette(clustering: Clustering, reading: Silhouette = "mean") -> float:
    """The mean of (b - a) / max(a, b) over the channels of a clustering with k >= 2; at most 1, higher is better.

    a is a channel's distance to its own medoid. "mean", as in GB-AFS: b is the mean distance to the other medoids, and
    channels that coincide with their medoid are left out; 1 if all of them do. "nearest", the equation of the CoSeP
    paper: b is the distance to the nearest other medoid, over all channels; one that coincides with two counts 0.
    """
    check_choice("silhouette", reading, Silhouette)
    a = clustering.near
    if reading == "nearest":
        b = clustering.second
        larger = np.maximum(a, b)
        return float(np.divide(b - a, larger, out=np.zeros_like(a), where=larger > 0).mean())
    apart = a > 0
    if not apart.any():
        return 1.0
    a = a[apart]
    b = (clustering.total[apart] - a) / (clustering.k - 1)
    return float(((b - a) / np.maximum(a, b)).mean())
