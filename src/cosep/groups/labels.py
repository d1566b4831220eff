"""Names for channels: every channel of every module side is a number, and channels that must go together are merged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CONSTANT = 0  # the label of positions that hold no channel: padding, buffers made on the fly


class Labels:
    """A union-find over channels; each class may carry a reason why it cannot go, and notes on what tied it."""

    def __init__(self) -> None:
        self._parent = [CONSTANT]
        self._fixed: dict[int, str] = {}
        self._notes: dict[int, set[str]] = {}

    def fresh(self, count: int) -> Tensor:
        """Labels that are not in use yet: (count,) int64."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, label: int) -> int:
        parent = self._parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def canonical(self, labels: Tensor) -> Tensor:
        """The representative of every label's class, in the same shape."""
        values, inverse = labels.unique(return_inverse=True)
        return torch.tensor([self.find(v) for v in values.tolist()], dtype=torch.int64)[inverse]

    def merge(self, a: Tensor, b: Tensor, reason: str) -> None:
        """Make two label tensors the same, element by element, after broadcasting; constants fix what they meet."""
        a, b = torch.broadcast_tensors(a, b)
        count = len(self._parent)  # a pair as one number: `unique` over rows takes a hundred times as long
        for pair in (a * count + b).unique().tolist():
            x, y = divmod(pair, count)
            self._merge_one(x, y, reason)

    def _merge_one(self, x: int, y: int, reason: str) -> None:
        x, y = self.find(x), self.find(y)
        if x == y:
            return
        if CONSTANT in (x, y):
            self._fixed.setdefault(x + y, reason)
            return
        low, high = min(x, y), max(x, y)
        self._parent[high] = low
        if high in self._fixed:
            self._fixed.setdefault(low, self._fixed.pop(high))
        if high in self._notes:
            self._notes.setdefault(low, set()).update(self._notes.pop(high))

    def fix(self, labels: Tensor, reason: str) -> None:
        """These channels cannot be removed; the first reason given stays."""
        for label in labels.unique().tolist():
            root = self.find(label)
            if root != CONSTANT:
                self._fixed.setdefault(root, reason)

    def note(self, labels: Tensor, what: str) -> None:
        """Remember something about the classes of these channels."""
        for label in labels.unique().tolist():
            root = self.find(label)
            if root != CONSTANT:
                self._notes.setdefault(root, set()).add(what)

    def fixed(self, label: int) -> str | None:
        return self._fixed.get(self.find(label))

    def notes(self, label: int) -> frozenset[str]:
        return frozenset(self._notes.get(self.find(label), ()))


def compress(field: Tensor) -> Tensor:
    """The same field with size 1 in every dimension along which it does not change."""
    for dim in range(field.ndim):
        if field.shape[dim] > 1 and field.stride(dim) == 0:
            field = field.narrow(dim, 0, 1)  # expanded along it
    for dim in range(field.ndim):
        if field.shape[dim] > 1 and bool((field == field.narrow(dim, 0, 1)).all()):
            field = field.narrow(dim, 0, 1)
    return field.contiguous()


def varying(field: Tensor) -> tuple[int, ...]:
    """The dimensions along which a compressed field changes."""
    return tuple(d for d in range(field.ndim) if field.shape[d] > 1)


def aligned(field: Tensor, ndim: int) -> Tensor:
    """A field with leading dimensions of size 1, as broadcasting adds them."""
    return field.reshape((1,) * (ndim - field.ndim) + tuple(field.shape))


def moved(field: Tensor, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Tensor:
    """A field carried through an operation that only moves elements of a tensor of that shape."""
    return compress(move(field.expand(shape)))
