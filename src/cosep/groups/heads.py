"""Where attention divides channels into heads: a look ahead, before channels are followed.

A reshape such as (tokens, channels) -> (tokens, heads, size) says by itself not which of the new axes stays whole. What
comes of it does: a product of many matrices, or attention as one operation, keeps its batch axes apart, and one of
these is the axis of heads. So the axes of every such reshape are followed to the products behind it.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from cosep.groups import operations as ops
from cosep.groups.labels import aligned, moved, varying

AxisOf = tuple[int, int]  # a reshape by its number in the pass, and one of the axes that it made


@dataclass(frozen=True)
class Division:
    """A reshape that divides channels into heads: the shape it makes, and which of its axes are told apart."""

    shape: tuple[int, ...]
    axes: frozenset[int]


def tensors_in(args: Any, kwargs: Any) -> list[Tensor]:
    """Every tensor in nested arguments, in order."""
    found: list[Tensor] = []
    stack = [*reversed(list(kwargs.values())), *reversed(list(args))]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, dict):
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
    return found


def base_name(func: Any) -> str:
    """An operation's ATen name; in-place forms go by the name of the others."""
    name = str(func.overloadpacket.__name__)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


class Scout(TorchDispatchMode):
    """Runs ahead: notes which axes of which reshapes become batch axes of a product."""

    busy = False

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline
        self.reshapes = 0
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.apart: dict[int, set[int]] = {}
        self.known: Any = WeakTensorKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its whole compiler, for seconds, at the first operation

    def leaves(self, tensor: Tensor, how: str) -> None:
        """Nothing is cut on this pass, so nothing needs to be fixed."""

    def divisions(self) -> dict[int, Division]:
        """The reshapes that make heads, by their numbers in the pass."""
        return {number: Division(self.shapes[number], frozenset(axes)) for number, axes in self.apart.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if time.monotonic() > self.deadline:
            raise TimeoutError
        name = base_name(func)
        fields = self.fields(args, kwargs)  # before an in-place operation changes anything
        result = func(*args, **kwargs)
        if name in ops.RESHAPES:
            self.reshape(args[0], result, fields)
        elif not fields:
            return result
        elif name in ops.ATTENTION or name in ops.BATCHED_PRODUCTS:
            for tensor in tensors_in(args, kwargs):
                self.meet(tensor)
        elif name in ops.MOVES or name in ops.PICKS or name == "expand":
            self.move(func, args, kwargs, result)
        elif name in ("cat", "stack"):
            self.join(name, args, kwargs, result)
        elif name in ops.POINTWISE or name in ops.KEEPS_SHAPE or name == "native_layer_norm":
            out = result[0] if isinstance(result, (list, tuple)) else result
            self.known[out] = {key: aligned(index, out.ndim) for key, index in fields.items()}
        return result

    def fields(self, args: Any, kwargs: Any) -> dict[AxisOf, Tensor]:
        found: dict[AxisOf, Tensor] = {}
        for tensor in tensors_in(args, kwargs):
            found.update(self.known.get(tensor, {}))
        return found

    def reshape(self, x: Tensor, result: Tensor, fields: dict[AxisOf, Tensor]) -> None:
        """Carry the axes that are known; where a reshape makes axes, these are known from here on."""
        self.reshapes += 1
        kept = {k: moved(v, x.shape, lambda t: t.reshape(result.shape)) for k, v in fields.items()}
        if result.ndim >= x.ndim and result.shape != x.shape:
            self.shapes[self.reshapes] = tuple(result.shape)
            for axis, size in enumerate(result.shape):
                if size > 1:
                    index = torch.arange(size).reshape([-1 if d == axis else 1 for d in range(result.ndim)])
                    kept[self.reshapes, axis] = index
        if kept:
            self.known[result] = kept

    def move(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        x = args[0]
        made = {k: func(v.expand(x.shape), *args[1:], **kwargs) for k, v in self.known.get(x, {}).items()}
        for i, output in enumerate(result if isinstance(result, (list, tuple)) else [result]):
            own = {k: m[i] if isinstance(m, (list, tuple)) else m for k, m in made.items()}
            self.known[output] = {k: moved(v, output.shape, copy.copy) for k, v in own.items()}

    def join(self, name: str, args: Any, kwargs: Any, result: Tensor) -> None:
        """Positions are turned part by part: an axis stays what it is if tensors are joined along another one."""
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        fields = self.fields(args[:1], {})
        if name == "stack":
            fields = {key: index.unsqueeze(dim) for key, index in fields.items()}
        self.known[result] = {key: index for key, index in fields.items() if dim not in varying(index)}

    def meet(self, tensor: Tensor) -> None:
        """An operand of a product: all its axes but the last two are told apart."""
        for (number, axis), index in self.known.get(tensor, {}).items():
            along = varying(index)
            if along and max(along) < tensor.ndim - 2:
                self.apart.setdefault(number, set()).add(axis)
