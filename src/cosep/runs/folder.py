"""A run folder: one process at a time, every write atomic, and enough in it to go on after any interruption.

config.toml              every setting, and what the run is of
log.jsonl                what happened, a line each
checkpoint.safetensors   the network and the position after the last finished step; one file, so never half new
evidence/, report.html   what was seen of each group, and the page that shows it (see `cosep.reporting.folders`)
model.safetensors, plan.json, report.json, manifest.json   the result (see `cosep.storage.artifacts`)

The checkpoint, which vouches for itself, holds the seal (size and SHA-256) of every other file; at the end the manifest
does. So damage to any file is seen before anything is built on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.config import upgraded
from cosep.errors import ConfigError, RunError
from cosep.runs.sameness import IDENTITY, other_run, warn_of_another_machine
from cosep.storage.files import Seal, damage, is_inside, seal_of, sync
from cosep.storage.folder import FILES, GATHERING, MANIFEST, READY
from cosep.storage.schemas import COUNT, FINITE, POSITIVE, Each, Maybe, Where, misfit
from cosep.storage.tensors import read_tensors
from cosep.storage.toml import read_toml, to_toml

CHECKPOINT_FORMAT = 2
CONFIG, LOG, CHECKPOINT = "config.toml", "log.jsonl", "checkpoint.safetensors"
EVIDENCE, PAGE = "evidence", "report.html"
_EVIDENCE = re.compile(r"\d+\.safetensors")
_LOCK, _BEGUN = ".lock", ".tmp-"  # what a file is called until it is whole, before its own name
_OURS = (CONFIG, LOG, CHECKPOINT, EVIDENCE, PAGE, _LOCK, MANIFEST, *FILES, GATHERING, READY)

# What is made of these facts where a run is opened again: a model, an input, names in a page.
MOST_CLASSES, MOST_INPUTS = 100_000, 2**24
_ABOUT = {
    **dict.fromkeys(("model", "data", "checkpoint"), Maybe(str)),
    "mean": Maybe([FINITE]),
    "std": Maybe([POSITIVE]),
    "classes": Maybe(Where(COUNT, lambda count: count <= MOST_CLASSES, f"at most {MOST_CLASSES}")),
    "class_names": Maybe(Where([str], lambda names: len(names) <= MOST_CLASSES, f"at most {MOST_CLASSES} names")),
    "input": Maybe(
        Where([COUNT], lambda shape: 0 < math.prod(shape) <= MOST_INPUTS, f"a shape of 1 to {MOST_INPUTS} numbers")
    ),
}
_PLAIN = (bool, int, float, str)
_FACT = Where(
    object,
    lambda value: all(isinstance(part, _PLAIN) for part in (value if isinstance(value, (list, tuple)) else [value])),
    "text, a number, true or false, or a list of those",
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Named tensors and a plain document, stored and read as one."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]


class Run:
    """An open run folder. Made by `opened`, which holds its lock."""

    def __init__(self, folder: Path, config: Seal) -> None:
        self.folder = folder
        self._seals: dict[str, Seal] = {CONFIG: config}
        self._logged = 0
        self._log_digest = hashlib.sha256()
        self.listeners: list[Callable[[str], None]] = []  # told of every line of the log

    def store(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; the old one stays whole until the new one is on disk."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
        document = json.dumps({**checkpoint.document, "files": self.seals()})
        metadata = {"format": str(CHECKPOINT_FORMAT), "document": document, "sha256": _digest(tensors, document)}
        path = self.folder / CHECKPOINT
        with failing_as_ours(path):
            write_atomically(path, save(tensors, metadata))

    def restore(self) -> Checkpoint | None:
        """The last checkpoint, or None, after checking every file; the log is cut back to what it held then."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            self._cut_log({"bytes": 0})
            return None
        tensors, metadata = read_tensors(path, RunError, _START_OVER)
        if metadata.get("format") != str(CHECKPOINT_FORMAT):
            raise RunError(
                f"{path} has format {metadata.get('format')}; this cosep reads {CHECKPOINT_FORMAT}. {_START_OVER}"
            )
        document = metadata.get("document", "")
        if metadata.get("sha256") != _digest(tensors, document):
            raise RunError(f"{path} was altered since it was written: its checksum differs. {_START_OVER}")
        try:
            read = json.loads(document)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged ({error}). {_START_OVER}") from error
        if found := misfit(read, {"files": Each({"bytes": COUNT, "sha256": str})}, "its document"):
            raise RunError(f"{path} is damaged ({found}). {_START_OVER}")
        seals = read.pop("files")
        known = {name for name in seals if name in _OURS or Path(name).parent == Path(EVIDENCE)}
        if strange := [name for name in seals if name not in known or not is_inside(name)]:
            raise RunError(f"{path} vouches for {strange[0]!r}, which is no file of a run. {_START_OVER}")
        for name, seal in seals.items():
            if found := self._log_damage(seal) if name == LOG else damage(self.folder / name, seal):
                raise RunError(f"{self.folder / name} {found}. Put back a copy of it. {_START_OVER}")
        self._cut_log(seals.get(LOG, {"bytes": 0}))
        self._seals = {name: seal for name, seal in seals.items() if name != LOG}
        return Checkpoint(tensors, read)

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the folder, for which the next checkpoint and at the end the manifest will vouch."""
        path = self.folder / name
        with failing_as_ours(path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content)
        self._seals[name] = seal_of(content)

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the log."""
        line = (json.dumps({"time": round(time.time(), 3), "event": event, **facts}) + "\n").encode()
        with failing_as_ours(self.folder / LOG), open(self.folder / LOG, "ab") as file:
            file.write(line)
        self._logged += len(line)
        self._log_digest.update(line)
        for tell in self.listeners:
            tell(line.decode())

    def seals(self) -> dict[str, Seal]:
        """The seals of the files in the folder that are neither the checkpoint nor of the result."""
        log = {LOG: {"bytes": self._logged, "sha256": self._log_digest.hexdigest()}} if self._logged else {}
        return {**self._seals, **log}

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run: the result holds all that matters."""
        with failing_as_ours(self.folder / CHECKPOINT):
            (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def _log_damage(self, seal: Seal) -> str:
        """As `damage`; but the log may have grown since its seal was made."""
        path = self.folder / LOG
        if not path.exists() or path.stat().st_size < seal["bytes"]:
            return damage(path, seal)
        with open(path, "rb") as file:
            same = seal_of(file.read(seal["bytes"])) == seal
        return "" if same else "was altered: its checksum is not the one it was written with"

    def _cut_log(self, seal: Seal) -> None:
        path = self.folder / LOG
        if path.exists():
            with failing_as_ours(path):
                os.truncate(path, seal["bytes"])
            self._logged, self._log_digest = seal["bytes"], hashlib.sha256(path.read_bytes())


_START_OVER = "Remove the run folder to start over."


@contextmanager
def failing_as_ours(path: Path) -> Iterator[None]:
    """A disk that is full or fails, said in a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. Nothing that was saved before is lost: see that "
            "the disk has room and works, and give the same command again."
        ) from error


@contextmanager
def opened(folder: Path, description: Mapping[str, Any]) -> Iterator[Run]:
    """Open or create a run folder for exactly this description (settings, model, data), holding its lock."""
    from filelock import FileLock, Timeout

    if found := misfit(description.get("about", {}), _ABOUT, "about"):
        raise ConfigError(f"{found}.")
    if found := misfit(description.get("about", {}), Each(_FACT), "about"):
        raise ConfigError(f"{found}. Convert it first (`.item()` or `.tolist()` for tensors and arrays).")
    refuse_links(folder)
    lock = FileLock(folder / _LOCK)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with failing_as_ours(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"another process is writing {folder}. Wait until it ends, or choose another run folder."
            ) from None
    claims = False
    try:
        path = folder / CONFIG
        _refuse_folders(folder)
        strange = sorted(p.name for p in folder.iterdir() if p.name != _LOCK and not p.name.startswith(_BEGUN))
        if path.exists() and not _is_unused(folder, strange):
            _refuse_other(path, description)
        elif strange and not path.exists():
            raise RunError(
                f"{folder} is not a run folder: it holds {strange[0]} but no {CONFIG}. Choose an empty folder."
            )
        else:
            claims = True
            with failing_as_ours(path):
                write_atomically(path, to_toml(description).encode())
        yield Run(folder, seal_of(path.read_bytes()))
    except BaseException:
        if claims and not _has_begun(folder):
            _give_up(folder, made)
        raise
    finally:
        lock.release()


def _is_unused(folder: Path, names: Iterable[str]) -> bool:
    """Whether a start claimed the folder and was killed before it computed anything: nothing of it is worth keeping."""
    return set(names) <= {CONFIG, LOG} and IDENTITY in read_description(folder)


def _has_begun(folder: Path) -> bool:
    """Whether a run in the folder has computed anything that it could go on from."""
    return any(os.path.lexists(folder / name) for name in (CHECKPOINT, EVIDENCE, MANIFEST, *FILES, GATHERING, READY))


def _give_up(folder: Path, made: list[Path]) -> None:
    """Take back what a start wrote that failed before it computed anything: the next may be another run."""
    with suppress(OSError):
        for name in (CONFIG, LOG):
            (folder / name).unlink(missing_ok=True)
        if made:
            (folder / _LOCK).unlink(missing_ok=True)
        for path in made:
            path.rmdir()


def _refuse_folders(folder: Path) -> None:
    """Refuse a run folder in which the name of a file of ours is a folder's, before anything is changed."""
    for name in (CONFIG, LOG, CHECKPOINT, PAGE, MANIFEST, *FILES):
        if (folder / name).is_dir():
            raise RunError(f"{folder / name} is a folder; a run keeps a file there. Choose another run folder.")


def read_description(folder: Path) -> dict[str, Any]:
    """What a run folder's config.toml says."""
    refuse_links(folder)
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder} is not a run folder: there is no {CONFIG} in it. Run `cosep prune` first.")
    described = read_toml(path)
    if found := misfit(described, {"about": Maybe(_ABOUT)}, str(path)):
        raise RunError(f"{found}. Put back a copy of it.")
    return described


def files_of_run(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The files that a run made in its folder, the folders it made inside, and what else lies there."""
    inner = [folder / name for name in (EVIDENCE, GATHERING, READY)]
    folders = [path for path in inner if path.is_dir() and not path.is_symlink()]
    files: list[Path] = []
    others: list[Path] = []
    for place in (folder, *folders):
        for path in sorted(place.iterdir()):
            if path in folders:
                continue
            name = path.name.removeprefix(_BEGUN)
            ours = name in (*FILES, MANIFEST) or (name in _OURS if place == folder else bool(_EVIDENCE.fullmatch(name)))
            (files if ours and not path.is_dir() else others).append(path)
    return files, folders, others


def refuse_links(folder: Path) -> None:
    """Refuse a run folder where a name of ours leads out of it: what is read and written there is someone else's."""
    root = folder.resolve()
    for place in (folder, folder / EVIDENCE, folder / GATHERING, folder / READY):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            ours = place != folder or path.name in _OURS or path.name.startswith(_BEGUN)
            if ours and path.is_symlink() and not path.resolve().is_relative_to(root):
                raise RunError(f"{path} is a link to {path.resolve()}, outside the run folder; nothing was read.")


def _refuse_other(path: Path, description: Mapping[str, Any]) -> None:
    # What an earlier version wrote names some settings otherwise.
    read = upgraded(read_description(path.parent))
    stored = {name: value for name, value in flat(read).items() if value is not None}
    wanted = flat(json.loads(json.dumps(description)))
    if other := other_run(stored, wanted):
        if other.startswith("that says nothing"):
            raise RunError(
                f"{path.parent} belongs to another run, or its {path.name} was damaged: {other}. Choose another run "
                f"folder, or put back a copy of {path.name}."
            )
        raise RunError(
            f"{path.parent} belongs to another run: {other}. Choose another run folder, or use what {path.name} says."
        )
    if not any(os.path.lexists(path.parent / place) for place in (MANIFEST, READY)):  # a result is only read
        warn_of_another_machine(path.parent, stored, wanted)


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first thing in which two descriptions differ, in words; "" if there is none."""
    before, now = flat(there), flat(json.loads(json.dumps(here)))
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name)!r} there and is {now.get(name)!r} now"
    return ""


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"select": {"degree": 2}} -> {"select.degree": 2}."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name always holds the old or the new content, whole, also after a power cut."""
    temporary = path.with_name(_BEGUN + path.name)
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # a file of our own making: what lay there may be a link
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


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
