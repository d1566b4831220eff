"""Settings: frozen, keyword-only, one dataclass a stage; each checks itself when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_type_hints

from cosep.errors import ConfigError
from cosep.records import Scope

Metric = Literal["jm", "jm-histogram", "hellinger", "wasserstein"]
Silhouette = Literal["mean", "nearest"]
Representative = Literal["weighted", "salient", "medoid", "random"]
Tap = Literal["output", "activation"]
Schedule = Literal["per-layer", "final", "none"]
Decay = Literal["constant", "cosine"]
Optimizer = Literal["sgd", "adamw"]
Preset = Literal["default", "paper"]

LARGEST_SEED = 2**62  # some generators take signed numbers, and some of ours add a little


def setting(default: Any, help: str) -> Any:
    """A setting's default, and what it is for: the text that the command's help shows."""
    return field(default=default, metadata={"help": help})


def check_choice(setting: str, value: object, choices: object) -> None:
    """Refuse a value that is not one of a Literal's."""
    allowed = get_args(choices)
    if value not in allowed:
        raise ConfigError(f"{setting} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_at_least(setting: str, value: float, least: float) -> None:
    """Refuse a number below a bound."""
    if not least <= value < math.inf:  # which nan is neither
        raise ConfigError(f"{setting} is {value}; it must be at least {least}.")


def check_between(setting: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside a closed range."""
    if not low <= value <= high:
        raise ConfigError(f"{setting} is {value}; it must be between {low} and {high}.")


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """How channels are reduced to one number an image."""

    tap: Tap = setting("output", "the layer's own output (the paper), or what its activation makes of it")
    images: int = setting(
        -1,
        "calibration images that the statistics see; 0: all that there are; -1: 5,000, or 20 a class if that is more",
    )
    bins: int = setting(64, 'of each channel\'s histogram; only the metric "jm-histogram" uses it')

    def __post_init__(self) -> None:
        check_choice("observe.tap", self.tap, Tap)
        check_at_least("observe.images", self.images, -1)
        check_between("observe.bins", self.bins, 2, 2**16)

    def images_for(self, classes: int) -> int:
        """How many images the statistics of so many classes see; 0: all."""
        return max(5000, 20 * classes) if self.images == -1 else self.images


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """How channels are described and compared."""

    metric: Metric = setting("jm", "the distance between two classes' activations")
    max_classes: int = setting(100, "M: with more classes, the M best separated ones from the rest span the space")
    magnitude: bool = setting(
        False, 'multiply profiles by salience: what a channel passes on to the next layers; needs the tap "activation"'
    )

    def __post_init__(self) -> None:
        check_choice("profile.metric", self.metric, Metric)
        check_at_least("profile.max_classes", self.max_classes, 2)


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """How the number of clusters and their representatives are found."""

    silhouette: Silhouette = setting(
        "mean", "b is the mean distance to the other medoids (GB-AFS), or to the nearest (the paper's equation)"
    )
    degree: int = setting(2, "of the polynomial fitted to the silhouette curve")
    weighted_fit: bool = setting(False, "let a k count as much in the fit as there are channels left to score at it")
    sensitivity: float = setting(
        1.0, "Kneedle's S: how clear a knee must be; 0: any local maximum above the chord will do"
    )
    mass: float = setting(
        0.0, "a channel counts in the clustering by the norm of its filter to this power; 0: all alike (the paper)"
    )
    representative: Representative = setting("weighted", "the channel of a cluster that stays")
    seed: int = setting(0, "of the clustering's random starts and of random representatives; --seed sets it too")

    def __post_init__(self) -> None:
        check_choice("select.silhouette", self.silhouette, Silhouette)
        check_choice("select.representative", self.representative, Representative)
        check_between("select.seed", self.seed, 0, LARGEST_SEED)
        check_at_least("select.degree", self.degree, 1)
        check_at_least("select.sensitivity", self.sensitivity, 0)
        check_at_least("select.mass", self.mass, 0)


@dataclass(frozen=True, kw_only=True)
class SurgeryConfig:
    """What may be cut, and what is done to the weights that stay."""

    scope: Scope = setting("interior", "interior: only channels that touch no residual sum; all: those too")
    round_to: int = setting(1, "widths are rounded up to a multiple of this")
    compensate: bool = setting(True, "re-solve the consumers' weights after a cut")
    reestimate_batchnorm: bool = setting(True, "after a cut")
    images: int = setting(3000, "calibration images that compensation and BatchNorm see")
    ridge: float = setting(1e-3, "of compensation, relative to the mean variance of the kept inputs")
    positions: int = setting(16, "at most this many sampled output positions an image enter the Gram matrix")
    max_gram: int = setting(
        5000, "the widest Gram matrix; above it channels are regressed on channels, not patches on patches"
    )

    def __post_init__(self) -> None:
        check_choice("surgery.scope", self.scope, Scope)
        check_at_least("surgery.round_to", self.round_to, 1)
        check_at_least("surgery.images", self.images, 1)
        check_at_least("surgery.ridge", self.ridge, 0)
        check_at_least("surgery.positions", self.positions, 1)
        check_at_least("surgery.max_gram", self.max_gram, 1)


@dataclass(frozen=True, kw_only=True)
class RecoverConfig:
    """How the network is trained after cutting. The budget is counted in updates: `epochs` passes over `share` of the
    training batches for each cut group, spent after each group (per-layer) or once at the end (final)."""

    schedule: Schedule = setting("final", "train after each cut group, once at the end, or never")
    epochs: float = setting(2.0, "passes over the share, for each cut group")
    share: float = setting(0.25, "of the training batches that make one pass")
    fixed_share: bool = setting(
        False, "the same part of the training data every time (the paper), or all of it in turn"
    )
    optimizer: Optimizer = setting("sgd", "SGD as published, or AdamW")
    lr: float = setting(0.02, "the peak rate")
    momentum: float = setting(0.9, "of SGD")
    nesterov: bool = setting(False, "of SGD")
    weight_decay: float = setting(1e-4, "of the optimizer")
    warmup: float = setting(0.05, "the part of the updates in which the rate rises to its peak")
    decay: Decay = setting("cosine", "of the learning rate")
    clip: float = setting(5.0, "the largest gradient norm; 0 turns it off")
    distill: float = setting(0.9, "the weight of the unpruned network's outputs; the labels get the rest")
    temperature: float = setting(4.0, "of the distillation")
    features: float = setting(3.0, "the weight of the unpruned network's block outputs; 0 turns it off")
    label_smoothing: float = setting(0.0, "of the cross-entropy")

    def __post_init__(self) -> None:
        check_choice("recover.schedule", self.schedule, Schedule)
        check_choice("recover.optimizer", self.optimizer, Optimizer)
        check_choice("recover.decay", self.decay, Decay)
        check_between("recover.share", self.share, 0, 1)
        check_between("recover.distill", self.distill, 0, 1)
        check_between("recover.warmup", self.warmup, 0, 1)
        check_between("recover.label_smoothing", self.label_smoothing, 0, 1)
        for setting in ("epochs", "lr", "momentum", "weight_decay", "clip", "features"):
            check_at_least(f"recover.{setting}", getattr(self, setting), 0)
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"recover.temperature is {self.temperature}; it must be above 0.")


@dataclass(frozen=True, kw_only=True)
class LimitConfig:
    """What the result must keep to. None is required: the defaults set no limit."""

    max_drop: float = setting(100.0, "points of accuracy on held-out data that may be lost; 100: no limit")
    max_macs: str = setting("", '"50%" of the uncut network\'s, or a number such as "20e6"')
    max_params: str = setting("", '"50%" of the uncut network\'s parameters, or a number such as "1e6"')
    max_latency_ms: float = setting(0.0, "of one input on the device at hand; 0: no limit")

    def __post_init__(self) -> None:
        check_at_least("limits.max_drop", self.max_drop, 0)
        check_at_least("limits.max_latency_ms", self.max_latency_ms, 0)
        for setting in ("max_macs", "max_params"):
            if getattr(self, setting):
                amount(f"limits.{setting}", getattr(self, setting), 1.0)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where it runs: handed to Lightning Fabric as it is."""

    accelerator: str = setting("auto", "auto, cpu, cuda, mps, ...")
    devices: int = setting(1, "processes on each machine")
    nodes: int = setting(1, "machines")
    precision: str = setting("32-true", "32-true, 16-mixed, bf16-mixed, ...")
    channels_last: bool = setting(True, "work in the memory format that convolutions are faster in on most devices")

    def __post_init__(self) -> None:
        check_between("device.devices", self.devices, 1, 1024)
        check_between("device.nodes", self.nodes, 1, 2**16)


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """Every setting of a run. `preset("default")` and `preset("paper")` make one; `replace_settings` changes some."""

    observe: ObserveConfig = field(default_factory=ObserveConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    surgery: SurgeryConfig = field(default_factory=SurgeryConfig)
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    seed: int = setting(0, "of everything random")
    checkpoint_seconds: float = setting(60.0, "how often a recovery that takes long is stored in the run folder")

    def __post_init__(self) -> None:
        check_between("seed", self.seed, 0, LARGEST_SEED)
        check_at_least("checkpoint_seconds", self.checkpoint_seconds, 0)
        salience = self.profile.magnitude or self.select.representative == "salient"
        if salience and self.observe.tap != "activation":
            raise ConfigError(
                'profile.magnitude and the representative "salient" go by what a channel passes on, and observe.tap is '
                f'{self.observe.tap!r}, before its normalization and activation. Set observe.tap to "activation".'
            )


def preset(name: Preset = "default") -> PruneConfig:
    """`default`: what works best as far as we have measured. `paper`: the published protocol (its CIFAR settings)."""
    check_choice("preset", name, Preset)
    if name == "default":
        # The whole curve is there, so Kneedle need not guard against knees that later points would undo (S = 0); and
        # the last points of the curve, means over a handful of channels, must not bend the fit.
        return PruneConfig(select=SelectConfig(weighted_fit=True, sensitivity=0.0))
    return PruneConfig(
        surgery=SurgeryConfig(compensate=False, reestimate_batchnorm=False),
        recover=RecoverConfig(
            schedule="per-layer",
            fixed_share=True,
            lr=0.01,
            warmup=0.0,
            decay="constant",
            clip=0.0,
            distill=0.0,
            features=0.0,
        ),
    )


def paper_recovery(model: str, data: str) -> dict[str, Any]:
    """What the paper changes of its recovery for a model and a data set, by their names; nothing for unknown ones."""
    changes: dict[str, Any] = {}
    name, source = model.rpartition(":")[2].lower(), data.partition(":")[0]
    if any(family in name for family in ("vgg", "mobilenet", "densenet")):
        changes["weight_decay"] = 5e-4
    if "vgg" in name:
        changes["nesterov"] = True
    if source == "imagefolder":  # ImageNet; `batch_and_holdout` knows of its batches
        changes |= {"lr": 0.001, "epochs": 3.0}
    return changes


def batch_and_holdout(
    preset_name: str, data: str, config: PruneConfig, batch_size: int | None, holdout: float | None
) -> tuple[int, float]:
    """The batch size and the share held out, where they are not given: as a preset wants them for a data set's name.

    The paper takes its 25 % of the whole training set, so `paper` holds nothing out, unless a limit on the accuracy
    needs images to decide by; its batches are of 256 images on ImageNet and of 128 on CIFAR.
    """
    paper = preset_name == "paper"
    if batch_size is None:
        batch_size = 256 if paper and data.partition(":")[0] == "imagefolder" else 128
    if holdout is None:
        holdout = 0.0 if paper and config.limits.max_drop >= 100 else 0.1
    return batch_size, holdout


def settings(config: PruneConfig) -> dict[str, Any]:
    """Every setting as plain values, by stage: what `config.toml` holds."""
    return asdict(config)


def replace_settings(config: PruneConfig, changes: Mapping[str, Any]) -> PruneConfig:
    """The config with settings changed, given as {"select": {"degree": 3}, "seed": 1}; unknown names are refused."""
    new: dict[str, Any] = {}
    known = get_type_hints(PruneConfig)
    for name, value in changes.items():
        if name not in known:
            raise ConfigError(f"there is no setting or section {name!r}{_nearest(name, list(known))}")
        stage = getattr(config, name)
        if is_dataclass(stage) and not isinstance(stage, type):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name} is {value!r}; it is a section of settings, such as {{{name}: {{...}}}}.")
            inner = get_type_hints(type(stage))
            for key in value:
                if key not in inner:
                    raise ConfigError(f"there is no setting {name}.{key}{_nearest(key, list(inner))}")
            new[name] = replace(stage, **{k: _as(f"{name}.{k}", v, inner[k]) for k, v in value.items()})
        else:
            new[name] = _as(name, value, known[name])
    return replace(config, **new)


def amount(setting: str, text: str, whole: float) -> float:
    """A limit such as "50%" (of the whole) or "20e6" as a number."""
    try:
        value = float(text[:-1]) / 100 * whole if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ConfigError(f'{setting} is {text!r}; give a share such as "50%" or a positive number such as "20e6".')
    return value


def _as(setting: str, value: Any, kind: Any) -> Any:
    """The value as the setting's own type, where nothing is lost by that."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, bool, str) and type(value) is not kind:
        raise ConfigError(f"{setting} is {value!r}; it must be of type {kind.__name__}.")
    return value


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}."
