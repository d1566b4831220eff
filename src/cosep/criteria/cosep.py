"""CoSeP as published: profiles of class separability, k-medoids for every k, a representative of each cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from cosep.config import replace_settings
from cosep.criteria.view import GroupView
from cosep.profiles import separability_space
from cosep.records import ClassHistograms, ClassMoments, Space
from cosep.selection.candidates import Candidates
from cosep.selection.sweep import sweep


@dataclass(frozen=True, eq=False)
class Seen:
    """What the choice was made from: shown on the page of a run."""

    moments: Sequence[ClassMoments]
    histograms: Sequence[ClassHistograms] | None
    space: Space
    weights: Tensor


@dataclass(frozen=True)
class Cosep:
    """CoSeP with the run's settings, or with some of them changed."""

    name: str
    about: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, view: GroupView) -> Candidates:
        config = replace_settings(view.config, self.changes)
        moments = view.moments(config.observe)
        histograms = view.histograms(config.observe) if config.profile.metric == "jm-histogram" else None
        with view.stage("profile"):
            salience = view.salience(moments)
            factors = salience if config.profile.magnitude else None
            spans = view.spans()
            multivariate = (
                spans is not None and config.profile.heads == "multivariate" and config.profile.metric == "jm"
            )
            space = separability_space(
                moments,
                config.profile,
                histograms=histograms,
                salience=factors,
                spans=spans,
                heads=partial(view.heads, config.observe) if multivariate else None,
            )
        with view.stage("select"):
            weights = view.norms()
            scores = salience if config.select.representative == "salient" else None
            found = sweep(space, weights=weights, scores=scores, config=config.select, seed=config.seed)
        return found.candidates(view.group.name, weights, Seen(moments, histograms, space, weights))
