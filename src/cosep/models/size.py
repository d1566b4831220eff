"""A model that is built only as far as it has the size that is expected of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


class TooLarge(Exception):
    """A model has more parameters than it may."""


@contextmanager
def at_most(parameters: int) -> Iterator[None]:
    """Stop the construction of a model with TooLarge as soon as it has more parameters than this; 0: any number."""
    seen: dict[int, int] = {}

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not nn.parameter.is_lazy(parameter):
            seen[id(parameter)] = parameter.numel()
            if parameters and sum(seen.values()) > parameters:
                raise TooLarge

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
