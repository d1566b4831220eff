"""A forward pass as a list of steps that can be run one by one: layers by name, everything else as torch's operations.

The model is traced once (torch's `make_fx`, with in-place operations made functional). Plain layers stay whole: a step
calls the layer as it is when the step is run, so that weights may change between two runs. Everything else is recorded
with the sizes of the input it was traced with: a tape is good for inputs of that shape only.

A convolution with a forward of its own, say one that pads first, is found by its weights: what it does to its input is
recorded like anything else, and the step that applies the weights is the layer's.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from cosep.layers.maps import applied, is_kernel, is_plain
from cosep.models.modes import evaluating

# Kernels may sum in another order than when the model ran by itself; nothing else may differ.
_ROUNDING = 1e-4
_NAMESPACE = "cosep_tape"
_WAYS_OUT = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr)
_library: list[torch.library.Library] = []  # a Library takes its operators along when it is collected
_recorded: list[nn.Module] = []  # the layers of the model that is being traced, by the number in its steps


class TapeError(Exception):
    """A model that cannot be taken apart into steps; the message says why."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a forward pass."""

    sources: tuple[int, ...]  # the steps whose values it needs
    users: tuple[int, ...]  # the steps that need its value
    layer: str  # the layer whose weights it applies; "" for anything else
    operation: str  # "input", "output", "constant", "layer", or torch's name, such as "aten.add.Tensor"
    plain: bool  # whether all of its arguments are values of other steps
    run: Callable[[Mapping[int, Any]], Any]  # from the values of its sources to its own


@dataclass(frozen=True, eq=False)
class Tape:
    """The steps of one model for inputs of one shape, in the order in which they ran; the last is its output."""

    steps: tuple[Step, ...]
    input: int
    layers: Mapping[str, tuple[int, ...]]  # every layer that is a step, with its steps

    @property
    def output(self) -> int:
        return len(self.steps) - 1

    def like(self, other: Tape) -> bool:
        """Whether the other tape has the same steps, whatever the sizes of their values."""
        return len(self.steps) == len(other.steps) and all(
            (a.sources, a.layer, a.operation) == (b.sources, b.layer, b.operation)
            for a, b in zip(self.steps, other.steps, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Mark:
    """Where a pass was: the steps whose values it held, and how many steps each value was needed by."""

    values: frozenset[int]
    waiting: Counter[int]


@dataclass(eq=False)
class Pass:
    """One batch on its way through a tape: `values` holds what steps that have not run yet still need."""

    tape: Tape
    values: dict[int, Any] = field(default_factory=dict)
    waiting: Counter[int] = field(default_factory=Counter)  # how many steps each value is still needed by

    @staticmethod
    def begun(tape: Tape, inputs: Tensor) -> Pass:
        waiting = Counter({index: len(step.users) for index, step in enumerate(tape.steps)})
        return Pass(tape, {tape.input: inputs}, waiting)

    def marked(self) -> Mark:
        """Hold what is there now, so that the pass can be taken back to here once."""
        mark = Mark(frozenset(self.values), self.waiting.copy())
        self.waiting.update(dict.fromkeys(mark.values, 1))
        return mark

    def rewind(self, mark: Mark) -> None:
        """Go back to a mark; what was computed since is forgotten."""
        self.values = {index: value for index, value in self.values.items() if index in mark.values}
        self.waiting = mark.waiting.copy()

    def branched(self) -> Pass:
        """The same batch at the same place, to be run on independently of this one."""
        return Pass(self.tape, dict(self.values), Counter(self.waiting))

    def run(
        self,
        order: Iterable[int],
        see: Callable[[int, Any], None] | None = None,
        instead: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Run these steps, each after all of its sources; `see` is shown every value.

        `instead` names layers in whose place others run.
        """
        with torch.no_grad():
            for index in order:
                step = self.tape.steps[index]
                if instead and step.layer in instead:
                    self.values[index] = applied(instead[step.layer], self.values[step.sources[0]])
                elif index != self.tape.input:
                    self.values[index] = step.run(self.values)
                if see is not None:
                    see(index, self.values[index])
                for source in step.sources:
                    self.waiting[source] -= 1
                    if not self.waiting[source]:
                        del self.values[source]
                if not step.users and index != self.tape.output:
                    del self.values[index]  # the second result of some operation that nobody reads


def record(model: nn.Module, inputs: Tensor) -> Tape:
    """The tape of a model, in evaluation mode, for inputs of this shape; a TapeError where it has none."""
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    names = {id(module): name for name, module in reversed(list(model.named_modules()))}
    with evaluating(model), warnings.catch_warnings(), _layers_as_steps(model), _NoWayOut():
        warnings.simplefilter("ignore")
        try:
            traced = make_fx(functionalize(model), tracing_mode="real")(inputs)
        except Exception as error:
            raise TapeError(f"it cannot be traced ({type(error).__name__}: {_first_line(error)})") from error
        layers = list(_recorded)
    nodes = list(traced.graph.nodes)
    places = {node: index for index, node in enumerate(nodes)}
    if [node.op for node in nodes].count("placeholder") != 1:
        raise TapeError("its trace has no single input")
    by_weight = {id(m._parameters["weight"]): m for m in model.modules() if is_kernel(m) and not is_plain(m)}
    steps, found = [], dict[str, list[int]]()
    for index, node in enumerate(nodes):
        called = _convolution(traced, node, by_weight)
        if node.op == "call_function" and str(node.target) == f"{_NAMESPACE}.layer.default":
            called = layers[node.args[1]]
        if called is not None:
            found.setdefault(names[id(called)], []).append(index)
        steps.append(_step(traced, node, places, called, "" if called is None else names[id(called)]))
    users: list[list[int]] = [[] for _ in steps]  # not the trace's: a layer's step has its weights with itself
    for index, step in enumerate(steps):
        for source in step.sources:
            users[source].append(index)
    return Tape(
        tuple(replace(step, users=tuple(of)) for step, of in zip(steps, users, strict=True)),
        places[next(n for n in nodes if n.op == "placeholder")],
        {n: (*s,) for n, s in found.items()},
    )


def _convolution(traced: fx.GraphModule, node: fx.Node, by_weight: Mapping[int, nn.Module]) -> nn.Module | None:
    """The layer with a forward of its own whose weights a step applies just as a plain convolution would."""
    if node.op != "call_function" or str(node.target) != "aten.convolution.default":
        return None
    x, weight, bias, *how = (_held(traced, argument) for argument in node.args)
    module = by_weight.get(id(weight))
    if module is None or x is not node.args[0] or bias is not module._parameters.get("bias"):
        return None
    as_built = (module.stride, module.padding, module.dilation, False, module.output_padding, module.groups)
    return module if [list(h) if isinstance(h, (list, tuple)) else h for h in as_built] == how else None


def _held(traced: fx.GraphModule, argument: Any) -> Any:
    """An argument of a step, or the tensor itself where the trace holds it."""
    if not isinstance(argument, fx.Node) or argument.op != "get_attr":
        return list(argument) if isinstance(argument, (list, tuple)) else argument
    return getattr(traced, str(argument.target))


def recorded(model: nn.Module, batches: Sequence[Tensor]) -> dict[tuple[int, ...], Tape]:
    """A tape for every shape of batch, each compared with the model; a TapeError where one does not hold."""
    found: dict[tuple[int, ...], Tape] = {}
    for x in batches:
        shape = tuple(x.shape)
        if shape not in found:
            found[shape] = record(model, x)
            # Other images than it was made from: what was taken for a constant must be one.
            check_tape(found[shape], model, next((y for y in batches if y is not x and y.shape == x.shape), x.flip(0)))
    return found


def check_tape(tape: Tape, model: nn.Module, inputs: Tensor) -> None:
    """Raise a TapeError unless the tape computes what the model does on these inputs, others than it was made from."""
    run = Pass.begun(tape, inputs)
    with evaluating(model):
        run.run(range(len(tape.steps)))
        expected = model(inputs)
    found = run.values[tape.output]
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        raise TapeError("its steps give another output than the model")
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    if not float((found - expected).abs().max()) <= _ROUNDING * scale:
        raise TapeError(
            "on other inputs its steps compute something else than the model: its forward leaves torch, or depends on "
            "the values"
        )


def _step(
    traced: fx.GraphModule, node: fx.Node, places: Mapping[fx.Node, int], layer: nn.Module | None, name: str
) -> Step:
    reads = node.all_input_nodes if layer is None else node.all_input_nodes[:1]
    sources = tuple(places[source] for source in reads)
    plain = all(isinstance(argument, fx.Node) for argument in node.args) and not node.kwargs
    operation = {"placeholder": "input", "get_attr": "constant"}.get(node.op, node.op)
    run: Callable[[Mapping[int, Any]], Any]
    if node.op == "placeholder":
        run = _no_value
    elif node.op == "get_attr":
        value = traced
        for part in str(node.target).split("."):
            value = getattr(value, part)
        run = partial(_constant, value)
    elif node.op == "output":
        run = partial(_picked, _filled(node.args[0], places))
    elif layer is not None:
        operation, plain = "layer", True
        run = partial(_layer, layer, sources[0])
    elif callable(node.target):
        operation = str(node.target)
        run = partial(_call, node.target, _filled(node.args, places), _filled(node.kwargs, places))
    else:
        raise TapeError(f"its trace has a step of an unknown kind ({node.op})")
    return Step(sources, (), name, operation, plain, run)


@dataclass(frozen=True)
class _Value:
    """Stands for the value of a step among the arguments of another."""

    step: int


def _filled(arguments: Any, places: Mapping[fx.Node, int]) -> Any:
    def stand_in(node: fx.Node) -> Any:
        return _Value(places[node])

    return fx.node.map_arg(arguments, stand_in)


def _picked(arguments: Any, values: Mapping[int, Any]) -> Any:
    """Arguments with the values of the steps that they name."""
    if isinstance(arguments, _Value):
        return values[arguments.step]
    if isinstance(arguments, tuple):
        return tuple(_picked(part, values) for part in arguments)
    if isinstance(arguments, list):
        return [_picked(part, values) for part in arguments]
    if isinstance(arguments, dict):
        return {key: _picked(part, values) for key, part in arguments.items()}
    return arguments


def _call(target: Callable[..., Any], args: Any, kwargs: Any, values: Mapping[int, Any]) -> Any:
    return target(*_picked(args, values), **_picked(kwargs, values))


def _layer(layer: nn.Module, source: int, values: Mapping[int, Any]) -> Any:
    return applied(layer, values[source])


def _constant(value: Any, values: Mapping[int, Any]) -> Any:
    return value


def _no_value(values: Mapping[int, Any]) -> Any:
    raise AssertionError("the input is given, not computed")


class _NoWayOut(TorchFunctionMode):
    """Refuses to hand the values of traced tensors to anything but torch.

    They have no memory of their own: NumPy would read, or write, what lies somewhere else, and may end the process.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAYS_OUT and torch._is_functional_tensor(args[0]):
            raise TypeError(f"its forward leaves torch by {func.__name__}()")
        return func(*args, **(kwargs or {}))


@contextmanager
def _layers_as_steps(model: nn.Module) -> Iterator[None]:
    """While a model is traced, its plain layers are one operation each: `layer(x, number)`."""
    if not _library:
        library = torch.library.Library(_NAMESPACE, "DEF")
        library.define("layer(Tensor x, int number) -> Tensor")
        library.impl("layer", _run_recorded, "CompositeExplicitAutograd")
        _library.append(library)
    changed: list[nn.Module] = []
    try:
        for module in model.modules():
            if is_plain(module):
                _recorded.append(module)
                module.forward = partial(_as_step, module, len(_recorded) - 1)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward
        _recorded.clear()


def _as_step(module: nn.Module, number: int, *args: Any, **kwargs: Any) -> Any:
    given = (*args, *kwargs.values())  # plain layers have one argument, which may be given by its name
    if len(given) == 1 and isinstance(given[0], Tensor):
        return torch.ops.cosep_tape.layer(given[0], number)
    return type(module).forward(module, *args, **kwargs)


def _run_recorded(x: Tensor, number: int) -> Tensor:
    layer = _recorded[number]
    return type(layer).forward(layer, x)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
