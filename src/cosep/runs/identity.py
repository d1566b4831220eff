"""What tells one caller's function from another: a run in a folder must not answer for code that it did not run."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from cosep.plugins import is_file_factory

_DEEPEST = 12


def name_of(thing: object) -> str:
    """A caller's function or object in words: where it is defined."""
    kind = thing if isinstance(thing, (FunctionType, type)) else type(thing)
    given = getattr(thing, "name", None)
    return given if isinstance(given, str) and given else f"{kind.__module__}.{kind.__qualname__}"


def code_digest(thing: object) -> str:
    """A digest of a function or object: its code, what it closes over, its attributes and the functions it calls.

    What cannot be told apart for certain gets a digest that never comes again, so that nothing old is taken for it.
    """
    digest = hashlib.sha256()
    _feed(digest, thing, 0, set())
    return digest.hexdigest()[:24]


def file_digest(spec: str) -> str:
    """A digest of the file that `path/to/file.py:factory` names; "" for other names."""
    if not is_file_factory(spec):
        return ""
    path = Path(spec.rpartition(":")[0]).expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24] if path.is_file() else ""


# One branch a kind of value: taken apart, the list of kinds would be harder to read than it is long.
def _feed(digest: Any, thing: object, depth: int, seen: set[int]) -> None:
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes, Path)):
        digest.update(f"{type(thing).__name__}:{thing!r};".encode())
        return
    if id(thing) in seen:
        digest.update(b"again;")
        return
    seen = seen | {id(thing)}
    digest.update(f"{type(thing).__module__}.{type(thing).__qualname__}(".encode())
    if depth > _DEEPEST:
        digest.update(uuid.uuid4().bytes)
    elif isinstance(thing, ModuleType):
        digest.update(thing.__name__.encode())
    elif isinstance(thing, Tensor):
        digest.update(str(tuple(thing.shape)).encode() + thing.detach().cpu().double().contiguous().numpy().tobytes())
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            _feed(digest, key, depth + 1, seen)
            _feed(digest, value, depth + 1, seen)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            _feed(digest, value, depth + 1, seen)
    elif isinstance(thing, (set, frozenset)):
        for text in sorted(map(repr, thing)):
            digest.update(text.encode())
    elif isinstance(thing, CodeType):
        digest.update(thing.co_code)
        _feed(digest, (thing.co_names, thing.co_varnames, thing.co_consts), depth + 1, seen)
    elif isinstance(thing, FunctionType):
        _feed_function(digest, thing, depth, seen)
    elif isinstance(thing, type):
        _feed_class(digest, thing, depth, seen)
    elif isinstance(thing, partial):
        _feed(digest, (thing.func, thing.args, thing.keywords), depth + 1, seen)
    elif isinstance(thing, MethodType):
        _feed(digest, (thing.__func__, thing.__self__), depth + 1, seen)
    elif _is_library(type(thing).__module__) and not type(thing).__module__.startswith("cosep"):
        text = repr(thing)
        digest.update(text.encode() if " at 0x" not in text else uuid.uuid4().bytes)
    elif hasattr(thing, "__dict__"):
        _feed(digest, type(thing), depth + 1, seen)
        _feed(digest, vars(thing), depth + 1, seen)
    else:
        digest.update(uuid.uuid4().bytes)
    digest.update(b");")


def _feed_function(digest: Any, function: FunctionType, depth: int, seen: set[int]) -> None:
    digest.update(f"{function.__module__}.{function.__qualname__}".encode())
    if _is_library(function.__module__ or ""):
        return
    _feed(digest, function.__code__, depth + 1, seen)
    _feed(digest, (function.__defaults__, function.__kwdefaults__), depth + 1, seen)
    for cell in function.__closure__ or ():
        _feed(digest, cell.cell_contents, depth + 1, seen)
    for name in function.__code__.co_names:
        if name in function.__globals__:
            _feed(digest, function.__globals__[name], depth + 1, seen)


def _feed_class(digest: Any, kind: type, depth: int, seen: set[int]) -> None:
    digest.update(f"{kind.__module__}.{kind.__qualname__}".encode())
    if _is_library(kind.__module__):
        return
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, (FunctionType, bool, int, float, str, tuple)) and name not in ("__module__", "__doc__"):
            digest.update(name.encode())
            _feed(digest, value, depth + 1, seen)


def _is_library(module: str) -> bool:
    """Whether a module's code is settled by its version: what follows from its name is enough."""
    return module.partition(".")[0] in ("builtins", "torch", "numpy", "cosep", "functools", "math", "collections")
