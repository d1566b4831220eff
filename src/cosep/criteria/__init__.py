"""Criteria: from a group of channels to its candidates. CoSeP, the published baselines, and a caller's own."""

from cosep.criteria.feature_maps import chip, hrank
from cosep.criteria.protocol import Criterion, OwnCriterion
from cosep.criteria.random import random_channels, random_scores
from cosep.criteria.registry import CRITERIA, criterion
from cosep.criteria.view import GroupView, NetworkView, Passes
from cosep.criteria.weights import fpgm, importance, with_gradients
from cosep.selection.candidates import Candidates, best_channels, ranked

__all__ = [
    "CRITERIA",
    "Candidates",
    "Criterion",
    "GroupView",
    "NetworkView",
    "OwnCriterion",
    "Passes",
    "best_channels",
    "chip",
    "criterion",
    "fpgm",
    "hrank",
    "importance",
    "random_channels",
    "random_scores",
    "ranked",
    "with_gradients",
]
