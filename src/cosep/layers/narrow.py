"""Attention that takes the width of its heads from its input, made to run with fewer of them.

Much attention is written as `B, N, C = x.shape` with heads of `C // num_heads` and a result of `reshape(B, N, C)`. With
heads gone, what runs inside is narrower than the input, and no attribute says so. Such a module is told: its input
comes to it as something that states the inner width as its own and is, in every other use, the input as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

INNER = "width_for"  # module.width_for.layer: the inner width of a module, which is how much that layer in it reads


class Narrow:
    """A tensor that says of its last axis that it has another size; to all operations it is the tensor itself."""

    def __init__(self, tensor: Tensor, width: int) -> None:
        self.tensor, self.width = tensor, width

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.tensor.shape[:-1], self.width))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        if name in ("tensor", "width"):
            raise AttributeError(name)  # a copy asks before they are there
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_plain(args), **_plain(kwargs or {}))


def _operator(name: str) -> Any:
    def apply(self: Narrow, *args: Any) -> Any:
        return getattr(self.tensor, name)(*_plain(args))

    return apply


# Python looks for operators on the class, never by `__getattr__`.
for _name in ("getitem", "len", "neg", *(r + n for r in ("", "r") for n in ("add", "sub", "mul", "truediv", "matmul"))):
    setattr(Narrow, f"__{_name}__", _operator(f"__{_name}__"))


def _plain(value: Any) -> Any:
    """Arguments with tensors as they are."""
    if isinstance(value, Narrow):
        return value.tensor
    if isinstance(value, (tuple, list)):
        plain = [_plain(each) for each in value]
        if hasattr(value, "_fields"):  # a named tuple takes its entries one by one
            return type(value)(*plain)
        return type(value)(plain)
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


class TellsWidth:
    """The hook of a module that is told its inner width: its first input comes to it narrow."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if args:
            return (Narrow(_plain(args[0]), self.width), *args[1:]), kwargs
        name = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), None)
        return args, kwargs if name is None else {**kwargs, name: Narrow(kwargs[name], self.width)}


class TakesPlain:
    """The hook of a module inside: it gets tensors as they are, and so does whoever looks at its input."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _plain(args), _plain(kwargs)


def told_width(module: nn.Module) -> int | None:
    """The inner width that a module was told; None where it was told none."""
    return next((hook.width for hook in module._forward_pre_hooks.values() if isinstance(hook, TellsWidth)), None)


def tell_width(module: nn.Module, width: int) -> None:
    """Tell a module its inner width, in place."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, TellsWidth):
            hook.width = width
            return
    module.register_forward_pre_hook(TellsWidth(width), with_kwargs=True)
    for child in _called(module):
        child.register_forward_pre_hook(TakesPlain(), with_kwargs=True, prepend=True)


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a module's own code calls: its children, or those in its lists."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called(child)
        else:
            yield child
