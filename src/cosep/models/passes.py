"""The way of a forward pass through a network: which layers it runs, and how it is left before its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from cosep.errors import CalibrationError, ModelError
from cosep.layers import kind_of
from cosep.models.modes import device_of


class PassEnded(BaseException):
    """Thrown out of a forward pass that has given all that was wanted of it. No Exception: a model may catch those."""


@contextmanager
def one_path(model: nn.Module) -> Iterator[Callable[[str], None]]:
    """Yield a check to call after each pass with the name of its input; other layers than in the first pass: refused.

    Where an input decides which layers run, a cut that was proven on one input may fail on the next.
    """
    names = list(dict(model.named_modules()))
    ran: set[str] = set()
    first: list[tuple[str, frozenset[str]]] = []

    def check(what: str) -> None:
        now = frozenset(ran)
        ran.clear()
        if not first:
            first.append((what, now))
        before, expected = first[0]
        if now != expected:
            only, other = (_one(names, now - expected), _one(names, expected - now))
            found = " and ".join(
                part for part in (only and f"{what} runs {only}", other and f"{before} runs {other}") if part
            )
            raise ModelError(
                f"the input decides which layers of the model run: {found}, where the other does not. A cut can be "
                "proven for one path only. Give a model that runs the same layers for every input: prune the parts "
                "that always run, or compute both branches and choose with torch.where."
            )

    def note(name: str, _module: nn.Module, _args: Any) -> None:
        ran.add(name)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(note, name)).remove)
        yield check


def _one(names: list[str], some: frozenset[str]) -> str:
    """The first of some layers in the order of the model; "" if there is none."""
    return next((name for name in names if name in some), "")


def input_of(batch: Any, model: nn.Module) -> Tensor:
    """The images of a batch, which is a tensor or begins with one, where the model is."""
    x = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    if not isinstance(x, Tensor):
        raise CalibrationError(
            f"a calibration batch is a {type(x).__name__}; a tensor of images, or a tuple that begins with one, is "
            "needed. Let the loader give (input, label)."
        )
    return x.to(device_of(model))


def first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer is called with, be it by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


def functional_linears(
    model: nn.Module, layers: Mapping[str, nn.Module], found: Callable[[str, Tensor], None]
) -> AbstractContextManager[object]:
    """Within it, `found` is told the name and the output of linear layers whose weights are used without a call.

    As in `F.linear(x, self.qkv.weight, ...)`. Weights that modules share say nothing of which of them is meant. Where
    there is no such layer, as in most convolutional networks, passes run as they always do.
    """
    held = Counter(id(tensor) for m in model.modules() for tensor in m.parameters(recurse=False))
    linear = [(name, m) for name, m in layers.items() if getattr(kind_of(m), "operation", "") == "product"]
    own = {name: m for name, m in linear if held[id(m._parameters.get("weight"))] == 1}
    return _FunctionalLinears(own, found) if own else nullcontext()


class _FunctionalLinears(TorchFunctionMode):
    """Looks at every function of torch for products with these layers' weights while the layers are not running."""

    def __init__(self, layers: Mapping[str, nn.Module], found: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self.layers = {id(module.weight): (name, module) for name, module in layers.items()}
        self.found = found
        self.running: set[str] = set()  # layers that were called as such

    def __enter__(self) -> _FunctionalLinears:
        self.handles = [
            handle
            for name, module in self.layers.values()
            for handle in (
                module.register_forward_pre_hook(lambda *_, name=name: self.running.add(name), prepend=True),
                module.register_forward_hook(lambda *_, name=name: self.running.discard(name), always_call=True),
            )
        ]
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        for handle in self.handles:
            handle.remove()
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear:
            weight = args[1] if len(args) > 1 else (kwargs or {})["weight"]
            layer = self.layers.get(id(weight))
            if layer is not None and layer[0] not in self.running:
                self.found(layer[0], result)
        return result
