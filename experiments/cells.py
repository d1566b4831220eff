"""A results file that an experiment fills cell by cell, so that one that was stopped goes on where it was; tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Cells = dict[str, Any]


def read(path: Path, about: dict[str, Any]) -> Cells:
    """The cells that a file holds already, none if there is no file; one that is about something else is refused."""
    if not path.exists():
        return {}
    held = json.loads(path.read_text(encoding="utf-8"))
    if held["about"] != json.loads(json.dumps(about)):
        raise SystemExit(f"{path} is about {held['about']}, this is about {about}. Choose another --out.")
    return held["cells"]


def write(path: Path, about: dict[str, Any], cells: Cells) -> None:
    """Replace the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp-{path.name}")
    beside.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows))
