"""Criteria that give every channel a number: the channels with the largest stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cosep.criteria.view import GroupView
from cosep.selection.candidates import Candidates, ranked


@dataclass(frozen=True)
class Scored:
    """The channels with the largest scores (width,), equally many in each block."""

    name: str
    about: str
    score: Callable[[GroupView], Tensor]

    def __call__(self, view: GroupView) -> Candidates:
        with view.stage("select"):
            return ranked(view.group.name, self.score(view), blocks=view.group.blocks, name=self.name)
