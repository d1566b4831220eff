"""Plain values from pickle files without running them: only containers, text, numbers and arrays of bytes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cosep.errors import DataError


class ByteArray:
    """Stands in for numpy.ndarray while a file is read: takes the shape and the bytes, and allocates nothing itself."""

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.content = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _ByteKind) or by_columns or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array that is not made of bytes in rows")
        if any(not isinstance(n, int) or n < 0 for n in shape) or int(np.prod(shape, dtype=object)) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        self.shape, self.content = tuple(shape), content

    def numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The array as numpy's, read-only."""
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)


class _ByteKind:
    """Stands in for numpy.dtype; only the one of unsigned bytes can be made."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {kind!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass


# The Python one of the two unpicklers: in the compiled one, a few bytes can ask for a table of many gigabytes.
class _PlainUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Fresh functions at every call: a file can set attributes on what it is given here.
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda *_: ByteArray()
        if (module, name) == ("numpy", "ndarray"):
            return lambda *_: ByteArray()
        if (module, name) == ("numpy", "dtype"):
            return lambda *arguments: _ByteKind(*arguments)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, _="latin1": text.encode("latin1")
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Refused("a reference to another file")

    def get_extension(self, code: int) -> NoReturn:
        raise _Refused(f"extension {code}")


class _Refused(Exception):
    pass


def read_plain_pickle(path: Path, *, largest: int) -> dict[str, Any]:
    """The dict in a pickle file of at most `largest` bytes, its keys as text; a file that asks for code is refused."""
    size = path.stat().st_size
    if size > largest:
        raise DataError(f"{path} has {size} bytes; at most {largest} are expected. It is not the published file.")
    try:
        with path.open("rb") as file:
            value = _PlainUnpickler(file, encoding="bytes").load()
    except _Refused as refused:
        raise DataError(
            f"{path} asks to run {refused}, which a data file has no use for; it was refused and nothing was run. "
            "Get the published file again."
        ) from None
    except Exception as failure:
        # Damaged bytes are read as arbitrary instructions: almost any exception can come out of them.
        raise DataError(f"{path} is damaged ({type(failure).__name__}: {failure}). Get it again.") from failure
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; a dict was expected.")
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}
