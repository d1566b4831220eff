"""Every criterion by its name: adding one is a file in this folder and a line here."""

from __future__ import annotations

from cosep.config import PruneConfig
from cosep.criteria.cosep import Cosep
from cosep.criteria.feature_maps import by_chip, by_hrank
from cosep.criteria.protocol import Criterion, OwnCriterion
from cosep.criteria.random import by_chance
from cosep.criteria.scored import Scored
from cosep.criteria.weights import by_batchnorm, by_fpgm, by_l1, by_l2, by_taylor
from cosep.errors import ConfigError
from cosep.plugins import call_factory, file_factory, is_file_factory

_TAP = {"observe": {"tap": "activation"}}
_MAGNITUDE = {**_TAP, "profile": {"magnitude": True}, "select": {"representative": "salient"}}
_MASS = "CoSeP behind the activation, large filters count more in the clustering"

CRITERIA: dict[str, Criterion] = {
    each.name: each
    for each in (
        Cosep("cosep", "the configured CoSeP"),
        Cosep("cosep-magnitude", "CoSeP in the magnitude-aware space", _MAGNITUDE),
        Cosep("cosep-mass", _MASS, {**_TAP, "select": {"mass": 2.0}}),
        Cosep("medoid", "CoSeP's clusters, their medoids", {"select": {"representative": "medoid"}}),
        Cosep("random-in-cluster", "CoSeP's clusters, any channel", {"select": {"representative": "random"}}),
        Scored("random", "channels at random, the paper's baseline", by_chance),
        Scored("l1", "the largest L1 norm of the filter", by_l1),
        Scored("l2", "the largest L2 norm of the filter", by_l2),
        Scored("fpgm", "the filters furthest from all others", by_fpgm),
        Scored("bn-scale", "the largest scale of BatchNorm", by_batchnorm),
        Scored("taylor", "the largest first-order effect on the loss", by_taylor),
        Scored("hrank", "the highest rank of the feature map", by_hrank),
        Scored("chip", "the feature maps that others replace least", by_chip),
    )
}


def criterion(name: str, config: PruneConfig) -> Criterion:
    """The criterion of a name, or of a user's `path/to/file.py:factory`."""
    if is_file_factory(name):
        with file_factory(name, ConfigError) as factory:
            return OwnCriterion(call_factory(factory, name, ConfigError, config=config), name)
    if name not in CRITERIA:
        raise ConfigError(
            f"there is no criterion {name!r}; there are {', '.join(CRITERIA)}, and path/to/file.py:factory."
        )
    return CRITERIA[name]
