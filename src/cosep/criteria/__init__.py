"""Other ways to choose channels, behind the same Selection record."""

from cosep.criteria.choosing import best_channels
from cosep.criteria.feature_maps import chip, hrank
from cosep.criteria.random import random_channels, random_scores
from cosep.criteria.weights import fpgm, importance, with_gradients

__all__ = ["best_channels", "chip", "fpgm", "hrank", "importance", "random_channels", "random_scores", "with_gradients"]
