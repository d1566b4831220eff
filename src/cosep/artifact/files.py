"""Bytes on disk that are either wholly there or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Have the system put a file, or the names in a folder, on the disk before we go on."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders, and orders renames by itself
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill and check a file beside `path`, then put it in its place; on any failure `path` is as before.

    The file beside it has the same suffix, because some writers choose their format by it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial{path.suffix}")
    try:
        write(beside)
        sync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)
