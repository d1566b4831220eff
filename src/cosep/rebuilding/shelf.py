"""What a long sweep has to keep and memory has no room for: in a temporary file.

Values of passes lie there in half precision, rows that are aimed at as they are.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import IO

import torch
from torch import Tensor

from cosep.models.tape import Pass


@dataclass(frozen=True, eq=False)
class _Stored:
    """Where a tensor lies in the file, and what it was."""

    start: int
    size: int  # in bytes
    like: Tensor  # of the same shape, strides and type, on the meta device
    device: torch.device
    dtype: torch.dtype  # in the file
    scale: float


Laid = Tensor | _Stored  # rows in memory, or where they lie in the file


class Shelf:
    """Puts rows and the values of waiting passes away once they hold more than `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0  # bytes in memory of rows that were laid down
        self.held: dict[tuple[int, int], int] = {}  # bytes in memory of values, by pass and step
        self.stored: dict[tuple[int, int], _Stored] = {}
        self._file: IO[bytes] | None = None
        self._free: dict[int, list[int]] = {}  # places in the file that are no longer needed, by their size

    def lay(self, rows: Tensor) -> Laid:
        """Keep rows until they are taken; not views of something larger."""
        size = rows.numel() * rows.element_size()
        if self._room() < size:
            return self._write(rows, rows.dtype, 1.0)
        self.rows += size
        return rows

    def take(self, laid: Laid) -> Tensor:
        """Rows that were laid down; their room is free again."""
        if isinstance(laid, Tensor):
            self.rows -= laid.numel() * laid.element_size()
            return laid
        rows = self._read(laid)
        self._release(laid)
        return rows

    def look(self, laid: Laid) -> Tensor:
        """Rows that were laid down and stay so."""
        return laid if isinstance(laid, Tensor) else self._read(laid)

    def put(self, number: int, run: Pass) -> None:
        """Put away what a pass holds, as far as there is no room in memory."""
        alive = {(number, step) for step in run.values}
        for key in [key for key in {**self.held, **self.stored} if key[0] == number and key not in alive]:
            self.held.pop(key, None)
            if (stored := self.stored.pop(key, None)) is not None:
                self._release(stored)
        for step, value in run.values.items():
            key = (number, step)
            if not isinstance(value, Tensor) or not value.is_floating_point() or key in self.held:
                continue
            size = value.numel() * value.element_size()
            if key in self.stored:
                run.values[step] = None
            elif size <= self._room():
                self.held[key] = size
            else:
                self.stored[key] = self._write_half(value)
                run.values[step] = None

    def get(self, number: int, run: Pass, steps: set[int]) -> None:
        """Bring back those values of a pass that some steps need."""
        for step in steps & run.values.keys():
            if (number, step) in self.stored and run.values[step] is None:
                run.values[step] = self._read(self.stored[number, step])

    @property
    def spilled(self) -> bool:
        """Whether there was ever too little room in memory."""
        return self._file is not None

    def close(self) -> None:
        """Give the room on disk back."""
        if self._file is not None:
            self._file.close()

    def _room(self) -> int:
        """The bytes that may still be kept in memory."""
        return self.limit - self.rows - sum(self.held.values())

    def _write_half(self, value: Tensor) -> _Stored:
        largest = max(map(abs, map(float, torch.aminmax(value)))) if value.numel() else 0.0
        # Half precision ends at 65504.
        return self._write(value, torch.float16, largest / 2**14 if largest > 2**14 else 1.0)

    def _write(self, value: Tensor, dtype: torch.dtype, scale: float) -> _Stored:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="cosep-")  # noqa: SIM115 - it lives as long as the shelf
        size = value.numel() * torch.empty(0, dtype=dtype).element_size()
        free = self._free.get(size)
        start = self._file.seek(free.pop()) if free else self._file.seek(0, 2)
        flat = value.as_strided((value.numel(),), (1,)) if _dense(value) else value.contiguous().flatten()
        flat = (flat if scale == 1 else flat / scale).to("cpu", dtype)
        self._file.write(_bytes(flat))
        like = value.to("meta") if _dense(value) else torch.empty(value.shape, dtype=value.dtype, device="meta")
        return _Stored(start, size, like, value.device, dtype, scale)

    def _read(self, stored: _Stored) -> Tensor:
        assert self._file is not None
        self._file.seek(stored.start)
        raw = torch.empty(stored.like.numel(), dtype=stored.dtype)
        self._file.readinto(_bytes(raw))  # type: ignore[attr-defined]
        flat = raw.to(stored.like.dtype)
        flat = flat if stored.scale == 1 else flat * stored.scale
        return flat.as_strided(stored.like.shape, stored.like.stride()).to(stored.device)

    def _release(self, stored: _Stored) -> None:
        self._free.setdefault(stored.size, []).append(stored.start)


def _bytes(flat: Tensor) -> memoryview:
    """The memory of a tensor; numpy does not know all of torch's types."""
    return flat.view(torch.uint8).numpy().data


def _dense(value: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or repetitions, in whatever order of its axes."""
    steps = sorted((stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in steps:
        if stride != expected:
            return False
        expected *= size
    return value.numel() > 0
