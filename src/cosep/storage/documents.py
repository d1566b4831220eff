"""JSON documents: the same value always gives the same bytes, and bytes that are no such document are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from cosep.errors import ArtifactError

# JSON has no NaN and no infinity, and a run must not be lost for a loss that was one: {"$float": "nan"} stands for it.
FLOAT = "$float"


def encode(document: Mapping[str, Any], name: str) -> bytes:
    """A document of plain values as UTF-8 JSON with sorted keys and a newline at the end; `name` is for the errors."""
    try:
        text = json.dumps(_plain(document, name), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()
    except RecursionError:
        raise ArtifactError(f"{name} is nested too deeply, or holds itself; it cannot be written as JSON.") from None
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{name} holds text that is no Unicode ({error}); it cannot be written as JSON.") from error


def decode(data: bytes, name: str) -> dict[str, Any]:
    """The document in these bytes; `name` is for the errors."""
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant, object_hook=_float_or_dict)
    except RecursionError:
        raise ArtifactError(f"{name} is nested too deeply to be read; it is damaged.") from None
    except ValueError as error:  # bad UTF-8, bad JSON, absurd integers
        raise ArtifactError(f"{name} is not valid JSON ({error}); it is damaged. Save the artifact again.") from error
    if not isinstance(document, dict):
        raise ArtifactError(f"{name} holds a {type(document).__name__}; a JSON object is needed.")
    return document


def _plain(value: Any, place: str) -> Any:
    """The value with lists for tuples and marks for what JSON has no number for; `place` names it in errors."""
    if value is None or isinstance(value, (bool, str)):
        return value
    # Exact values of int's and float's subclasses too: enumerations and numpy's float64 print themselves differently.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT: repr(float(value))}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArtifactError(f"{place} has the key {key!r}, a {type(key).__name__}; JSON needs keys of text.")
        if FLOAT in value:
            raise ArtifactError(f"{place} has the key {FLOAT!r}, which is reserved; choose another.")
        return {key: _plain(part, f"{place}: {key}") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, f"{place}[{index}]") for index, part in enumerate(value)]
    raise ArtifactError(
        f"{place} is a {type(value).__name__}; only text, numbers, lists, dicts, True, False and None can be saved. "
        "Convert it first (`.item()` or `.tolist()` for tensors and arrays)."
    )


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _float_or_dict(pairs: dict[str, Any]) -> Any:
    if FLOAT not in pairs:
        return pairs
    if len(pairs) != 1 or pairs[FLOAT] not in ("nan", "inf", "-inf"):
        raise ValueError(f"{pairs!r} is no number")
    return float(pairs[FLOAT])
