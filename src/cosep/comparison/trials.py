"""compare(): the criterion of the settings and others, at the same widths, cuts, recoveries and seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from cosep.config import DeviceConfig, LimitConfig, PruneConfig, replace_settings, settings
from cosep.criteria import criterion
from cosep.data import Data
from cosep.errors import ConfigError, DataError, RunError
from cosep.measurement import accuracy
from cosep.pipeline import prune
from cosep.plugins import is_file_factory, without_folder
from cosep.runs.fabric import launched
from cosep.runs.folder import difference, weights_digest, write_atomically
from cosep.runs.results import PruneResult
from cosep.runs.state import Batches, Callbacks
from cosep.selection.candidates import TIED
from cosep.surgery import copied

FILE = "compare.json"


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
    """A method over its seeds, beside the first method with the same seeds; in points of accuracy."""

    method: str
    seeds: int
    mean: float
    std: float  # nan for one seed
    difference: float  # mean of (first method - method), paired by seed; 0 for the first itself
    low: float  # its 95 % interval by Student's t; nan for one seed
    high: float

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
        return None if math.isnan(self.low) else self.low > 0 or self.high < 0


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
    """Prune the model by the settings' criterion and by each named one with each seed, every time to the same widths.

    The criterion of the settings comes first, and the others are held against it. The widths are those given, or what
    it finds with the first seed. `data` makes the data of a seed. Every trial has a run folder in `out`: a comparison
    that was stopped goes on where it was. All trials are in `out`/compare.json.
    """
    first = config.select.criterion
    chosen = list(dict.fromkeys([first, *names]))
    folders = {name: folder_of(name) for name in chosen}
    for name in chosen:
        criterion(name, config)  # refused before any work where there is none
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"two of the criteria have the same short name: {', '.join(chosen)}. Rename one.")
    if config.limits.max_drop is not None:
        raise ConfigError(
            "limits.max_drop (--max-drop) has no place in a comparison, where all methods have the same widths. Prune "
            "with it first, and give that run's widths (--widths RUN)."
        )
    out = Path(out)
    described = _description(model, config, about or {})
    stored, widths_before, finder = _stored_trials(out / FILE, described)
    fixed = dict(widths or widths_before)
    if fixed != (widths_before or fixed):
        raise RunError(f"{out / FILE} is a comparison at other widths than these. Take another folder for this one.")
    writes = launched(config.device).is_global_zero
    trials: list[Trial] = []
    unpruned: float | None = None
    for seed in seeds:
        source = data(seed)
        if unpruned is None:
            unpruned = accuracy_there(model, source.test, config.device)
        for name in chosen:
            result = run_method(
                name,
                model,
                source,
                config=config,
                seed=seed,
                widths={} if f"{folders[name]}-{seed}" == finder else fixed,
                run=out / f"{folders[name]}-{seed}",
                about=about,
                callbacks=callbacks,
            )
            if not fixed:
                fixed, finder = {plan.group: len(plan.kept) for plan in result.plan.groups}, f"{folders[name]}-{seed}"
            trial = stored.get((name, seed))
            if trial is None or trial.weights_sha256 != weights_digest(result.model):
                trial = trial_of(name, seed, result, source.test, device=config.device)
            trials.append(trial)
            stored[name, seed] = trial
            entries = [asdict(each) for each in sorted(stored.values(), key=lambda each: each.method != first)]
            document = {**described, "widths": fixed, "widths_of": finder, "unpruned": unpruned, "trials": entries}
            if writes:
                write_atomically(out / FILE, (json.dumps(document, indent=1) + "\n").encode())
            if on_trial:
                on_trial(trial)
    return trials


def read_trials(folder: Path) -> tuple[list[Trial], float | None]:
    """The trials that a folder's compare.json holds, and the unpruned network's accuracy where it says it."""
    path = folder / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = [Trial(**{**entry, "remarks": tuple(entry.get("remarks", ()))}) for entry in document["trials"]]
        unpruned = document.get("unpruned")
        return found, None if unpruned is None else float(unpruned)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is no comparison that can be read ({error}).") from error


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
    config = replace_settings(config, {"seed": seed, "select": {"criterion": name}})
    if widths:  # all have the same, and limits were kept when they were found
        rule = config.select.width_rule
        config = replace(
            config,
            limits=LimitConfig(),
            select=replace(config.select, width_rule=rule if rule == "knee" else "given"),
        )
    # Accuracies of the unpruned network and after each group would cost more than the choice of channels, and nothing
    # is decided by them here.
    return prune(
        model,
        source.calibration,
        config=config,
        train=source.train,
        run=run,
        about={**(about or {}), "method": folder_of(name)},
        callbacks=callbacks,
        widths=widths or None,
    )


def folder_of(name: str) -> str:
    """A criterion's name as part of a folder's: that of a file's factory is file-factory."""
    if not is_file_factory(name):
        return name
    path, _, factory = name.rpartition(":")
    return f"{Path(path).stem}-{factory}"


def trial_of(
    name: str, seed: int, result: PruneResult, test: Batches | None, *, device: DeviceConfig | None = None
) -> Trial:
    """The figures of one finished run, with the accuracy on the test data."""
    report = result.report
    tied = [plan.group for plan in result.plan.groups if TIED in plan.selection.notes]
    return Trial(
        method=name,
        seed=seed,
        accuracy=accuracy_there(result.model, test, device),
        macs=report.change.macs or 0.0,
        parameters=report.change.parameters or 0.0,
        updates=sum(recovery.updates for recovery in report.recoveries),
        seconds=round(sum(report.seconds.values()), 1),
        weights_sha256=weights_digest(result.model),
        remarks=(f"{TIED} ({', '.join(tied)})",) if tied else (),
    )


def accuracy_there(model: nn.Module, test: Batches | None, device: DeviceConfig | None = None) -> float:
    """The accuracy, computed on the device of the settings, by default a GPU where there is one; the model stays."""
    if test is None:
        raise DataError("the data have no test images, which a comparison is about. Let the factory return 'test' too.")
    return accuracy(copied(model).to(launched(device or DeviceConfig()).device), test)


def differing(trials: Iterable[Trial]) -> list[str]:
    """What makes trials unequal: MACs or updates other than the first method's with the same seed, in words."""
    found = list(trials)
    ours = {trial.seed: trial for trial in found if trial.method == found[0].method}
    lines = []
    for trial in found:
        own = ours.get(trial.seed, trial)
        if (trial.macs, trial.updates) != (own.macs, own.updates):
            lines.append(
                f"{trial.method} with seed {trial.seed} has {100 * trial.macs:.1f} % of the MACs and {trial.updates} "
                f"updates, {own.method} {100 * own.macs:.1f} % and {own.updates}: see the log of its run"
            )
    return lines


def _description(model: nn.Module, config: PruneConfig, about: Mapping[str, Any]) -> dict[str, Any]:
    """What all trials of a comparison have in common. Not where the data are: the file is made to be handed on."""
    facts = {**about, "weights_sha256": weights_digest(model)}
    facts |= {name: without_folder(str(facts[name])) for name in ("model", "data") if name in facts}
    shared = replace_settings(config, {"seed": 0})  # every trial has its own
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
    """Each method's mean and spread, and its paired difference to the first, in points; in the order of the trials."""
    from scipy.stats import t

    by_method: dict[str, dict[int, float]] = {}
    for trial in trials:
        by_method.setdefault(trial.method, {})[trial.seed] = 100 * trial.accuracy
    ours = next(iter(by_method.values()))
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
