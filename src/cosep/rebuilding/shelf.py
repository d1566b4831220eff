"""Values of a long sweep that do not fit into memory: kept in a temporary file, in half precision."""

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
    like: Tensor  # of the same shape, strides and type, on the meta device
    device: torch.device
    scale: float


class Shelf:
    """Puts values of waiting passes away once they hold more than `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: dict[tuple[int, int], int] = {}  # bytes in memory, by pass and step
        self.stored: dict[tuple[int, int], _Stored] = {}
        self._file: IO[bytes] | None = None

    def put(self, number: int, run: Pass) -> None:
        """Put away what a pass holds, as far as there is no room in memory."""
        alive = {(number, step) for step in run.values}
        for key in [key for key in {**self.held, **self.stored} if key[0] == number and key not in alive]:
            self.held.pop(key, None)
            self.stored.pop(key, None)
        for step, value in run.values.items():
            key = (number, step)
            if not isinstance(value, Tensor) or not value.is_floating_point() or key in self.held:
                continue
            size = value.numel() * value.element_size()
            if key in self.stored:
                run.values[step] = None
            elif sum(self.held.values()) + size <= self.limit:
                self.held[key] = size
            else:
                self.stored[key] = self._write(value)
                run.values[step] = None

    def get(self, number: int, run: Pass, steps: set[int]) -> None:
        """Bring back those values of a pass that some steps need."""
        for step in steps & run.values.keys():
            if (number, step) in self.stored and run.values[step] is None:
                run.values[step] = self._read(self.stored[number, step])

    def close(self) -> None:
        """Give the room on disk back."""
        if self._file is not None:
            self._file.close()

    def _write(self, value: Tensor) -> _Stored:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="cosep-")  # noqa: SIM115 - it lives as long as the shelf
        start = self._file.seek(0, 2)
        largest = float(value.abs().max()) if value.numel() else 0.0
        scale = largest / 2**14 if largest > 2**14 else 1.0  # half precision ends at 65504
        flat = value.as_strided((value.numel(),), (1,)) if _dense(value) else value.contiguous().flatten()
        self._file.write((flat / scale).half().cpu().numpy().tobytes())
        like = value.to("meta") if _dense(value) else torch.empty(value.shape, dtype=value.dtype, device="meta")
        return _Stored(start, like, value.device, scale)

    def _read(self, stored: _Stored) -> Tensor:
        assert self._file is not None
        self._file.seek(stored.start)
        raw = bytearray(self._file.read(2 * stored.like.numel()))
        flat = torch.frombuffer(raw, dtype=torch.float16).to(stored.like.dtype) * stored.scale
        return flat.as_strided(stored.like.shape, stored.like.stride()).to(stored.device)


def _dense(value: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or repetitions, in whatever order of its axes."""
    steps = sorted((stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in steps:
        if stride != expected:
            return False
        expected *= size
    return value.numel() > 0
