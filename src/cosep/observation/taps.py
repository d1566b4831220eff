"""Taps: the pooled activations of any number of layers, caught while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cosep.config import Tap, Tokens
from cosep.errors import CalibrationError
from cosep.layers import channel_axis
from cosep.models.passes import PassEnded, functional_linears
from cosep.observation.checks import checked_layers

# By name, so that F.relu, torch.relu, Tensor.relu and their in-place forms are one thing.
_ACTIVATIONS = frozenset(
    [
        *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish"),
        *("sigmoid", "hardsigmoid", "logsigmoid", "tanh", "hardtanh", "tanhshrink", "hardshrink", "softshrink"),
        *("softplus", "softsign", "threshold", "clamp", "clamp_min"),
    ]
)
_NORMS = frozenset(["batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm", "local_response_norm"])
# What leaves values and their places as they are in a model that only evaluates.
_TRANSPARENT = frozenset(
    ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "contiguous"]
)
_Pool = Callable[[Tensor], Tensor]


class Caught(dict[str, Tensor]):
    """What the taps caught in the latest pass: {layer: activation}. With `ends_pass` the last catch ends the pass."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted
        self.ends_pass = False

    def catch(self, name: str, value: Tensor) -> None:
        self[name] = value
        if self.ends_pass and len(self) == self.wanted:
            raise PassEnded


@contextmanager
def tapped(
    model: nn.Module, layers: Iterable[str], tap: Tap = "output", *, pooled: bool = True, tokens: Tokens = "mean"
) -> Iterator[Caught]:
    """Yield a dict that every forward pass refills: {layer: pooled activation (batch, channels)}, or unpooled ones.

    Convolutions give the mean over space, linear layers the value, and linear layers on sequences the mean over tokens,
    or with tokens="first" the value of the first one.
    With tap="activation" it is what the layer's activation makes of its output: the output is followed through
    normalization and dropout into the first activation, be it a module or a function. Where something else uses the
    output first (a sum, a convolution, a pooling), the value as it reaches that use is taken.

    A layer that runs twice in one pass is refused: its calls have different inputs, hence different statistics.
    """
    modules = checked_layers(model, layers)
    pools = {name: pool_of(module, tokens) if pooled else torch.clone for name, module in modules.items()}
    latest = Caught(len(modules))
    with ExitStack() as stack:
        # First of all root hooks to run, and last of all to be removed.
        _hook(stack, model.register_forward_pre_hook(lambda *_: latest.clear(), prepend=True))
        take: Callable[[str, object], None]
        if tap == "output":
            take = partial(_store, latest, pools)
        else:
            follower = _Follower(latest)
            take = partial(_follow, follower, pools)
            _hook(stack, model.register_forward_pre_hook(lambda *_: follower.forget(), prepend=True))
        stack.enter_context(functional_linears(model, modules, take))
        for name, module in modules.items():
            _hook(stack, module.register_forward_hook(lambda _, args, output, name=name: take(name, output)))
        if tap != "output":
            _hook(stack, model.register_forward_hook(lambda *_: follower.settle_all()))
            stack.enter_context(follower)
        yield latest


def pool_of(module: nn.Module, tokens: Tokens = "mean") -> _Pool:
    """How this layer's output becomes (batch, channels): last in linear layers, second in most others."""
    if channel_axis(module) != -1:
        return _pool_second
    return _pool_first if tokens == "first" else _pool_last


def _pool_second(output: Tensor) -> Tensor:
    return _mean(output, range(2, output.ndim))


def _pool_last(output: Tensor) -> Tensor:
    return _mean(output, range(1, output.ndim - 1))


def _pool_first(output: Tensor) -> Tensor:
    """The first token of (batch, tokens, channels); anything else has none, and gives its mean."""
    return output[:, 0].clone() if output.ndim == 3 else _pool_last(output)


def _mean(output: Tensor, dims: range) -> Tensor:
    if not dims:
        return output.clone()  # the model may go on to change its own tensor in place
    # Half precision is too coarse for a mean; the sum is taken in float32 anyway, so the result may as well be.
    return output.mean(tuple(dims), dtype=torch.float32 if output.dtype.itemsize < 4 else None)


def _store(latest: Caught, pools: Mapping[str, _Pool], name: str, output: object) -> None:
    latest.catch(name, pools[name](_checked_output(name, output, name in latest)))


def _follow(follower: _Follower, pools: Mapping[str, _Pool], name: str, output: object) -> None:
    follower.follow(name, _checked_output(name, output, follower.knows(name)), pools[name])


def _checked_output(name: str, output: object, ran_before: bool) -> Tensor:
    if ran_before:
        raise CalibrationError(
            f"layer {name!r} ran twice in one forward pass (a shared module); each call has inputs and statistics of "
            "its own, so one set cannot describe it. Leave it out of `layers`, or give each call a module of its own."
        )
    if not isinstance(output, Tensor):
        raise CalibrationError(
            f"layer {name!r} returned {type(output).__name__}; only layers whose output is one tensor can be observed. "
            "Name a convolution or a linear layer inside it."
        )
    if output.ndim < 2 or not output.is_floating_point():
        raise CalibrationError(
            f"layer {name!r} returned {output.dtype} of the shape {tuple(output.shape)}; real numbers of the shape "
            "(batch, channels, ...) are needed. Give the model batches, or leave the layer out of `layers`."
        )
    return output


class _Follower(TorchFunctionMode):
    """Follows layer outputs through the functions that use them, until an activation or another use settles them."""

    def __init__(self, latest: Caught) -> None:
        super().__init__()
        self.latest = latest
        # By id, with the tensor itself so that the id is not given to another one meanwhile.
        self.open: dict[int, tuple[Tensor, list[tuple[str, _Pool]]]] = {}

    def knows(self, name: str) -> bool:
        return name in self.latest or any(name == n for _, taps in self.open.values() for n, _ in taps)

    def follow(self, name: str, output: Tensor, pool: _Pool) -> None:
        self.open.setdefault(id(output), (output, []))[1].append((name, pool))

    def forget(self) -> None:
        self.open.clear()

    def settle_all(self) -> None:
        """What nothing used within the model: its last layer."""
        for key in list(self.open):
            self._settle(key, self.open[key][0])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        used = self._used(args, kwargs) if self.open else []
        if not used:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.rstrip("_") if in_place else name
        subject = id(args[0] if args else kwargs.get("input"))
        if name in _ACTIVATIONS and subject in used:
            output = func(*args, **kwargs)
            self._settle(subject, output)
            return output
        if name in _NORMS or name in _TRANSPARENT:
            output = func(*args, **kwargs)
            if subject in used:
                _, taps = self.open.pop(subject)
                self.open[id(output)] = (output, taps)
            return output
        if in_place or name.startswith("__i") or name == "__setitem__" or "out" in kwargs or kwargs.get("inplace"):
            for key in used:
                self._settle(key, self.open[key][0])
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        # A look at its shape or device is not a use: tensors come of a use.
        if any(isinstance(item, Tensor) for item in (output if isinstance(output, tuple | list) else (output,))):
            for key in used:
                self._settle(key, self.open[key][0])
        return output

    def _used(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
        """The followed tensors among the arguments, also within lists (torch.cat)."""
        found: list[int] = []
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, list | tuple) else (value,):
                if id(item) in self.open and id(item) not in found:
                    found.append(id(item))
        return found

    def _settle(self, key: int, value: Tensor) -> None:
        _, taps = self.open.pop(key)
        for name, pool in taps:
            self.latest.catch(name, pool(value))


def _hook(stack: ExitStack, handle: torch.utils.hooks.RemovableHandle) -> None:
    stack.callback(handle.remove)
