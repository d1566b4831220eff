"""Other ways to choose channels, behind the same Selection record."""

from cosep.baselines.choosing import best_channels
from cosep.baselines.feature_maps import chip, hrank
from cosep.baselines.random import random_channels, random_scores
from cosep.baselines.weights import fpgm, importance, with_gradients

__all__ = ["best_channels", "chip", "fpgm", "hrank", "importance", "random_channels", "random_scores", "with_gradients"]
