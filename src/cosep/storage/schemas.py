"""Plain values read from a file: have they the form that the code goes on to use?

A form is a type (`str`, `bool`, `int` within 64 bits, `float` for any number), a dict of the names that must be there,
a list with the form of every entry, or one of the classes below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Form = Any
LARGEST = 1e18  # sums and products of a few such numbers are finite


@dataclass(frozen=True)
class Maybe:
    """Of this form, or None, or missing."""

    form: Form


@dataclass(frozen=True)
class Each:
    """A dict of any names, every value of this form."""

    form: Form


@dataclass(frozen=True)
class Where:
    """A value of this form for which the test holds; `words` say what it must be."""

    form: Form
    test: Callable[[Any], bool]
    words: str


FINITE = Where(float, lambda value: -LARGEST < value < LARGEST, f"a number below {LARGEST:g}")
NUMBER = Where(float, lambda value: not LARGEST <= abs(value) < math.inf, f"a number below {LARGEST:g}, or none")
POSITIVE = Where(float, lambda value: 0 < value < LARGEST, "a number above 0")
COUNT = Where(int, lambda value: value >= 0, "a whole number from 0 on")
SCALAR = Where(object, lambda value: value is None or isinstance(value, (bool, int, float, str)), "text or a number")


def misfit(value: Any, form: Form, where: str) -> str:
    """What is wrong with a value, in words that begin with its place; "" if it has the form."""
    if isinstance(form, Maybe):
        return "" if value is None else misfit(value, form.form, where)
    if isinstance(form, Where):
        return misfit(value, form.form, where) or ("" if form.test(value) else f"{where} must be {form.words}")
    if isinstance(form, (dict, Each)):
        if not isinstance(value, dict):
            return f"{where} is {_kind(value)}; names with values are needed"
        if isinstance(form, dict):
            missing = [name for name, part in form.items() if name not in value and not isinstance(part, Maybe)]
            if missing:
                return f"{where} has no {missing[0]!r}"
            parts = [(name, value[name], part) for name, part in form.items() if name in value]
        else:
            parts = [(name, part, form.form) for name, part in value.items()]
        return next((found for name, part, of in parts if (found := misfit(part, of, f"{where}: {name}"))), "")
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} is {_kind(value)}; a list is needed"
        entries = (misfit(part, form[0], f"{where}[{index}]") for index, part in enumerate(value))
        return next((found for found in entries if found), "")
    return "" if _is(value, form) else f"{where} is {_kind(value)}; {_NAMES[form]} is needed"


_NAMES = {str: "text", bool: "true or false", int: "a whole number of 64 bits", float: "a number"}


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float) and type(value) is int:
        return -(2**63) <= value < 2**63  # larger ones do not fit into a tensor, nor the largest into a float
    return kind is object or type(value) is kind


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of the kind {type(value).__name__}"
