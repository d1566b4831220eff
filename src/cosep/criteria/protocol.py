"""What a criterion is, and how a caller's own becomes one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cosep.criteria.view import GroupView
from cosep.errors import ConfigError
from cosep.records import Selection
from cosep.selection.candidates import Candidates, fixed, ranked


class Criterion(Protocol):
    """From a group, as it is now, to its candidates: for any k, which channels stay."""

    @property
    def name(self) -> str:
        """What settings and reports call it."""

    def __call__(self, view: GroupView) -> Candidates:
        """The candidates of the group."""


class OwnCriterion:
    """A caller's function of a `GroupView`, which may give candidates, a score for each channel, or one selection."""

    def __init__(self, function: object, name: str) -> None:
        if not callable(function):
            raise ConfigError(f"{name} gives a {type(function).__name__}; a criterion is a function of a group's view.")
        self.function, self.name = function, name

    def __call__(self, view: GroupView) -> Candidates:
        with view.stage("select"):
            found = self.function(view)
            if isinstance(found, Tensor):
                if len(found) != view.group.width:
                    raise ConfigError(
                        f"{self.name} gives {len(found)} scores for {view.group.name}, which has {view.group.width} "
                        "channels."
                    )
                return ranked(view.group.name, found, blocks=view.group.blocks, name=self.name.rpartition("/")[2])
            if isinstance(found, Selection):
                found = fixed(view.group.name, found, view.norms())
            if not isinstance(found, Candidates):
                raise ConfigError(
                    f"{self.name} gives a {type(found).__name__} for {view.group.name}; give Candidates, a tensor with "
                    "a score for each channel, or a Selection."
                )
            if found.channels != view.group.width:
                raise ConfigError(
                    f"{self.name} gives {found.channels} channels for {view.group.name}, which has {view.group.width}."
                )
            return found
