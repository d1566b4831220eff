"""What a run works with (Job), where it is (State), and the form in which that is stored between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import PruneConfig, RecoverConfig
from cosep.criteria import Criterion
from cosep.data.batches import inputs_and_labels
from cosep.errors import RunError
from cosep.records import (
    Group,
    GroupPlan,
    Layout,
    Outcome,
    Plan,
    RebuildRecord,
    RecoveryRecord,
    Selection,
    Tried,
)
from cosep.recovery import Progress, RecoveryHooks
from cosep.recovery.loop import check_average
from cosep.recovery.optimizers import parameters_of
from cosep.runs.folder import Checkpoint, Run
from cosep.selection.rules import WidthRule
from cosep.storage.schemas import COUNT, FINITE, SCALAR, Each, Maybe, misfit
from cosep.storage.tensors import load_weights
from cosep.surgery import apply_layout, plan_from_document, plan_to_document

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from cosep.runs.estimating import Estimate
    from cosep.runs.sweeping import Size

Batches = Iterable[Any]  # of (inputs, labels), or of inputs where nothing asks for labels
Recover = Callable[
    [nn.Module, int], None
]  # a caller's own training: trains the network, in place, for a number of updates
Choose = Callable[[nn.Module, Group, Layout], Selection]  # deprecated: a criterion is a function of a GroupView


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the caller wants to be told; every one may be left out."""

    # the groups to prune, how many an interrupted run has behind it, and the unpruned network's figures
    on_start: Callable[[tuple[Group, ...], int, dict[str, Any]], None] | None = None
    on_estimate: Callable[[Estimate], None] | None = None  # what the run will take, before it begins
    on_stage: Callable[[str, str], None] | None = None  # a group ("" for the whole network) and what begins for it
    on_group: Callable[[Outcome], None] | None = None  # what became of a group
    on_size: Callable[[Size], None] | None = None  # what became of one size of a sweep
    on_update: Callable[[int, int, float], None] | None = None  # updates done, of how many, the loss
    on_epoch: Callable[[int, float], None] | None = None  # passes over the training data done, the last one's mean loss


class Clock:
    """Seconds spent in each stage; a stage inside another one counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [0.0]  # seconds of stages inside the one that is timed, innermost last

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + took - self._inside.pop()
            self._inside[-1] += took


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """What stays the same all through a run."""

    config: PruneConfig
    fabric: Fabric
    original: nn.Module  # the unpruned network, on the device: the teacher
    example: Tensor
    classes: int
    groups: tuple[Group, ...]  # those to prune, in order of execution
    skipped: tuple[Group, ...]
    calibration: Batches
    train: Batches
    holdout: Batches | None
    aside: Batches | None  # of the calibration data, where the training leaves them out and nothing else is held out
    batches_a_pass: int
    updates_a_group: int
    updates_in_all: int | None  # where the caller has said how long to train
    callbacks: Callbacks
    recovery: Recover | None  # in place of all training
    hooks: RecoveryHooks  # or parts of it
    criterion: Criterion
    rule: WidthRule
    run: Run | None
    clock: Clock
    notes: tuple[str, ...] = ()  # what a reader of the report should know of the whole run
    before: Mapping[str, Any] = field(default_factory=dict)  # the unpruned network's figures
    given: Mapping[str, int] = field(default_factory=dict)  # the caller's widths
    memory: dict[str, Any] = field(default_factory=dict)  # what was gathered of the uncut network, to be used again

    @property
    def trains(self) -> bool:
        """Whether any training follows the cuts."""
        return self.config.recover.schedule != "none" and self.updates_in_all != 0

    @property
    def takes_back(self) -> bool:
        """Whether a group whose cut costs too much accuracy is left whole."""
        return self.config.limits.max_drop is not None and self.config.order == "one-by-one"

    @contextmanager
    def stage(self, name: str, group: str = "") -> Iterator[None]:
        """Tell the caller what begins, and time it."""
        if self.callbacks.on_stage:
            self.callbacks.on_stage(group, name)
        with self.clock.timed(name):
            yield


@dataclass(frozen=True, eq=False)
class State:
    """The network so far and everything decided; `waiting` while the last cut (or the end) still needs its recovery."""

    model: nn.Module
    layout: Layout = field(default_factory=dict)
    plans: tuple[GroupPlan, ...] = ()
    outcomes: tuple[Outcome, ...] = ()  # one a group
    waiting: bool = False
    final: RecoveryRecord | None = None  # the recovery at the end
    previous: State | None = None  # to go back to, while a limit may still refuse the last cut
    ahead: Mapping[str, int] = field(default_factory=dict)  # widths decided before the first cut, where all were
    reasons: Mapping[str, str] = field(default_factory=dict)  # of these widths
    limit_notes: tuple[str, ...] = ()  # how the limits fare
    damage: Mapping[str, float] = field(default_factory=dict)  # of each group alone, at half of what it needs
    tried: tuple[Tried, ...] = ()  # the sizes that a search for the right amount has behind it
    rebuild: RebuildRecord | None = None


def to_checkpoint(job: Job, state: State, progress: Progress | None = None) -> Checkpoint:
    """A run between two steps, or between two updates of a recovery, as tensors and a document."""
    tensors, document = _packed(state, "")
    document |= {
        "before": dict(job.before),
        "widths": dict(state.ahead),
        "width_reasons": dict(state.reasons),
        "limit_notes": list(state.limit_notes),
        "damage": dict(state.damage),
        "tried": [asdict(each) for each in state.tried],
        "rebuild": state.rebuild.to_document() if state.rebuild else None,
        "seconds": dict(job.clock.seconds),
    }
    if progress:
        tensors |= {f"model/{name}": tensor for name, tensor in progress.weights.items()}
        packed, document["progress"] = _packed_progress(progress)
        tensors |= packed
    return Checkpoint(tensors, document)


def from_checkpoint(
    checkpoint: Checkpoint, original: nn.Module, recover: RecoverConfig, hooks: RecoveryHooks | None = None
) -> tuple[State, Progress | None]:
    """The state and, if a recovery was under way, its progress; a RunError where they are not of this network."""
    try:
        if wrong := misfit(checkpoint.document, _DOCUMENT, "its document"):
            raise ValueError(wrong)
        state = replace(
            _unpacked(checkpoint.tensors, checkpoint.document, original, ""),
            ahead=checkpoint.document["widths"],
            reasons=checkpoint.document.get("width_reasons") or {},
            limit_notes=tuple(checkpoint.document["limit_notes"]),
            damage=checkpoint.document["damage"],
            tried=tuple(Tried(**each) for each in checkpoint.document["tried"]),
            rebuild=RebuildRecord.from_document(stored) if (stored := checkpoint.document["rebuild"]) else None,
        )
        progress = None
        if "progress" in checkpoint.document:
            own = bool(hooks and hooks.optimizer)
            progress = _unpacked_progress(checkpoint, state.model, None if own else recover)
    # Weights and random states of another form are refused by torch itself, with the last two.
    except (ValueError, LookupError, RuntimeError, TypeError) as error:
        raise RunError(
            f"the checkpoint does not fit this run: {error}. Remove the run folder to start over."
        ) from error
    return state, progress


_STATE = {"plan": {}, "entries": [{"group": str, "accuracy": Maybe(float)}], "waiting": bool, "final": Maybe({})}
_RECOVERING = {"update": COUNT, "losses": [float], "param_groups": [{"params": [int]}], "optimizer": Each(SCALAR)}
_DOCUMENT = {
    **_STATE,
    "previous": Maybe(_STATE),
    "before": {"holdout_accuracy": Maybe(float)},
    "widths": Each(COUNT),
    "width_reasons": Maybe(Each(str)),
    "limit_notes": [str],
    "damage": Each(FINITE),
    "tried": [{"share": FINITE, "drop": FINITE}],
    "rebuild": Maybe({"layers": [{}], "notes": [str]}),
    "seconds": Each(FINITE),
    "progress": Maybe(_RECOVERING),
}


def _packed(state: State, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"{prefix}model/{name}": tensor for name, tensor in state.model.state_dict().items()}
    document: dict[str, Any] = {
        "plan": plan_to_document(Plan(state.plans, state.layout)),
        "entries": [outcome.to_document() for outcome in state.outcomes],
        "waiting": state.waiting,
        "final": state.final.to_document() if state.final else None,
    }
    if state.previous:
        more, document["previous"] = _packed(state.previous, f"{prefix}previous/")
        tensors |= more
    return tensors, document


def _unpacked(tensors: Mapping[str, Tensor], document: Mapping[str, Any], original: nn.Module, prefix: str) -> State:
    plan = plan_from_document(document["plan"])
    model = apply_layout(original, plan.layout)
    start = f"{prefix}model/"
    load_weights(model, {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)})
    previous = document.get("previous")
    return State(
        model,
        plan.layout,
        plan.groups,
        tuple(Outcome.from_document(entry) for entry in document["entries"]),
        document["waiting"],
        RecoveryRecord.from_document(document["final"]) if document["final"] else None,
        _unpacked(tensors, previous, original, f"{prefix}previous/") if previous else None,
    )


def _packed_progress(progress: Progress) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, plain = {"rng": progress.rng_state}, {}
    tensors |= {f"average/{name}": tensor for name, tensor in (progress.average or {}).items()}
    for index, values in progress.optimizer["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            else:
                plain[f"{index}/{key}"] = value
    document = {
        "update": progress.update,
        "losses": list(progress.losses),
        "param_groups": progress.optimizer["param_groups"],
        "optimizer": plain,
    }
    return tensors, document


def _unpacked_progress(checkpoint: Checkpoint, model: nn.Module, recover: RecoverConfig | None) -> Progress:
    """Without settings the optimizer is the caller's, and what its state is like nobody else knows."""
    document = checkpoint.document["progress"]
    trained = parameters_of(model, recover) if recover else None
    numbers = [number for group in document["param_groups"] for number in group["params"]]
    if trained is not None and numbers != list(range(len(trained))):
        raise ValueError("the optimizer is of other parameters")
    state: dict[int, dict[str, Any]] = {}
    start = "optimizer/"
    values = {name[len(start) :]: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(start)}
    for name, value in {**values, **document["optimizer"]}.items():
        index, key = name.split("/", 1)
        if (
            trained is not None
            and isinstance(value, Tensor)
            and value.ndim
            and value.shape != trained[int(index)].shape
        ):
            raise ValueError(f"the optimizer's {key} of parameter {index} has another shape than that")
        state.setdefault(int(index), {})[key] = value
    start = "average/"
    means = {name[len(start) :]: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(start)}
    check_average(means or None, {name: tensor.shape for name, tensor in model.state_dict().items()})
    return Progress(
        document["update"],
        model.state_dict(),
        {"state": state, "param_groups": document["param_groups"]},
        _random_state(checkpoint.tensors["rng"]),
        tuple(document["losses"]),
        means or None,
    )


def _random_state(stored: Tensor) -> Tensor:
    torch.Generator().set_state(stored)  # which refuses what is none
    return stored


def calibration_pass(job: Job, images: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The first so many images of the calibration data (0: all), on the device, in the same order every time."""
    for inputs, labels in first_images(job.calibration, images, job.config.seed):
        yield job.fabric.to_device(inputs), labels


def first_images(batches: Batches, images: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The first so many images (0: all) and their labels where there are any.

    The order is the same every time, also of a shuffled loader.
    """
    torch.manual_seed(seed)
    if hasattr(batches, "set_epoch"):
        batches.set_epoch(0)
    seen = 0
    for number, batch in enumerate(batches):
        inputs, labels = inputs_and_labels(batch, f"batch {number} of the calibration loader")
        if images:
            inputs, labels = inputs[: images - seen], None if labels is None else labels[: images - seen]
        yield inputs, labels
        seen += len(inputs)
        if images and seen >= images:
            return
