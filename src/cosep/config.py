"""Settings: frozen, keyword-only, one dataclass a stage; each checks itself when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from cosep.errors import ConfigError

Metric = Literal["jm", "jm-histogram", "hellinger", "wasserstein"]
Silhouette = Literal["mean", "nearest"]
Representative = Literal["weighted", "medoid", "random"]
Tap = Literal["output", "activation"]


def check_choice(setting: str, value: object, choices: object) -> None:
    """Refuse a value that is not one of a Literal's."""
    allowed = get_args(choices)
    if value not in allowed:
        raise ConfigError(f"{setting} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_at_least(setting: str, value: float, least: float) -> None:
    """Refuse a number below a bound."""
    if value < least:
        raise ConfigError(f"{setting} is {value}; it must be at least {least}.")


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """How channels are reduced to one number an image."""

    tap: Tap = "output"  # the layer's own output (the paper), or what its activation makes of it
    bins: int = 64  # of each channel's histogram; only the metric "jm-histogram" uses it

    def __post_init__(self) -> None:
        check_choice("observe.tap", self.tap, Tap)
        check_at_least("observe.bins", self.bins, 2)


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """How channels are described and compared."""

    metric: Metric = "jm"
    max_classes: int = 100  # M: with more classes, the M best separated ones from the rest span the space

    def __post_init__(self) -> None:
        check_choice("profile.metric", self.metric, Metric)
        check_at_least("profile.max_classes", self.max_classes, 2)


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """How the number of clusters and their representatives are found."""

    silhouette: Silhouette = "mean"
    degree: int = 2  # of the polynomial fitted to the silhouette curve
    sensitivity: float = 1.0  # Kneedle's S
    representative: Representative = "weighted"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("select.silhouette", self.silhouette, Silhouette)
        check_choice("select.representative", self.representative, Representative)
        check_at_least("select.degree", self.degree, 1)
        check_at_least("select.sensitivity", self.sensitivity, 0)


def names(config: type) -> tuple[str, ...]:
    """The settings of a stage, in order."""
    return tuple(f.name for f in fields(config))
