"""A run folder: one process at a time, every write atomic, and enough in it to go on after any interruption.

config.toml              every setting, and what the run is of
log.jsonl                what happened, a line each
checkpoint.safetensors   the network and the position after the last finished step; one file, so never half new
evidence/, report.html   what was seen of each group, and the page that shows it (see `cosep.reporting`)
model.safetensors, plan.json, report.json, manifest.json   the result (see `cosep.saving`)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import ConfigError, RunError
from cosep.weights import read_tensors

CHECKPOINT_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Named tensors and a plain document, stored and read as one."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]


class Run:
    """An open run folder. Made by `opened`, which holds its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; the old one stays whole until the new one is on disk."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
        document = {**checkpoint.document, "log_bytes": self._log_size()}
        metadata = {
            "format": str(CHECKPOINT_FORMAT),
            "document": json.dumps(document),
            "sha256": _digest(tensors, json.dumps(document)),
        }
        write_atomically(self.folder / "checkpoint.safetensors", save(tensors, metadata))

    def restore(self) -> Checkpoint | None:
        """The last checkpoint, verified, or None; the log is cut back to what it held then."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            self._cut_log(0)
            return None
        tensors, metadata = read_tensors(path, RunError, _START_OVER)
        if metadata.get("format") != str(CHECKPOINT_FORMAT):
            raise RunError(
                f"{path} has format {metadata.get('format')}; this cosep reads {CHECKPOINT_FORMAT}. {_START_OVER}"
            )
        document = metadata.get("document", "")
        if metadata.get("sha256") != _digest(tensors, document):
            raise RunError(f"{path} was altered since it was written: its checksum differs. {_START_OVER}")
        read = json.loads(document)
        self._cut_log(read["log_bytes"])
        return Checkpoint(tensors, read)

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the log."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts})
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run: the result holds all that matters."""
        (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def _log_size(self) -> int:
        path = self.folder / "log.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _cut_log(self, size: int) -> None:
        if self._log_size() > size:
            os.truncate(self.folder / "log.jsonl", size)


_START_OVER = "Remove the run folder to start over."


@contextmanager
def opened(folder: Path, description: Mapping[str, Any]) -> Iterator[Run]:
    """Open or create a run folder for exactly this description (settings, model, data), holding its lock."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"another process is writing {folder}. Wait until it ends, or choose another run folder."
        ) from None
    try:
        path = folder / "config.toml"
        if path.exists():
            _refuse_other(path, description)
        else:
            strange = sorted(p.name for p in folder.iterdir() if p.name != ".lock" and not p.name.startswith(".tmp-"))
            if strange:
                raise RunError(
                    f"{folder} is not a run folder: it holds {strange[0]} but no config.toml. Choose an empty folder."
                )
            write_atomically(path, to_toml(description).encode())
        yield Run(folder)
    finally:
        lock.release()


def read_description(folder: Path) -> dict[str, Any]:
    """What a run folder's config.toml says."""
    path = folder / "config.toml"
    if not path.exists():
        raise RunError(f"{folder} is not a run folder: there is no config.toml in it. Run `cosep prune` first.")
    return read_toml(path)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _refuse_other(path: Path, description: Mapping[str, Any]) -> None:
    stored = _flat(read_description(path.parent))
    wanted = _flat(json.loads(json.dumps(description)))
    for name in sorted(stored.keys() | wanted.keys()):
        if stored.get(name) != wanted.get(name):
            raise RunError(
                f"{path.parent} belongs to another run: its {name} is {stored.get(name)!r}, this one's is "
                f"{wanted.get(name)!r}. Choose another run folder, or use the settings in {path.name}."
            )


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def to_toml(document: Mapping[str, Any]) -> str:
    """A flat or two-level document of plain values as TOML; JSON's strings, numbers and lists are TOML's too."""
    lines = [_line(key, value) for key, value in document.items() if not isinstance(value, Mapping)]
    for section, values in document.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{section}]", *(_line(key, value) for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return f"{key if bare else json.dumps(key)} = {json.dumps(value)}"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name always holds the old or the new content, whole, also after a power cut."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def weights_digest(model: nn.Module) -> str:
    """A checksum of a model's weights and buffers: another checkpoint is another run."""
    return _digest({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}, "")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
