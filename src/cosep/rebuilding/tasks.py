"""Which layers of a cut network are solved, towards what, and in which order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cosep.layers import is_batchnorm, mixing_kind_of
from cosep.layers.maps import LinearMap, why_no_map
from cosep.models.frozen import frozen_batchnorms
from cosep.models.tape import Tape
from cosep.rebuilding.shelf import Laid
from cosep.records import LayerRebuild, Layout, Towards


@dataclass(eq=False)
class Task:
    """One layer to solve, and where its target is."""

    layer: str
    step: int
    map: LinearMap
    norm: str = ""  # the BatchNorm behind it, which takes part in the fit
    target: int = 0  # the step of the uncut network whose value is aimed at
    other: int | None = None  # the step of the cut network that is added to the layer's output
    channels: Tensor | None = None  # of the target: those that the cut network still has
    last: bool = False  # whether no layer comes behind it
    where: list[Tensor] = field(default_factory=list)  # sampled positions, batch by batch
    wanted: list[Laid] = field(default_factory=list)  # the uncut network's rows there

    @property
    def towards(self) -> Towards:
        return "output" if self.other is None else "sum"


def find_tasks(
    tape: Tape, model: nn.Module, layout: Layout, only: AbstractSet[str] | None = None
) -> tuple[dict[int, Task], list[LayerRebuild]]:
    """The layers that can be solved, by their steps, and records of those that are left alone; of all, or only some."""
    tasks: dict[int, Task] = {}
    left: list[LayerRebuild] = []
    fixed = Fixed.of(model)
    behind: set[int] = set()  # BatchNorms that take part in the fit of the layer in front of them
    layers = {name: steps for name, steps in tape.layers.items() if only is None or name in only}
    for layer, steps in layers.items():
        module = model.get_submodule(layer)
        if reason := why_left(module, steps, fixed):
            left.append(LayerRebuild(layer, "output", False, reason, math.nan, math.nan))
            continue
        if is_batchnorm(module):
            continue
        kept = layout.get((layer, "out"))
        task = Task(layer, steps[0], LinearMap(module), channels=None if kept is None else torch.tensor(kept))
        end = steps[0]
        norm = _only_user(tape, end)
        if norm is not None and (name := tape.steps[norm].layer) and _is_norm(model, name, tape, fixed):
            task.norm, end = name, norm
            behind.add(norm)
        task.target = steps[0]
        task.last = not any(tape.steps[i].layer for i in _descendants(tape, end))
        tasks[steps[0]] = task
        total = _only_user(tape, end)
        if total is not None and tape.steps[total].operation == "aten.add.Tensor" and tape.steps[total].plain:
            others = [source for source in tape.steps[total].sources if source != end]
            if len(others) == 1 and tape.steps[others[0]].operation != "constant" and _keeps_scale(model, task.norm):
                task.other, task.target = others[0], total
    _one_for_each_sum(tape, tasks)
    for layer, steps in layers.items():
        module = model.get_submodule(layer)
        if is_batchnorm(module) and steps[0] not in behind and _is_norm(model, layer, tape, fixed):
            kept = layout.get((layer, "out"))
            channels = None if kept is None else torch.tensor(kept)
            tasks[steps[0]] = Task(layer, steps[0], LinearMap(module), target=steps[0], channels=channels)
    return tasks, [*left, *passed_over(model, tape.layers, only)]


def passed_over(model: nn.Module, known: Container[str], only: AbstractSet[str] | None = None) -> list[LayerRebuild]:
    """Records of convolutions and linear layers that never run as such, so that the rebuild does not see them."""
    found = []
    for name, module in model.named_modules():
        if mixing_kind_of(module) and name not in known and (only is None or name in only):
            reason = why_no_map(module) or "it does not run by itself: its weights are changed or used by other code"
            found.append(LayerRebuild(name, "output", False, reason, math.nan, math.nan))
    return found


def _keeps_scale(model: nn.Module, norm: str) -> bool:
    """Whether a BatchNorm can be given any scale and shift; true where there is none."""
    return not norm or model.get_submodule(norm)._parameters.get("weight") is not None


def _one_for_each_sum(tape: Tape, tasks: Mapping[int, Task]) -> None:
    """Of two layers that end in one sum, only the one with more layers before it is solved towards the sum."""
    depth = [0] * len(tape.steps)
    for index, step in enumerate(tape.steps):
        depth[index] = max((depth[s] for s in step.sources), default=0) + bool(step.layer)
    by_sum: dict[int, list[Task]] = {}
    for task in tasks.values():
        if task.other is not None:
            by_sum.setdefault(task.target, []).append(task)
    for found in by_sum.values():
        found.sort(key=lambda task: (depth[task.step], task.step))
        for task in found[:-1]:
            task.target, task.other = task.step, None
        last = found[-1]
        assert last.other is not None
        if last.step in _ancestors(tape, last.other):  # what is added was made from the layer's own output
            last.target, last.other = last.step, None


@dataclass(frozen=True, eq=False)
class Fixed:
    """What of a model may not be given other weights: found once for all of its layers."""

    norms: frozenset[nn.Module]  # frozen BatchNorms
    shared: frozenset[int]  # the ids of parameters that several modules hold
    trains: bool  # whether any parameter asks for gradients

    @staticmethod
    def of(model: nn.Module) -> Fixed:
        held = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        shared = frozenset(key for key, times in held.items() if times > 1)
        return Fixed(frozen_batchnorms(model), shared, any(p.requires_grad for p in model.parameters()))


def why_left(module: nn.Module, steps: Sequence[int], fixed: Fixed) -> str:
    """Why a layer that runs in these steps keeps its weights, in words; "" where it can be solved."""
    if len(steps) > 1:
        return f"it runs {len(steps)} times"
    if reason := why_no_map(module):
        return reason
    if module in fixed.norms:
        return "it is frozen"
    own = list(module.parameters(recurse=False))
    if own and fixed.trains and not any(p.requires_grad for p in own):
        return "it is frozen"
    if any(id(p) in fixed.shared for p in own):
        return "its weights are shared with another layer"
    return ""


def _is_norm(model: nn.Module, name: str, tape: Tape, fixed: Fixed) -> bool:
    module = model.get_submodule(name)
    return is_batchnorm(module) and not why_left(module, tape.layers[name], fixed)


def _only_user(tape: Tape, step: int) -> int | None:
    users = tape.steps[step].users
    return users[0] if len(users) == 1 else None


def _reached(step: int, nearest: Callable[[int], Iterable[int]]) -> set[int]:
    """The steps that are reached from a step over its nearest ones, itself included."""
    found, stack = {step}, [step]
    while stack:
        new = set(nearest(stack.pop())) - found
        found |= new
        stack.extend(new)
    return found


def _descendants(tape: Tape, step: int) -> set[int]:
    """The steps that need a step's value, directly or not."""
    return _reached(step, lambda index: tape.steps[index].users) - {step}


def _ancestors(tape: Tape, step: int) -> set[int]:
    """A step and all whose values it needs, directly or not."""
    return _reached(step, lambda index: tape.steps[index].sources)


def in_order(tape: Tape, tasks: Mapping[int, Task]) -> list[int]:
    """The steps in an order in which whatever is added to a layer's output comes before that layer."""
    order: list[int] = []
    placed: set[int] = set()

    def place(index: int) -> None:
        if index in placed:
            return
        placed.add(index)
        for source in tape.steps[index].sources:
            place(source)
        task = tasks.get(index)
        if task is not None and task.other is not None:
            for before in sorted(_ancestors(tape, task.other)):
                place(before)
        order.append(index)

    for index in range(len(tape.steps)):
        place(index)
    return order
