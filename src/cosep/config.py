"""Settings: frozen, keyword-only, one dataclass a stage; each checks itself when it is made."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cosep.errors import ConfigError
from cosep.records import Scope

Metric = Literal["jm", "jm-histogram", "hellinger", "wasserstein"]
Silhouette = Literal["mean", "nearest"]
Representative = Literal["weighted", "salient", "medoid", "random"]
Tap = Literal["output", "activation"]
Tokens = Literal["mean", "first"]
HeadProfile = Literal["multivariate", "places"]
Order = Literal["together", "one-by-one"]
Schedule = Literal["per-layer", "final", "none"]
Decay = Literal["constant", "cosine"]
Optimizer = Literal["sgd", "adamw", "muon"]
Preset = Literal["default", "paper"]
Runtime = Literal["torch", "onnxruntime"]

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
    if not least <= value < math.inf:  # nan fails both comparisons
        raise ConfigError(f"{setting} is {value}; it must be at least {least}.")


def check_between(setting: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside a closed range."""
    if not low <= value <= high:
        raise ConfigError(f"{setting} is {value}; it must be between {low} and {high}.")


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """How channels are reduced to one number an image."""

    tap: Tap = setting("output", "Where channels are read: a layer's own output (the paper), or behind its activation")
    images: int = setting(
        -1, "Calibration images for the class statistics (0: all; -1: 5,000, or 20 a class if that is more)"
    )
    tokens: Tokens = setting(
        "mean", "The number of a token feature: its mean over the tokens, or the first (class) token"
    )
    bins: int = setting(64, 'Bins of each channel\'s histogram, for the metric "jm-histogram"')

    def __post_init__(self) -> None:
        check_choice("observe.tap", self.tap, Tap)
        check_choice("observe.tokens", self.tokens, Tokens)
        check_at_least("observe.images", self.images, -1)
        check_between("observe.bins", self.bins, 2, 2**16)

    def images_for(self, classes: int) -> int:
        """How many images the statistics of so many classes see; 0: all."""
        return max(5000, 20 * classes) if self.images == -1 else self.images


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """How channels are described and compared."""

    metric: Metric = setting("jm", "How the distance between two classes is measured")
    max_classes: int = setting(100, "Use only the M classes best separated one-vs-rest")
    magnitude: bool = setting(
        False, 'Scale each channel\'s profile by how much it passes on to the next layers; needs the tap "activation"'
    )

    heads: HeadProfile = setting(
        "multivariate",
        'How heads of attention tell classes apart, for the metric "jm": by the distance of all their values together '
        "(multivariate), or by the mean over their values one by one (places)",
    )

    def __post_init__(self) -> None:
        check_choice("profile.metric", self.metric, Metric)
        check_choice("profile.heads", self.heads, HeadProfile)
        check_at_least("profile.max_classes", self.max_classes, 2)


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """Which channels stay and how many: the criterion, the width rule, and CoSeP's own settings."""

    criterion: str = setting(
        "elimination", "How channels are chosen: a name such as elimination, cosep, l2 or fpgm, or file.py:factory"
    )
    width_rule: str = setting("damage", "How many channels stay: damage, knee, uniform, given, or file.py:factory")
    silhouette: Silhouette = setting(
        "mean", "Silhouette against the mean of the other medoids (GB-AFS) or the nearest one (the paper's equation)"
    )
    degree: int = setting(2, "Degree of the polynomial fitted to the silhouette curve")
    # The whole curve is there, so Kneedle need not guard against knees that later points would undo (S = 0); and the
    # last points of the curve, means over a handful of channels, must not bend the fit.
    weighted_fit: bool = setting(True, "Weight each k in the fit by the number of channels that its score averages")
    sensitivity: float = setting(0.0, "Kneedle's S: how clear a knee must be (0: any bump above the chord)")
    mass: float = setting(0.0, "Exponent on filter norms when weighting channels in k-medoids (0: unweighted)")
    representative: Representative = setting("weighted", "Which channel of a cluster stays")

    def __post_init__(self) -> None:
        for name in ("criterion", "width_rule"):
            if not getattr(self, name):
                raise ConfigError(f"select.{name} is empty; give a name, or path/to/file.py:factory.")
        check_choice("select.silhouette", self.silhouette, Silhouette)
        check_choice("select.representative", self.representative, Representative)
        check_at_least("select.degree", self.degree, 1)
        check_at_least("select.sensitivity", self.sensitivity, 0)
        check_at_least("select.mass", self.mass, 0)


@dataclass(frozen=True, kw_only=True)
class SurgeryConfig:
    """What may be cut."""

    scope: Scope = setting("interior", "Prune only channels that no addition ties (interior), or those too (all)")
    round_to: int = setting(1, "Round widths up to a multiple of this")
    protect: str = setting("", 'Layers whose channels all stay: names or patterns such as "stem*, *.conv3"')

    def __post_init__(self) -> None:
        check_choice("surgery.scope", self.scope, Scope)
        check_at_least("surgery.round_to", self.round_to, 1)


@dataclass(frozen=True, kw_only=True)
class RebuildConfig:
    """How the weights that stay are solved anew, beside the uncut network and before any training."""

    solve: bool = setting(True, "Re-solve every layer of the cut network towards what the uncut network computes")
    reestimate_batchnorm: bool = setting(
        True, "Re-estimate BatchNorm statistics after a cut where the weights are not re-solved"
    )
    images: int = setting(
        -1,
        "Calibration images that the rebuild sees (0: all; -1: what the solutions have use for, at most 4,000, or "
        "3,000 if they are above 64 x 64)",
    )
    rows: int = setting(64, "Sampled positions of all images together, for each column of a layer's solution")
    positions: int = setting(64, "Sampled positions of one image, at most")
    pull: float = setting(1e-3, "Pull of solutions towards the old weights, relative to the variance of the inputs")
    refine: int = setting(
        3,
        "Passes over these images in which the layers of each block then move together, in gradient steps (0: none)",
    )
    memory: float = setting(0.75, "Gigabytes of intermediate values to keep in memory; more go to a temporary file")

    def __post_init__(self) -> None:
        check_at_least("rebuild.images", self.images, -1)
        check_at_least("rebuild.rows", self.rows, 1)
        check_at_least("rebuild.positions", self.positions, 1)
        check_at_least("rebuild.refine", self.refine, 0)
        check_at_least("rebuild.memory", self.memory, 0)
        if not 0 < self.pull < math.inf:
            raise ConfigError(f"rebuild.pull is {self.pull}; it must be above 0, or solutions may follow noise.")

    def images_of(self, places: int) -> int:
        """How many images the rebuild sees at most where each has so many places (height times width); 0: all."""
        if self.images >= 0:
            return self.images
        return 4000 if places <= 64 * 64 else 3000


@dataclass(frozen=True, kw_only=True)
class RecoverConfig:
    """How the network is trained after cutting. The budget is counted in updates: `epochs` passes over the training
    data, or `group_epochs` passes over `share` of them for each cut group; spent after each group (per-layer) or at the
    end (final)."""

    schedule: Schedule = setting("final", "Train after each cut group, once at the end, or never")
    epochs: float | None = setting(None, "Passes over the training data in all (0: none; left out: a few)")
    group_epochs: float = setting(2.0, "Passes over the share for each cut group, where epochs is not given")
    share: float = setting(0.25, "Share of the training batches that makes one pass")
    fixed_share: bool = setting(
        False, "Train on the same part of the data every time (the paper) instead of all of it in turn"
    )
    optimizer: Optimizer = setting(
        "sgd",
        "Optimizer for fine-tuning: SGD as published, AdamW, or Muon for matrices of weights with AdamW for the rest",
    )
    lr: float = setting(0.02, "Peak learning rate")
    momentum: float = setting(0.9, "Momentum of SGD")
    nesterov: bool = setting(False, "Use Nesterov momentum in SGD")
    weight_decay: float = setting(1e-4, "Weight decay of the optimizer")
    warmup: float = setting(0.05, "Share of the updates in which the learning rate rises to its peak")
    decay: Decay = setting("cosine", "How the learning rate goes on after its peak")
    clip: float = setting(5.0, "Largest gradient norm (0: no clipping)")
    distill: float = setting(0.9, "Weight of the unpruned network's outputs in the loss; the labels get the rest")
    temperature: float = setting(4.0, "Temperature of the distillation")
    features: float = setting(3.0, "Weight of the unpruned network's block outputs in the loss (0: off)")
    label_smoothing: float = setting(0.0, "Label smoothing of the cross-entropy")
    ema: float = setting(0.0, "Decay of a moving average of the weights, which is then the result (0: no average)")

    def __post_init__(self) -> None:
        check_choice("recover.schedule", self.schedule, Schedule)
        check_choice("recover.optimizer", self.optimizer, Optimizer)
        check_choice("recover.decay", self.decay, Decay)
        check_between("recover.share", self.share, 0, 1)
        check_between("recover.distill", self.distill, 0, 1)
        check_between("recover.warmup", self.warmup, 0, 1)
        check_between("recover.label_smoothing", self.label_smoothing, 0, 1)
        if self.epochs is not None:
            check_at_least("recover.epochs", self.epochs, 0)
        for setting in ("group_epochs", "lr", "momentum", "weight_decay", "clip", "features"):
            check_at_least(f"recover.{setting}", getattr(self, setting), 0)
        if not 0 <= self.ema < 1:
            raise ConfigError(f"recover.ema is {self.ema}; it must be a decay from 0 (no average) up to but not 1.")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"recover.temperature is {self.temperature}; it must be above 0.")


@dataclass(frozen=True, kw_only=True)
class LimitConfig:
    """What the result must keep to; None is no limit."""

    max_drop: float | None = setting(
        None, "Points of accuracy on held-out data that may be lost, before any training where all groups go together"
    )
    max_macs: str | None = setting(None, 'Most MACs: "50%" of the uncut network\'s, or a number such as "20e6"')
    max_params: str | None = setting(None, 'Most parameters: "50%" of the uncut network\'s, or a number such as "1e6"')
    max_latency_ms: float | None = setting(None, "Most milliseconds for one input on this device")
    runtime: Runtime = setting(
        "torch", "Where the milliseconds of max_latency_ms are measured: what will run the network"
    )
    best_effort: bool = setting(False, "Where a limit is out of reach, go as far as possible instead of refusing it")

    def __post_init__(self) -> None:
        check_choice("limits.runtime", self.runtime, Runtime)
        for name in ("max_drop", "max_latency_ms"):
            if getattr(self, name) is not None:
                check_at_least(f"limits.{name}", getattr(self, name), 0)
        if self.max_latency_ms == 0:
            raise ConfigError("limits.max_latency_ms is 0; give milliseconds above 0, or None for no limit.")
        for name in ("max_macs", "max_params"):
            if getattr(self, name) is not None:
                amount(f"limits.{name}", getattr(self, name), 1.0)

    @property
    def on_size(self) -> bool:
        """Whether MACs, parameters or latency are limited."""
        return not (self.max_macs is None and self.max_params is None and self.max_latency_ms is None)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where it runs: handed to Lightning Fabric as it is."""

    accelerator: str = setting("auto", "Device to run on: auto, cpu, cuda, mps, ...")
    devices: int = setting(1, "Processes on each machine")
    nodes: int = setting(1, "Machines")
    precision: str = setting("32-true", "Numeric precision: 32-true, 16-mixed, bf16-mixed, ...")
    channels_last: bool = setting(True, "Use the channels-last memory format, faster for convolutions on most devices")

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
    rebuild: RebuildConfig = field(default_factory=RebuildConfig)
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    order: Order = setting(
        "together", "Prune all groups together from one look at the network, or one by one as in the paper"
    )
    seed: int = setting(0, "Seed of everything random")
    checkpoint_seconds: float = setting(60.0, "Seconds between checkpoints while a long recovery trains")

    def __post_init__(self) -> None:
        check_choice("order", self.order, Order)
        check_between("seed", self.seed, 0, LARGEST_SEED)
        check_at_least("checkpoint_seconds", self.checkpoint_seconds, 0)
        salience = self.profile.magnitude or self.select.representative == "salient"
        if salience and self.observe.tap != "activation":
            raise ConfigError(
                'profile.magnitude and the representative "salient" go by what a channel passes on, and observe.tap is '
                f'{self.observe.tap!r}, before its normalization and activation. Set observe.tap to "activation".'
            )
        if self.order == "together" and self.recover.schedule == "per-layer":
            raise ConfigError(
                'recover.schedule is "per-layer", which trains after each group, and order is "together". '
                'Set order to "one-by-one", or the schedule to "final" or "none".'
            )
        if self.order == "together" and self.limits.max_drop is not None and self.limits.on_size:
            raise ConfigError(
                "limits.max_drop says how much to cut, and so does a limit on MACs, parameters or latency. Give one of "
                'them, or set order to "one-by-one".'
            )


def preset(name: Preset = "default") -> PruneConfig:
    """`default`: what works best as far as we have measured. `paper`: the published protocol (its CIFAR settings)."""
    check_choice("preset", name, Preset)
    if name == "default":
        return PruneConfig()
    return PruneConfig(
        order="one-by-one",
        select=SelectConfig(criterion="cosep", width_rule="knee", weighted_fit=False, sensitivity=1.0),
        rebuild=RebuildConfig(solve=False, reestimate_batchnorm=False),
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
        changes |= {"lr": 0.001, "group_epochs": 3.0}
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
        holdout = 0.0 if paper and config.limits.max_drop is None else 0.1
    return batch_size, holdout


def settings(config: PruneConfig) -> dict[str, Any]:
    """Every setting as plain values, by stage, without those that are None: what `config.toml` holds."""
    return _without_none(asdict(config))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}


# What the section `surgery` held in the version before, and what it is called in `rebuild`; "" where it is gone.
_MOVED = {
    "compensate": "solve",
    "reestimate_batchnorm": "reestimate_batchnorm",
    "images": "images",
    "ridge": "pull",
    "positions": "positions",
    "max_gram": "",
}


def upgraded(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as an earlier version wrote them, in the form of this one: no second seed, None for "no limit", and the
    rebuild in a section of its own."""
    new = dict(changes)
    if any(
        not isinstance(new.get(name, {}), Mapping) for name in ("surgery", "rebuild", "recover", "select", "limits")
    ):
        return new  # no settings of any version; who reads them says what is wrong
    if (surgery := new.get("surgery", {})).keys() & _MOVED.keys():
        new["surgery"] = {name: value for name, value in surgery.items() if name not in _MOVED}
        moved = {there: surgery[name] for name, there in _MOVED.items() if there and name in surgery}
        new["rebuild"] = {**moved, **new.get("rebuild", {})}
        recover = new.get("recover", {})
        if "epochs" in recover and "group_epochs" not in recover:
            # A whole file of the version before, in which this was the length for each group.
            rest = {name: value for name, value in recover.items() if name != "epochs"}
            new["recover"] = {**rest, "group_epochs": recover["epochs"]}
    if new.keys() >= {"observe", "profile", "select", "surgery", "recover"} and "order" not in new:
        # A whole file of a version that knew but one order, one criterion and one rule.
        new |= {"order": "one-by-one", "select": {"criterion": "cosep", "width_rule": "knee", **new["select"]}}
    if select := new.get("select"):
        new["select"] = {name: value for name, value in select.items() if name != "seed"}
    if (rebuild := new.get("rebuild")) and rebuild.get("refine") == -1:  # "as the run needs it", for some days
        new["rebuild"] = {name: value for name, value in rebuild.items() if name != "refine"}
    if limits := new.get("limits"):
        unlimited = {"max_drop": 100.0, "max_macs": "", "max_params": "", "max_latency_ms": 0.0}
        new["limits"] = {k: None if k in unlimited and v == unlimited[k] else v for k, v in limits.items()}
    return new


def replace_settings(config: PruneConfig, changes: Mapping[str, Any]) -> PruneConfig:
    """The config with settings changed, given as {"select": {"degree": 3}, "seed": 1}; unknown names are refused."""
    new: dict[str, Any] = {}
    known = get_type_hints(PruneConfig)
    if isinstance(changes.get("select"), Mapping) and "seed" in changes["select"]:
        warnings.warn(
            "select.seed is gone and was ignored: the setting `seed` is that of everything random. Leave it out.",
            FutureWarning,
            stacklevel=2,
        )
    if isinstance(changes.get("surgery"), Mapping) and (former := sorted(changes["surgery"].keys() & _MOVED.keys())):
        there = f"; set rebuild.{_MOVED[former[0]]}" if _MOVED[former[0]] else ""
        warnings.warn(
            f"surgery.{former[0]} is now part of the section rebuild{there}. The old name goes with the next version.",
            FutureWarning,
            stacklevel=2,
        )
    for name, value in upgraded(changes).items():
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
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 < number < math.inf:
        raise ConfigError(f'{setting} is {text!r}; give a share such as "50%" or a positive number such as "20e6".')
    if text.endswith("%"):
        if number > 100:
            raise ConfigError(f'{setting} is {text!r}, more than the uncut network has; give at most "100%".')
        return number / 100 * whole
    if number <= 100:  # no network has so few: a share was meant, and it is not for us to guess which
        what = "parameters" if setting.endswith("params") else "MACs"
        share = f"{100 * number:g}%" if number <= 1 else f"{number:g}%"
        raise ConfigError(
            f"{setting} is {text!r}, which could be {share} of the uncut network's {what} or {number:g} {what} in all. "
            f'Write "{share}" for the share; a number in all is one such as "20e6".'
        )
    return number


def plain_kind(kind: Any) -> Any:
    """The type of a setting without the None that it may also be."""
    if get_origin(kind) in (UnionType, Union):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _as(setting: str, value: Any, kind: Any) -> Any:
    """The value as the setting's own type, where nothing is lost by that."""
    if value is None and kind is not plain_kind(kind):
        return None
    kind = plain_kind(kind)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, bool, str) and type(value) is not kind:
        raise ConfigError(f"{setting} is {value!r}; it must be of type {kind.__name__}.")
    return value


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}."
