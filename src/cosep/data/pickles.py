"""Plain values from pickle files without running them: only containers, text, numbers and arrays of bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cosep.errors import DataError

# What the published files and copies of them by Python 3 are made of. The other instructions ask for memory by a number
# (BYTEARRAY8), or make sets, whose members are hashed: of nested tuples that takes time without end.
_INSTRUCTIONS = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1),
    *(pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.UNICODE, pickle.BINUNICODE),
    *(pickle.SHORT_BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES),
    *(pickle.LIST, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.TUPLE, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.DICT, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
)


class ByteArray:
    """Stands in for numpy.ndarray while a file is read: takes the shape and the bytes, and allocates nothing itself."""

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.content = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _ByteKind) or by_columns or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array that is not made of bytes in rows")
        # Small numbers and few: a product of many large ones would never be done.
        rows, columns = shape
        if type(rows) is not int or type(columns) is not int or not (0 <= rows < 2**31 and 0 <= columns < 2**31):
            raise pickle.UnpicklingError("an array whose shape is not made of two whole numbers")
        if rows * columns != len(content):
            raise pickle.UnpicklingError(f"an array of shape ({rows}, {columns}) with {len(content)} bytes")
        self.shape, self.content = (rows, columns), content

    def numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The array as numpy's, read-only."""
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)


class _ByteKind:
    """Stands in for numpy.dtype; only the one of unsigned bytes can be made."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError("an array of something else, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass


class _Refused(Exception):
    pass


class _Instructions(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> NoReturn:
        raise _Refused(f"the instruction {bytes([code])!r}")


def _checked(code: int) -> Callable[[Any], None]:
    """An instruction of Python's own that counts itself and lets only text be a key."""
    instruction = pickle._Unpickler.dispatch[code]

    def step(self: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError("more instructions than such a file has")
        if code in (pickle.SETITEMS[0], pickle.DICT[0]) and not _all_text(self.stack[::2]):
            raise pickle.UnpicklingError("a dict with a key that is no text")
        if code == pickle.SETITEM[0] and not _all_text(self.stack[-2:-1]):
            raise pickle.UnpicklingError("a dict with a key that is no text")
        instruction(self)

    return step


def _all_text(values: list[Any]) -> bool:
    return all(type(value) in (str, bytes) for value in values)


# The Python one of the two unpicklers: in the compiled one, a few bytes can ask for a table of many gigabytes.
class _PlainUnpickler(pickle._Unpickler):
    dispatch = _Instructions({code[0]: _checked(code[0]) for code in _INSTRUCTIONS})

    def __init__(self, content: bytes, instructions: int) -> None:
        # From memory, where a length beyond the end of the file costs nothing.
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.left = instructions

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
        raise _Refused(f"{module}.{name}"[:200])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Refused("a reference to another file")

    def get_extension(self, code: int) -> NoReturn:
        raise _Refused(f"extension {code}")


def read_plain_pickle(path: Path, *, largest: int, instructions: int) -> dict[str, Any]:
    """The dict in a pickle file of at most so many bytes and instructions, its keys as text.

    A file that asks for code is refused.
    """
    size = path.stat().st_size
    if size > largest:
        raise DataError(f"{path} has {size} bytes; at most {largest} are expected. It is not the published file.")
    try:
        with path.open("rb") as file:
            value = _PlainUnpickler(file.read(largest), instructions).load()
    except _Refused as refused:
        raise DataError(
            f"{path} asks to run {refused}, which a data file has no use for; it was refused and nothing was run. "
            "Get the published file again."
        ) from None
    except Exception as failure:
        # Damaged bytes are read as arbitrary instructions: almost any exception can come out of them.
        told = f"{type(failure).__name__}: {failure}"[:200]
        raise DataError(f"{path} is damaged ({told}). Get it again.") from failure
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; a dict was expected.")
    return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in value.items()}
