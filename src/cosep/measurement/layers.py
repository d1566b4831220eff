"""What each layer of a network costs, before and after, and which layers it reads: what a picture of it needs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from cosep.layers import mixing_kind_of, written_out
from cosep.measurement.cost import layer_macs
from cosep.models.modes import device_of, evaluating
from cosep.models.tape import TapeError, record
from cosep.records import LayerFigures

REPEATS = 10
JOINS = {"add": "sum", "mul": "product", "cat": "concatenation", "bmm": "matrix product", "matmul": "matrix product"}
INPUT = -1


def layer_figures(before: nn.Module, after: nn.Module, example_input: Tensor) -> tuple[LayerFigures, ...]:
    """Every convolution and linear layer of a network that is there uncut and cut, in the order in which they run."""
    before, after = written_out(before), written_out(after)
    one = example_input[:1]
    cost, cost_after = layer_macs(before, one), layer_macs(after, one)
    took = layer_times({"before": before, "after": after}, one)
    found = []
    for name, kind, sources in _parts(before, one, list(took["before"])):
        if not name or name not in cost_after:
            found.append(LayerFigures(name, kind, sources))
            continue
        old, new = cost[name], cost_after[name]
        found.append(
            LayerFigures(
                name,
                kind,
                sources,
                inputs=(round(old.inputs), round(new.inputs)),
                outputs=(round(old.outputs), round(new.outputs)),
                macs=(round(old.product), round(new.product)),
                milliseconds=(took["before"][name], took["after"].get(name, 0.0)),
            )
        )
    return tuple(found)


def layer_times(
    models: Mapping[str, nn.Module], example_input: Tensor, *, repeats: int = REPEATS
) -> dict[str, dict[str, float]]:
    """Milliseconds of each layer of each model, {model: {layer: time}}, layers in the order in which they run.

    A layer's time is that until the next one begins, the median over rounds in which the models take turns.
    """
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    with ExitStack() as stack:
        passes = {name: stack.enter_context(_marked(model)) for name, model in models.items()}
        stack.enter_context(torch.inference_mode())
        for number in range(1 + repeats):
            for name in models if number % 2 == 0 else reversed(list(models)):
                taken = passes[name].times(example_input)
                if number:  # the first round warms up
                    rounds[name].append(taken)
    return {
        name: {layer: median(each.get(layer, 0.0) for each in taken) for layer in taken[0]}
        for name, taken in rounds.items()
    }


class _Marked:
    """A model whose layers note when they begin."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.device = model, device_of(model)
        self.marks: list[tuple[str, float]] = []

    def now(self) -> float:
        if self.device.type == "cuda":  # whose kernels return before they are done
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def times(self, example_input: Tensor) -> dict[str, float]:
        placed = example_input.to(self.device)
        self.marks.clear()
        start = self.now()
        self.model(placed)
        end = self.now()
        # What comes before the first layer is its own.
        begun = [start, *(moment for _, moment in self.marks[1:]), end]
        found: dict[str, float] = {}
        for place, (name, _) in enumerate(self.marks):
            found[name] = found.get(name, 0.0) + 1e3 * (begun[place + 1] - begun[place])
        return found


@contextmanager
def _marked(model: nn.Module) -> Iterator[_Marked]:
    marked = _Marked(model)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if mixing_kind_of(module) is not None:

                def note(_module: nn.Module, _args: Any, name: str = name) -> None:
                    marked.marks.append((name, marked.now()))

                stack.callback(module.register_forward_pre_hook(note).remove)
        stack.enter_context(evaluating(model))
        yield marked


def _parts(model: nn.Module, one: Tensor, order: list[str]) -> list[tuple[str, str, tuple[int, ...] | None]]:
    """Name, kind and sources of every layer, and of every place where several come together.

    Where a forward pass cannot be taken apart into steps, or its steps are others than the layers, the layers alone
    are there, and nobody knows what they read.
    """
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    alone: list[tuple[str, str, tuple[int, ...] | None]] = [(name, kinds[name], None) for name in order]
    try:
        tape = record(model, one.to(device_of(model)))
    except TapeError:
        return alone
    if not set(order) <= set(tape.layers):
        return alone
    layers = set(order)
    parts: list[tuple[str, str, tuple[int, ...] | None]] = []
    places: dict[str, int] = {}
    reached: list[frozenset[int]] = []  # of every step: the parts whose outputs it has, nothing else being in between
    for index, step in enumerate(tape.steps):
        reads = frozenset[int]().union(*(reached[source] for source in step.sources))
        if index == tape.input:
            reached.append(frozenset({INPUT}))
        elif step.layer in layers:
            if step.layer not in places:
                places[step.layer] = len(parts)
                parts.append((step.layer, kinds[step.layer], tuple(sorted(reads))))
            reached.append(frozenset({places[step.layer]}))
        elif len(reads) > 1 and index != tape.output:
            parts.append(("", _join(step.operation), tuple(sorted(reads))))
            reached.append(frozenset({len(parts) - 1}))
        else:
            reached.append(reads)
    return parts


def _join(operation: str) -> str:
    """torch's name for what brings several values together, as people say it: aten.add_.Tensor -> sum."""
    name = operation.split(".")[1] if operation.startswith("aten.") else operation
    if "scaled_dot_product" in name:  # as torch has one for each device and kind of number
        return "attention"
    return JOINS.get(name.strip("_"), name.strip("_"))
