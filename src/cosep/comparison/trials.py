"""compare(): CoSeP and other ways to choose channels at the same widths, cuts, recoveries and seeds."""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosep.config import DeviceConfig, PruneConfig, replace_settings, settings
from cosep.criteria import best_channels, chip, fpgm, hrank, importance, random_scores, with_gradients
from cosep.data import Data
from cosep.errors import ConfigError, RunError
from cosep.groups.numbering import output_columns
from cosep.layers import is_batchnorm
from cosep.measurement import accuracy
from cosep.models.modes import device_of, evaluating
from cosep.observation.taps import tapped
from cosep.pipeline import PruneResult, prune
from cosep.plugins import without_folder
from cosep.records import Group, Layout, Selection
from cosep.runs.fabric import launched
from cosep.runs.folder import difference, weights_digest, write_atomically
from cosep.runs.state import Batches, Callbacks, Choose, first_images
from cosep.surgery import copied

OURS = "cosep"
# Calibration images behind the criteria that need some. HRank: the 500 of its paper. CHIP: the five batches of 128 of
# its authors' code. Taylor: our choice, as Torch-Pruning leaves it to the user.
IMAGES = {"taylor": 1024, "hrank": 500, "chip": 640}
TIED = "the last that stay and the first that go have the same score: the lower number decided"

# The network as it is, a group of it, the cuts so far, calibration data, a seed -> a number (width,) for each channel.
Score = Callable[[nn.Module, Group, Layout, Batches, int], Tensor]


@dataclass(frozen=True)
class Method:
    """A way to choose channels: CoSeP with other settings, or the channels with the largest scores."""

    about: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    score: Score | None = None


@dataclass(frozen=True)
class Trial:
    """What one method came to with one seed. Accuracies are shares, not percent."""

    method: str
    seed: int
    accuracy: float  # on the test data
    macs: float  # the share that is left
    parameters: float
    updates: int
    seconds: float
    weights_sha256: str = ""  # of the network that was tested
    remarks: tuple[str, ...] = ()  # what a reader of the table should know


@dataclass(frozen=True)
class Standing:
    """A method over its seeds, beside CoSeP with the same seeds; in points of accuracy."""

    method: str
    seeds: int
    mean: float
    std: float  # nan for one seed
    difference: float  # mean of (CoSeP - method), paired by seed; 0 for CoSeP itself
    low: float  # its 95 % interval by Student's t; nan for one seed
    high: float

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
        return None if math.isnan(self.low) else self.low > 0 or self.high < 0


def methods() -> dict[str, Method]:
    """Every method by its name."""
    return {
        OURS: Method("the configured CoSeP"),
        "cosep-magnitude": Method(
            "CoSeP in the magnitude-aware space",
            {
                "observe": {"tap": "activation"},
                "profile": {"magnitude": True},
                "select": {"representative": "salient"},
            },
        ),
        "cosep-mass": Method(
            "CoSeP behind the activation, large filters count more in the clustering",
            {"observe": {"tap": "activation"}, "select": {"mass": 2.0}},
        ),
        "medoid": Method("CoSeP's clusters, their medoids", {"select": {"representative": "medoid"}}),
        "random-in-cluster": Method("CoSeP's clusters, any channel of each", {"select": {"representative": "random"}}),
        "random": Method("channels at random, the paper's baseline", score=_by_chance),
        "l1": Method("the largest L1 norm of the filter", score=_by_weights("l1")),
        "l2": Method("the largest L2 norm of the filter", score=_by_weights("l2")),
        "fpgm": Method("the filters furthest from all others", score=_by_fpgm),
        "bn-scale": Method("the largest scale of BatchNorm", score=_by_batchnorm),
        "taylor": Method("the largest first-order effect on the loss", score=_by_gradients),
        "hrank": Method("the highest rank of the feature map", score=_by_maps("hrank", hrank)),
        "chip": Method("the feature maps that others replace least", score=_by_maps("chip", chip)),
    }


def compare(
    model: nn.Module,
    data: Callable[[int], Data],
    names: Iterable[str],
    *,
    seeds: Sequence[int],
    out: str | Path,
    config: PruneConfig,
    widths: Mapping[str, int] | None = None,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Prune the model by CoSeP and each named method with each seed, every time to the same widths.

    The widths are those given, or what CoSeP chooses with the first seed. `data` makes the data of a seed. Every trial
    has a run folder in `out`: a comparison that was stopped goes on where it was. All trials are in `out`/compare.json.
    """
    known = methods()
    chosen = list(dict.fromkeys([OURS, *names]))
    for name in chosen:
        if name not in known:
            raise ConfigError(f"there is no method {name!r}; there are {', '.join(known)}.")
    if config.limits.max_drop < 100:
        raise ConfigError(
            "limits.max_drop (--max-drop) has no place in a comparison, where all methods have the same widths. Prune "
            "with it first, and give that run's widths (--widths RUN)."
        )
    out = Path(out)
    described = _description(model, config, about or {})
    stored, widths_before, finder = _stored_trials(out / "compare.json", described)
    fixed = dict(widths or widths_before)
    if fixed != (widths_before or fixed):
        raise RunError(
            f"{out / 'compare.json'} is a comparison at other widths than these. Take another folder for this one."
        )
    writes = launched(config.device).is_global_zero
    trials: list[Trial] = []
    for seed in seeds:
        source = data(seed)
        for name in chosen:
            result = run_method(
                name,
                model,
                source,
                config=config,
                seed=seed,
                widths={} if f"{name}-{seed}" == finder else fixed,
                run=out / f"{name}-{seed}",
                about=about,
                callbacks=callbacks,
            )
            if not fixed:
                fixed, finder = {plan.group: len(plan.kept) for plan in result.plan.groups}, f"{name}-{seed}"
            trial = stored.get((name, seed))
            if trial is None or trial.weights_sha256 != weights_digest(result.model):
                trial = trial_of(name, seed, result, source.test, device=config.device)
            trials.append(trial)
            stored[name, seed] = trial
            entries = [asdict(each) for each in stored.values()]
            document = {**described, "widths": fixed, "widths_of": finder, "trials": entries}
            if writes:
                write_atomically(out / "compare.json", (json.dumps(document, indent=1) + "\n").encode())
            if on_trial:
                on_trial(trial)
    return trials


def run_method(
    name: str,
    model: nn.Module,
    source: Data,
    *,
    config: PruneConfig,
    seed: int,
    widths: Mapping[str, int],
    run: Path,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
) -> PruneResult:
    """One method with one seed, in a run folder of its own."""
    method = methods()[name]
    config = replace_settings(config, {"seed": seed, "select": {"seed": seed}})
    config = replace_settings(config, method.changes)
    choose: Choose | None = None
    if method.score:
        if not widths:
            raise ConfigError(f"{name} does not find widths by itself. Give those of a run of CoSeP.")
        choose = chooser(name, method.score, source.calibration, widths, seed)
    # Accuracies of the unpruned network and after each group would cost more than the choice of channels, and nothing
    # is decided by them here.
    return prune(
        model,
        source.calibration,
        config=config,
        train=source.train,
        run=run,
        about={**(about or {}), "method": name},
        callbacks=callbacks,
        choose=choose,
        widths=widths or None,
    )


def chooser(name: str, score: Score, calibration: Batches, widths: Mapping[str, int], seed: int) -> Choose:
    """The channels with the largest scores, in the network as it is when a group's turn comes."""

    def choose(model: nn.Module, group: Group, layout: Layout) -> Selection:
        scores = score(model, group, layout, calibration, seed)
        if not bool(scores.isfinite().all()):
            raise ConfigError(f"{name} gives scores that are not finite in {group.name}. Leave {name} out.")
        found = best_channels(scores, widths[group.name], blocks=group.blocks, reason=name)
        return replace(found, notes=(TIED,)) if _tied(scores, found, group.blocks) else found

    return choose


def _tied(scores: Tensor, found: Selection, blocks: int) -> bool:
    """Whether the cut runs through equal scores in a block, so that the criterion did not decide."""
    stays = torch.zeros(len(scores), dtype=torch.bool)
    stays[list(found.kept)] = True
    for block, kept in zip(scores.cpu().chunk(blocks), stays.chunk(blocks), strict=True):
        if not bool(kept.all()) and bool(block[kept].min() == block[~kept].max()):
            return True
    return False


def trial_of(name: str, seed: int, result: PruneResult, test: Batches, *, device: DeviceConfig | None = None) -> Trial:
    """The figures of one finished run, with the accuracy on the test data."""
    report = result.report
    tied = [plan.group for plan in result.plan.groups if plan.selection and TIED in plan.selection.notes]
    recoveries = [entry["recovery"] for entry in report["groups"] if "recovery" in entry]
    recoveries += [report["recovery"]] if report["recovery"] else []
    return Trial(
        method=name,
        seed=seed,
        accuracy=accuracy_there(result.model, test, device),
        macs=report["change"]["macs"],
        parameters=report["change"]["parameters"],
        updates=sum(entry["updates"] for entry in recoveries),
        seconds=round(sum(report["seconds"].values()), 1),
        weights_sha256=weights_digest(result.model),
        remarks=(f"{TIED} ({', '.join(tied)})",) if tied else (),
    )


def accuracy_there(model: nn.Module, test: Batches, device: DeviceConfig | None = None) -> float:
    """The accuracy, computed on the device of the settings, by default a GPU where there is one; the model stays."""
    return accuracy(copied(model).to(launched(device or DeviceConfig()).device), test)


def differing(trials: Iterable[Trial]) -> list[str]:
    """What makes trials unequal: MACs or updates other than CoSeP's with the same seed, in words."""
    found = list(trials)
    ours = {trial.seed: trial for trial in found if trial.method == OURS}
    lines = []
    for trial in found:
        own = ours.get(trial.seed, trial)
        if (trial.macs, trial.updates) != (own.macs, own.updates):
            lines.append(
                f"{trial.method} with seed {trial.seed} has {100 * trial.macs:.1f} % of the MACs and {trial.updates} "
                f"updates, CoSeP {100 * own.macs:.1f} % and {own.updates}: see the log of its run"
            )
    return lines


def _description(model: nn.Module, config: PruneConfig, about: Mapping[str, Any]) -> dict[str, Any]:
    """What all trials of a comparison have in common. Not where the data are: the file is made to be handed on."""
    facts = {**about, "weights_sha256": weights_digest(model)}
    facts |= {name: without_folder(str(facts[name])) for name in ("model", "data") if name in facts}
    shared = replace_settings(config, {"seed": 0, "select": {"seed": 0}})  # every trial has its own
    return {"about": facts, "settings": settings(shared)}


def _stored_trials(
    path: Path, described: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[tuple[str, int], Trial], dict[str, int], str]:
    """The trials that an earlier start has behind it, their widths, and the trial that found them ("": given).

    Those of another comparison are refused.
    """
    if not path.exists():
        return {}, {}, ""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        trials = [Trial(**{**entry, "remarks": tuple(entry.get("remarks", ()))}) for entry in document["trials"]]
        widths = {str(group): int(width) for group, width in document["widths"].items()}
        finder = str(document["widths_of"])
        other = difference(
            {**document["about"], **document["settings"]}, {**described["about"], **described["settings"]}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged ({error}). Remove it: the runs beside it are kept.") from error
    if other:
        raise RunError(f"{path} is another comparison: {other}. Take another folder for this one.")
    return {(trial.method, trial.seed): trial for trial in trials}, widths, finder


def standings(trials: Iterable[Trial]) -> list[Standing]:
    """Each method's mean and spread, and its paired difference to CoSeP, in points; in the order of the trials."""
    from scipy.stats import t

    by_method: dict[str, dict[int, float]] = {}
    for trial in trials:
        by_method.setdefault(trial.method, {})[trial.seed] = 100 * trial.accuracy
    ours = by_method[OURS]
    found = []
    for method, theirs in by_method.items():
        values = list(theirs.values())
        gaps = [ours[seed] - value for seed, value in theirs.items() if seed in ours]
        half = math.nan
        if len(gaps) > 1:
            half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
        found.append(
            Standing(
                method=method,
                seeds=len(values),
                mean=statistics.mean(values),
                std=statistics.stdev(values) if len(values) > 1 else math.nan,
                difference=(gap := statistics.mean(gaps)),
                low=gap - half,
                high=gap + half,
            )
        )
    return found


def _by_chance(_model: nn.Module, group: Group, _layout: Layout, _batches: Batches, seed: int) -> Tensor:
    return random_scores(group.width, seed=zlib.crc32(f"{seed}/{group.name}".encode()))


def _producers(model: nn.Module, group: Group, layout: Layout) -> list[tuple[nn.Module, Tensor]]:
    """The layers that make the channels, and their places in them."""
    return [
        (model.get_submodule(name), columns)
        for name in group.producers
        for columns in output_columns(group, name, layout)
    ]


def _by_weights(criterion: Literal["l1", "l2"]) -> Score:
    def score(model: nn.Module, group: Group, layout: Layout, _batches: Batches, _seed: int) -> Tensor:
        return importance(criterion, _producers(model, group, layout))

    return score


def _by_fpgm(model: nn.Module, group: Group, layout: Layout, _batches: Batches, _seed: int) -> Tensor:
    return fpgm(_producers(model, group, layout))


def _by_batchnorm(model: nn.Module, group: Group, layout: Layout, _batches: Batches, _seed: int) -> Tensor:
    names = dict.fromkeys(piece.module for piece in group.slices if piece.side == "out")
    norms = [name for name in names if is_batchnorm(model.get_submodule(name))]
    outputs = [
        (model.get_submodule(name), columns) for name in norms for columns in output_columns(group, name, layout)
    ]
    return importance("bn-scale", outputs)


def _by_gradients(model: nn.Module, group: Group, layout: Layout, batches: Batches, seed: int) -> Tensor:
    place = device_of(model)
    try:
        with_gradients(model, ((x.to(place), y) for x, y in first_images(batches, IMAGES["taylor"], seed)))
        return importance("taylor", _producers(model, group, layout))
    finally:
        model.zero_grad()


def _by_maps(name: str, criterion: Callable[[Tensor], Tensor]) -> Score:
    def score(model: nn.Module, group: Group, layout: Layout, batches: Batches, seed: int) -> Tensor:
        total, images = torch.zeros(group.width, dtype=torch.float64), 0
        with evaluating(model), tapped(model, group.producers, "activation", pooled=False) as maps:
            for inputs, _ in first_images(batches, IMAGES[name], seed):
                model(inputs.to(device_of(model)))
                images += len(inputs)
                for producer in group.producers:
                    for columns in output_columns(group, producer, layout):
                        total += len(inputs) * criterion(maps[producer][:, columns]).cpu()
        return total / images

    return score
