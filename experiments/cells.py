"""A results file that an experiment fills cell by cell, so that one that was stopped goes on where it was; tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cosep.errors import ConfigError

Cells = dict[str, Any]


def read(path: Path, about: dict[str, Any]) -> Cells:
    """The cells that a file holds already, none if there is no file; one that is about something else is refused."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        held, cells = document["about"], document["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no results file of an experiment. Choose another --out.") from error
    here = json.loads(json.dumps(about))
    differences = [
        f"{name} is {_short(held.get(name))} there and {_short(here.get(name))} here"
        for name in {**held, **here}
        if held.get(name) != here.get(name)
    ]
    if differences:
        raise ConfigError(f"{path} holds other results: {'; '.join(differences)}. Choose another --out.")
    return cells


def _short(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 60 else text[:60] + "…"


def write(path: Path, about: dict[str, Any], cells: Cells) -> None:
    """Replace the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp-{path.name}")
    beside.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows))
