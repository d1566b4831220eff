"""Other ways to choose channels, behind the same Selection record."""

from cosep.baselines.random import random_channels

__all__ = ["random_channels"]
