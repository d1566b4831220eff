"""The log of a run as TensorBoard events, beside it in the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cosep.errors import ConfigError
from cosep.runs.folder import LOG, Run, flat

FOLDER = "tensorboard"


@contextmanager
def mirrored(run: Run) -> Iterator[None]:
    """While it is entered, every line of the run's log is also an event; at first, those that are there already."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("TensorBoard events need the package tensorboard: pip install tensorboard.") from error

    writer: SummaryWriter | None = None
    numbers: dict[str, int] = {}

    def write(line: str) -> None:
        nonlocal writer
        if writer is None:
            # A run that goes on cuts its log back to its last checkpoint; so the events are made anew from it.
            for former in (run.folder / FOLDER).glob("events.out.tfevents.*"):
                former.unlink(missing_ok=True)
            writer = SummaryWriter(str(run.folder / FOLDER))
            for earlier in _lines(run.folder / LOG):
                _add(writer, json.loads(earlier), numbers)
        else:
            _add(writer, json.loads(line), numbers)
        writer.flush()

    run.listeners.append(write)
    try:
        yield
    finally:
        run.listeners.remove(write)
        if writer is None and _lines(run.folder / LOG):  # a finished run, of which only the result was read
            write("")
        if writer is not None:
            writer.close()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _add(writer: Any, entry: Mapping[str, Any], numbers: dict[str, int]) -> None:
    """Every number of a line as a scalar named event/fact, over updates where the line counts them, else over lines."""
    event = str(entry["event"])
    numbers[event] = numbers.get(event, 0) + 1
    step = int(entry.get("updates", numbers[event]))
    facts = flat({name: value for name, value in entry.items() if name not in ("time", "event")})
    for name, value in facts.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            writer.add_scalar(f"{event}/{name.replace('.', '/')}", value, step, walltime=entry["time"])
