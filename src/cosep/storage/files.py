"""Bytes on disk that are either wholly there or not at all, and seals by which damage to them is seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

CHUNK = 1 << 20

Seal = Mapping[str, Any]  # {"bytes": a file's size, "sha256": in hexadecimal}; plain values, for it is stored as JSON


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def seal_of(content: bytes) -> Seal:
    """The seal of a file with this content."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def is_inside(name: str) -> bool:
    """Whether a name, with / between folders, can only be of something inside the folder that it is looked up in."""
    # By the rules of both families of systems: a folder may travel.
    return "\0" not in name and all(
        part not in ("", ".", "..") and PurePosixPath(part).name == part and PureWindowsPath(part).name == part
        for part in name.split("/")
    )


def is_seal(value: object) -> bool:
    """Whether something read from a file has the form of a seal."""
    return isinstance(value, dict) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def damage(path: Path, seal: Seal) -> str:
    """How a file differs from its seal, as the rest of a sentence that its name begins; "" if it does not."""
    try:
        size = path.stat().st_size
        if size != seal["bytes"]:
            found = "it was cut short" if size < seal["bytes"] else "something was added"
            return f"has {size:,} bytes instead of {seal['bytes']:,}: {found}"
        return "" if sha256(path) == seal["sha256"] else "was altered: its checksum is not the one it was written with"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


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
