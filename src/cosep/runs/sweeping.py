"""sweep(): the same network at several sizes, each cut and rebuilt from one look at it: how much can be cut?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cosep.config import PruneConfig, preset, replace_settings, settings
from cosep.errors import ConfigError, RunError
from cosep.measurement import accuracy, macs, measure, parameters
from cosep.plugins import without_folder
from cosep.runs.estimating import estimated
from cosep.runs.folder import difference, failing_as_ours, weights_digest, write_atomically
from cosep.runs.opening import Request, only_deciding, opened_request
from cosep.runs.planning import damage_at_half, target_for_share
from cosep.runs.probing import timed_anyhow
from cosep.runs.recovering import recovered
from cosep.runs.remaking import resized
from cosep.runs.state import Batches, Callbacks, Job, State
from cosep.selection.rules import Target
from cosep.surgery import copied

TARGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # shares of the MACs
FILE = "sweep.json"


@dataclass(frozen=True)
class Size:
    """One size of the network, cut, rebuilt and, if asked for, trained. Shares are of the uncut network's.

    None is unknown, or not asked for.
    """

    target: float | None  # the share of MACs that was asked for
    macs: float
    parameters: float
    milliseconds: float
    speedup: float  # against the uncut network in the same rounds
    accuracy: float | None  # on the test data
    holdout_accuracy: float | None
    widths: Mapping[str, int]
    note: str = ""  # where the target could not be met
    target_ms: float | None = None  # the milliseconds that were asked for, where no share was
    updates: int = 0  # of the training
    untrained: float | None = None  # the accuracy before it: on the test data, or on held-out data where there are none

    @property
    def asked(self) -> tuple[float | None, float | None]:
        """What was asked for: a share of the MACs, or milliseconds."""
        return self.target, self.target_ms

    @property
    def score(self) -> float | None:
        """The accuracy on the test data, or on held-out data where there are none."""
        return self.holdout_accuracy if self.accuracy is None else self.accuracy


Asked = tuple[float | None, float | None]


@dataclass(frozen=True)
class Sweep:
    """Every size, from the largest to the smallest, beside the uncut network's figures."""

    macs: int  # of the uncut network
    parameters: int
    accuracy: float | None
    holdout_accuracy: float | None
    widths: Mapping[str, int]
    sizes: tuple[Size, ...] = ()
    damage: Mapping[str, float] = field(default_factory=dict)  # of each group alone, at half of what it needs
    heads: tuple[str, ...] = ()  # the groups whose widths count heads of attention

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return {**asdict(self), "sizes": [asdict(size) for size in self.sizes]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Sweep:
        """The sweep that `to_document` wrote."""
        known = {name: document[name] for name in cls.__annotations__ if name != "heads"}
        heads = tuple(document.get("heads", ()))  # unknown to sweeps of before they were recorded
        return cls(**{**known, "sizes": tuple(Size(**size) for size in document["sizes"]), "heads": heads})


def sweep(
    model: nn.Module,
    calibration: Batches,
    evaluate: Batches | None = None,
    *,
    targets: Sequence[float] | None = None,
    latencies: Sequence[float] = (),
    epochs: float | None = None,
    train: Batches | None = None,
    holdout: Batches | None = None,
    config: PruneConfig | None = None,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    progress: bool | None = None,
    example_input: Tensor | None = None,
    on_size: Callable[[Size], None] | None = None,
) -> Sweep:
    """The network at several sizes, each cut and rebuilt from one look at it; the caller's stays as it is.

    targets: shares of the MACs, by default eight from 0.9 to 0.2 where no latencies are asked for. latencies: measured
    milliseconds for one input. epochs: passes over `train`, or the calibration data, that each size is trained for; by
    default none. `out` is a folder for sweep.json and its page: the same call goes on there where it was stopped.
    """
    asked = config or preset()
    if epochs is not None:
        asked = replace_settings(asked, {"recover": {"epochs": epochs}})
    wanted = _wanted(TARGETS if targets is None and not latencies else targets or (), latencies)
    if asked.limits.on_size or asked.limits.max_drop is not None:
        raise ConfigError("a sweep goes through its own sizes: leave out limits, and give targets (--targets).")
    request = Request(
        model=model,
        calibration=calibration,
        evaluate=evaluate,
        train=train,
        holdout=holdout,
        config=_of_each_size(asked),
        callbacks=callbacks,
        progress=progress,
        example_input=example_input,
    )
    with opened_request(request) as opening:
        path = None if out is None else Path(out) / FILE
        described = _description(opening.model, opening.chain.config, about or {})
        stored = opening.fabric.broadcast(_stored(path, described))
        if stored and {size.asked for size in stored.sizes} >= set(wanted):
            return _shown(stored, wanted)
        job = opening.job()
        job, found = _begun(job, evaluate, stored)
        state = State(job.original, damage=found.damage)
        left = [each for each in wanted if each not in {size.asked for size in found.sizes}]
        if job.callbacks.on_estimate:
            job.callbacks.on_estimate(estimated(job, state, evaluate, sizes=len(left)))
        for each in left:
            size = _size(job, state, found, each, evaluate)
            found = replace(found, sizes=tuple(sorted((*found.sizes, size), key=_order)), damage=damage_at_half(job))
            if path is not None and opening.fabric.is_global_zero:
                _store(path, described, found)
            for tell in (job.callbacks.on_size, on_size):
                if tell:
                    tell(size)
        return _shown(found, wanted)


def _wanted(targets: Sequence[float], latencies: Sequence[float]) -> list[Asked]:
    """What is asked for, each once: shares of the MACs, then milliseconds, the largest first."""
    shares, times = ({float(value) for value in values} for values in (targets, latencies))
    if not all(0 < share <= 1 for share in shares) or not (shares or times):
        raise ConfigError(f"targets are {list(targets)}; give shares of the MACs, each above 0 and at most 1.")
    if not all(0 < time < math.inf for time in times):
        raise ConfigError(f"latencies are {list(latencies)}; give milliseconds above 0.")
    return [
        *((share, None) for share in sorted(shares, reverse=True)),
        *((None, t) for t in sorted(times, reverse=True)),
    ]


def _order(size: Size) -> tuple[bool, float]:
    return size.target is None, -(size.target or size.target_ms or 0.0)


def _of_each_size(config: PruneConfig) -> PruneConfig:
    """The settings of every size: decided from one look, and trained at the end only where a length was given."""
    deciding = only_deciding(config)
    if not config.recover.epochs or config.recover.schedule == "none":
        return deciding
    return replace(deciding, recover=replace(config.recover, schedule="final"))


def _begun(job: Job, evaluate: Batches | None, stored: Sweep | None) -> tuple[Job, Sweep]:
    """The figures of the uncut network, measured or as an earlier start left them."""
    with job.stage("measure"):
        before = measure(job.original, job.example)
        job = replace(job, before=before.to_document())
        if stored:
            return job, stored
        scored = [None if each is None else accuracy(job.original, each) for each in (evaluate, job.holdout)]
    widths = {group.name: group.width for group in job.groups}
    heads = tuple(group.name for group in job.groups if group.unit == "head")
    return job, Sweep(before.macs, before.parameters, scored[0], scored[1], widths, heads=heads)


def _size(job: Job, state: State, found: Sweep, asked: Asked, evaluate: Batches | None) -> Size:
    """The network at one size, and its figures."""
    share, milliseconds = asked
    target = Target(milliseconds=milliseconds, given=job.given) if share is None else target_for_share(job, share)
    model, decided, layout = resized(job, state, target, job.config.rebuild, "rebuild")
    updates, untrained = 0, None
    if job.trains and layout:
        untrained = _score(model, evaluate, job.holdout)
        before = State(copied(model), layout)
        trained = recovered(job, replace(before, model=model, waiting=True, previous=before), None)
        model = trained.model
        updates = trained.final.updates if trained.final and trained.final.kept else 0
    with job.stage("measure"):
        models = {"before": job.original, "after": model}
        both, untimed = timed_anyhow(models, job.example, job.config.limits.runtime)
        times = both["after"]
        scored = [None if each is None else accuracy(model, each) for each in (evaluate, job.holdout)]
        return Size(
            target=share,
            target_ms=milliseconds,
            macs=macs(model, job.example) / found.macs,
            parameters=parameters(model) / found.parameters,
            milliseconds=times.median_ms,
            speedup=times.speedup,
            accuracy=scored[0],
            holdout_accuracy=scored[1],
            widths={name: width.k for name, width in decided.widths.items()},
            note="; ".join([*(() if decided.met else decided.notes), *untimed]),
            updates=updates,
            untrained=untrained,
        )


def _score(model: nn.Module, evaluate: Batches | None, holdout: Batches | None) -> float | None:
    scored = holdout if evaluate is None else evaluate
    return None if scored is None else accuracy(model, scored)


def _shown(found: Sweep, wanted: Sequence[Asked]) -> Sweep:
    """The sizes that were asked for, of those that are there."""
    return replace(found, sizes=tuple(size for size in found.sizes if size.asked in wanted))


def _description(model: nn.Module, config: PruneConfig, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep is of: another description is another sweep."""
    facts = {**about, "weights_sha256": weights_digest(model)}
    facts |= {name: without_folder(str(facts[name])) for name in ("model", "data") if name in facts}
    return {"about": facts, "settings": settings(config)}


def _stored(path: Path | None, described: Mapping[str, Any]) -> Sweep | None:
    """What an earlier start has behind it; that of another sweep is refused."""
    if path is None or not path.exists():
        return None
    before, found = _read(path)
    other = difference({**before["about"], **before["settings"]}, {**described["about"], **described["settings"]})
    if other:
        raise RunError(f"{path} is another sweep: {other}. Take another folder for this one.")
    return found


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], Sweep]:
    """A sweep's file: what it is of, and the sweep."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        described = {part: dict(document[part]) for part in ("about", "settings")}
        return described, Sweep.from_document(document["sweep"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged ({error}). Remove it to start over.") from error


def _store(path: Path, described: Mapping[str, Any], found: Sweep) -> None:
    """Write what is there, and the page that shows it."""
    document = {**described, "sweep": found.to_document()}
    with failing_as_ours(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
    _draw(path, described, found)


def _draw(path: Path, described: Mapping[str, Any], found: Sweep) -> Path:
    from cosep.reporting.sweep import sweep_page

    page = path.with_suffix(".html")
    with failing_as_ours(page):
        write_atomically(page, sweep_page(found.to_document(), described["about"]).encode())
    return page


def draw_sweep(folder: str | Path) -> Path:
    """Draw the page of a folder of `cosep sweep` from its file, and return its path."""
    path = Path(folder) / FILE
    return _draw(path, *_read(path))
