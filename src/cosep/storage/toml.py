"""Settings as TOML: written flat, and read from files of unknown origin."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosep.errors import ConfigError

# A run's file is some kilobytes, and hundreds more where the classes have ten thousand names.
LARGEST_FILE = 1 << 20
DEEPEST = 8
# Strings and comments. One that does not end is taken too: to fail there, and to try again at the next quotation mark,
# would take time in the order of the square of the length.
_TEXTS = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)' r"|'''.*?(?:'{3,5}|\Z)" r'|"(?:[^"\\\n]+|\\.)*"?' r"|'[^'\n]*'?" r"|#[^\n]*",
    re.DOTALL,
)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values, not too many and none too deep or too long."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE:,} bytes")
        text = content.decode("utf-8")
        # For a key of n parts the parser takes time in the order of n cubed.
        if any(part.count(".") > DEEPEST for part in re.split(r"[=,\[\]{}\n]", _TEXTS.sub("text", text))):
            raise ValueError(f"a key has more than {DEEPEST} parts")
        document = tomllib.loads(text.replace("\r\n", "\n"))
        _check(document)
        return document
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML of ours: it is nested too deeply.") from None
    except ValueError as error:  # bad UTF-8, bad TOML, absurd integers
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _check(document: Any) -> None:
    """Refuse what TOML lets a parser refuse, and what none of our files has."""
    level = [document]
    for _ in range(DEEPEST):
        inside = [value for part in level for value in (part.values() if isinstance(part, dict) else part)]
        if any(type(value) is int and not -(2**63) <= value < 2**63 for value in inside):
            raise ValueError("a whole number does not fit into 64 bits")
        level = [value for value in inside if isinstance(value, (dict, list))]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")


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
