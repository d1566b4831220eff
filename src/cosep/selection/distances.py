"""Distances between channels, as a caller gives them: checked before anything is built on them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cosep.errors import CalibrationError
from cosep.records import Space
from cosep.selection.clustering import Floats


def as_distances(space: Space | Tensor) -> Floats:
    """The distances of a space, or a tensor of them, checked: (channels, channels) float64, finite, symmetric."""
    given = space.distances if isinstance(space, Space) else torch.as_tensor(space)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise CalibrationError(
            f"the distances have shape {tuple(given.shape)}; they must be (channels, channels). "
            "Make them with `separability_space`, or give one distance for every two channels."
        )
    distances = given.detach().cpu().double()
    # Of 4,096 channels each copy takes 134 MB: as few as possible are made.
    least, most = (float(each) for each in distances.aminmax()) if len(distances) else (0.0, 0.0)
    if not (math.isfinite(least) and math.isfinite(most)):
        one, other = (~torch.isfinite(distances)).nonzero()[0].tolist()
        raise CalibrationError(
            f"the distance between channels {one} and {other} is not finite. "
            "Look for NaN or infinite values in what the distances were made of."
        )
    # float32 distances from matrix products are not quite symmetric, nor quite 0 between a channel and itself.
    rounding = 1e-2 * most
    if least < 0 or (
        len(distances)
        and (float((distances - distances.T).abs_().max()) > rounding or float(distances.diagonal().max()) > rounding)
    ):
        raise CalibrationError(
            "the distances are negative, not symmetric, or not zero between a channel and itself. "
            "Give a distance matrix, not similarities or features."
        )
    return np.asarray((distances + distances.T).div_(2).fill_diagonal_(0).numpy())
