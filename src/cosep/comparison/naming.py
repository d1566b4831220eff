"""What tables and pages call a method."""

from __future__ import annotations

from cosep.config import SelectConfig


def named_method(method: str) -> str:
    """A criterion's name; of the one that a user gets who asks for none, with a word that says so."""
    return f"{method} (the default)" if method == SelectConfig().criterion else method
