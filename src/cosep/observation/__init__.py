"""Stage 2: what every channel does for every class, in one pass over calibration data."""

from cosep.observation.collect import observe, observe_heads, observe_histograms
from cosep.observation.moments import (
    check_moments,
    class_histograms,
    class_moments,
    merge_all,
    merge_all_histograms,
)
from cosep.observation.taps import tapped

__all__ = [
    "check_moments",
    "class_histograms",
    "class_moments",
    "merge_all",
    "merge_all_histograms",
    "observe",
    "observe_heads",
    "observe_histograms",
    "tapped",
]
