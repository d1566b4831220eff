"""The place of one result file, held by one process from before the work begins until the file is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from cosep.errors import RunError
from cosep.runs.folder import failing_as_ours
from cosep.storage.files import write_atomically


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the place of a file: refused now if another process holds it or it could not be written in the end."""
    from filelock import FileLock, Timeout

    if path.is_dir() or not path.name:
        raise RunError(f"{path} is a folder; give the file to write, such as {path / 'model.safetensors'}.")
    with failing_as_ours(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.lock")
        lock = FileLock(beside)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"another process is making {path}. Wait until it ends, or choose another place for the result."
            ) from None
    try:
        yield
    finally:
        # While it is held, so that nobody's lock is taken away; one who waits looks whether the file is still there.
        beside.unlink(missing_ok=True)
        lock.release()


def write_weights(model: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """A model's weights as a safetensors file, whole or not at all, with the mode that the user's umask gives."""
    from safetensors.torch import save_model

    def write(beside: Path) -> None:
        # safetensors writes files that only their owner may read; a file of ours is as any other that is made here.
        save_model(model, str(beside), metadata=dict(metadata or {}) or None)
        content = beside.read_bytes()
        beside.unlink()
        with open(beside, "xb") as file:
            file.write(content)

    with failing_as_ours(path):
        write_atomically(path, write)
