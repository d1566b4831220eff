"""Stage 3, profile: class statistics -> the separability space of a layer. Pure: tensors in, tensors out."""

from cosep.profiles.metrics import bhattacharyya, hellinger, jm, jm_histogram, wasserstein
from cosep.profiles.screen import one_versus_rest, rest_of, top_classes
from cosep.profiles.space import profiles, separability_space

__all__ = [
    "bhattacharyya",
    "hellinger",
    "jm",
    "jm_histogram",
    "one_versus_rest",
    "profiles",
    "rest_of",
    "separability_space",
    "top_classes",
    "wasserstein",
]
