"""Stage 5, rebuild: the weights that stay, re-solved in closed form beside the uncut network."""

from cosep.rebuilding.batchnorm import reestimate_batchnorm
from cosep.rebuilding.damage import measure_damage
from cosep.rebuilding.fit import Team
from cosep.rebuilding.grams import Grams, gather_grams
from cosep.rebuilding.rebuild import Rebuilt, divergence_of, rebuild

__all__ = [
    "Grams",
    "Rebuilt",
    "Team",
    "divergence_of",
    "gather_grams",
    "measure_damage",
    "rebuild",
    "reestimate_batchnorm",
]
