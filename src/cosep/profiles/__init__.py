"""Stage 3, profile: class statistics -> the separability space of a layer. Pure: tensors in, tensors out."""

import sys
import warnings
from types import ModuleType
from typing import Any

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


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`cosep.profiles` was a function that hid this package; for one version it still can be called."""
        warnings.warn(
            "cosep.profiles is a package now; call cosep.separability_profiles.", DeprecationWarning, stacklevel=2
        )
        return profiles(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
