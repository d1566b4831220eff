"""sweep(): the same network at several sizes, each cut and rebuilt from one look at it: how much can be cut?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cosep.config import PruneConfig, preset, settings
from cosep.errors import ConfigError, RunError
from cosep.measurement import accuracy, latency, macs, measure, parameters
from cosep.plugins import without_folder
from cosep.runs.folder import difference, failing_as_ours, weights_digest, write_atomically
from cosep.runs.opening import Request, only_deciding, opened_request
from cosep.runs.planning import damage_at_half
from cosep.runs.probing import LATENCY_REPEATS
from cosep.runs.remaking import resized
from cosep.runs.state import Batches, Callbacks, Job, State

TARGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # shares of the MACs
FILE = "sweep.json"


@dataclass(frozen=True)
class Size:
    """One size of the network, cut and rebuilt without training. Shares are of the uncut network's; None: unknown."""

    target: float  # the share of MACs that was asked for
    macs: float
    parameters: float
    milliseconds: float
    speedup: float  # against the uncut network in the same rounds
    accuracy: float | None  # on the test data
    holdout_accuracy: float | None
    widths: Mapping[str, int]
    note: str = ""  # where the target could not be met


@dataclass(frozen=True)
class Sweep:
    """Every size, from the largest to the smallest, beside the uncut network's figures."""

    macs: int  # of the uncut network
    parameters: int
    accuracy: float | None
    holdout_accuracy: float | None
    widths: Mapping[str, int]
    sizes: tuple[Size, ...] = ()
    damage: Mapping[str, float] = field(default_factory=dict)  # of each group alone at half its width

    def to_document(self) -> dict[str, Any]:
        """As plain values for a JSON file."""
        return {**asdict(self), "sizes": [asdict(size) for size in self.sizes]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Sweep:
        """The sweep that `to_document` wrote."""
        known = {name: document[name] for name in cls.__annotations__}
        return cls(**{**known, "sizes": tuple(Size(**size) for size in document["sizes"])})


def sweep(
    model: nn.Module,
    calibration: Batches,
    evaluate: Batches | None = None,
    *,
    targets: Sequence[float] = TARGETS,
    holdout: Batches | None = None,
    config: PruneConfig | None = None,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    progress: bool | None = None,
    example_input: Tensor | None = None,
    on_size: Callable[[Size], None] | None = None,
) -> Sweep:
    """The network at several shares of its MACs, each cut and rebuilt, without training; the caller's stays as it is.

    Everything is gathered once for all sizes. `out` is a folder for sweep.json and its page: the same call goes on
    there where it was stopped.
    """
    wanted = sorted({float(target) for target in targets}, reverse=True)
    if not wanted or not all(0 < target <= 1 for target in wanted):
        raise ConfigError(f"targets are {list(targets)}; give shares of the MACs, each above 0 and at most 1.")
    asked = config or preset()
    if asked.limits.on_size or asked.limits.max_drop is not None:
        raise ConfigError("a sweep goes through its own sizes: leave out limits, and give targets (--targets).")
    request = Request(
        model=model,
        calibration=calibration,
        evaluate=evaluate,
        holdout=holdout,
        config=only_deciding(asked),
        callbacks=callbacks,
        progress=progress,
        example_input=example_input,
    )
    with opened_request(request) as opening:
        path = None if out is None else Path(out) / FILE
        described = _description(opening.model, opening.chain.config, about or {})
        stored = opening.fabric.broadcast(_stored(path, described))
        if stored and {size.target for size in stored.sizes} >= set(wanted):
            return _shown(stored, wanted)
        job = opening.job()
        job, found = _begun(job, evaluate, stored)
        state = State(job.original, damage=found.damage)
        for target in wanted:
            if target in {size.target for size in found.sizes}:
                continue
            size = _size(job, state, found, target, evaluate)
            order = sorted((*found.sizes, size), key=lambda each: -each.target)
            found = replace(found, sizes=tuple(order), damage=damage_at_half(job))
            if path is not None and opening.fabric.is_global_zero:
                _store(path, described, found)
            if on_size:
                on_size(size)
        return _shown(found, wanted)


def _begun(job: Job, evaluate: Batches | None, stored: Sweep | None) -> tuple[Job, Sweep]:
    """The figures of the uncut network, measured or as an earlier start left them."""
    with job.stage("measure"):
        before = measure(job.original, job.example)
        job = replace(job, before=before.to_document())
        if stored:
            return job, stored
        scored = [None if each is None else accuracy(job.original, each) for each in (evaluate, job.holdout)]
    widths = {group.name: group.width for group in job.groups}
    return job, Sweep(before.macs, before.parameters, scored[0], scored[1], widths)


def _size(job: Job, state: State, found: Sweep, target: float, evaluate: Batches | None) -> Size:
    """The network at one share of its MACs, and its figures."""
    model, decided, _ = resized(job, state, target, job.config.rebuild, "rebuild")
    with job.stage("measure"):
        times = latency({"before": job.original, "after": model}, job.example, repeats=LATENCY_REPEATS)["after"]
        scored = [None if each is None else accuracy(model, each) for each in (evaluate, job.holdout)]
        return Size(
            target=target,
            macs=macs(model, job.example) / found.macs,
            parameters=parameters(model) / found.parameters,
            milliseconds=times.median_ms,
            speedup=times.speedup,
            accuracy=scored[0],
            holdout_accuracy=scored[1],
            widths={name: width.k for name, width in decided.widths.items()},
            note="" if decided.met else "; ".join(decided.notes),
        )


def _shown(found: Sweep, wanted: Sequence[float]) -> Sweep:
    """The sizes that were asked for, of those that are there."""
    return replace(found, sizes=tuple(size for size in found.sizes if size.target in wanted))


def _description(model: nn.Module, config: PruneConfig, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep is of: another description is another sweep."""
    facts = {**about, "weights_sha256": weights_digest(model)}
    facts |= {name: without_folder(str(facts[name])) for name in ("model", "data") if name in facts}
    return {"about": facts, "settings": settings(config)}


def _stored(path: Path | None, described: Mapping[str, Any]) -> Sweep | None:
    """What an earlier start has behind it; that of another sweep is refused."""
    if path is None or not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        other = difference(
            {**document["about"], **document["settings"]}, {**described["about"], **described["settings"]}
        )
        found = Sweep.from_document(document["sweep"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged ({error}). Remove it to start over.") from error
    if other:
        raise RunError(f"{path} is another sweep: {other}. Take another folder for this one.")
    return found


def _store(path: Path, described: Mapping[str, Any], found: Sweep) -> None:
    """Write what is there, and the page that shows it."""
    from cosep.reporting.sweep import sweep_page

    document = {**described, "sweep": found.to_document()}
    with failing_as_ours(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
        write_atomically(path.with_suffix(".html"), sweep_page(document["sweep"], described["about"]).encode())
