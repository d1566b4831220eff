"""Stage 5, rebuild: the weights that stay, re-solved in closed form on calibration data."""

from cosep.rebuilding.batchnorm import reestimate_batchnorm
from cosep.rebuilding.compensate import compensate
from cosep.rebuilding.sweep import PrefixCache

__all__ = ["PrefixCache", "compensate", "reestimate_batchnorm"]
