"""The rebuild within a run: which images it sees, which layers it may change, and what it means for a size's loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from cosep.config import RebuildConfig
from cosep.data.batches import even_batches
from cosep.layers import channel_axis
from cosep.layers.maps import LinearMap, may_be_solved
from cosep.models.modes import evaluating, logits_of
from cosep.observation.checks import checked_labels
from cosep.rebuilding import Rebuilt, rebuild, reestimate_batchnorm
from cosep.records import Group, Layout, RebuildRecord, known
from cosep.runs.fabric import batches_of_rank, same_weights_everywhere, team_of
from cosep.runs.planning import (
    candidates_of_original,
    damage_at_half,
    finished_selections,
    forget_view,
    target_for_share,
    widths_of,
)
from cosep.runs.search import with_tried
from cosep.runs.state import Job, State, calibration_pass, first_images
from cosep.selection.rules import WIDTH_RULES, Target, Widths
from cosep.surgery import apply_layout, layout_of

LEAST_IMAGES = 1000  # narrow layers have no use for more, but a part is set aside to judge the solutions
SEARCH_IMAGES = 1000  # calibration images behind each rebuild of a search, and images on which its loss is measured


def rebuilt(job: Job, state: State, groups: tuple[Group, ...]) -> State:
    """The network after the cut of these groups, with weights and statistics made anew in closed form."""
    config, name = job.config.rebuild, groups[0].name if len(groups) == 1 else ""
    if config.solve:
        only = None if job.config.order == "together" else {piece.module for g in groups for piece in g.slices}
        with job.stage("rebuild", name):
            made = _rebuilt(job, state.model, state.layout, config, only)
        state = replace(state, model=made.model, rebuild=_recorded(made, state.rebuild))
    elif config.reestimate_batchnorm:
        with job.stage("batchnorm", name):
            reestimate_batchnorm(state.model, calibration_pass(job, images_of_rebuild(job, config)))
    same_weights_everywhere(state.model, job.fabric)
    return state


def images_of_rebuild(job: Job, config: RebuildConfig) -> int:
    """How many images the rebuild sees; 0: all. Where nothing is asked for, no more than the solutions have use for."""
    most = config.images_of(math.prod(job.example.shape[2:]))
    return most if config.images >= 0 else min(most, max(LEAST_IMAGES, _images_used(job.original, config)))


def _images_used(model: nn.Module, config: RebuildConfig) -> int:
    """As many as give each solution `rows` rows a column; of an image, a linear layer has one."""
    needs = [
        config.rows * LinearMap(module).columns / (1 if channel_axis(module) == -1 else config.positions)
        for module in model.modules()
        if may_be_solved(module)
    ]
    return math.ceil(max(needs, default=0))


def _rebuilt(
    job: Job,
    model: nn.Module,
    layout: Layout,
    config: RebuildConfig,
    only: AbstractSet[str] | None = None,
) -> Rebuilt:
    inputs = even_batches(x for x, _ in calibration_pass(job, images_of_rebuild(job, config)))
    own = list(batches_of_rank(inputs, job.fabric))
    firsts = list(accumulate((len(x) for x in inputs), initial=0))  # and the number of all images at its end
    team = replace(team_of(job.fabric), numbers=tuple(batches_of_rank(firsts[:-1], job.fabric)), images=firsts[-1])
    return rebuild(
        job.original, model, layout, own, config, seed=job.config.seed, only=only, team=team, example=inputs[0]
    )


def _recorded(made: Rebuilt, before: RebuildRecord | None) -> RebuildRecord:
    """What the report says of the rebuild; one by one, the layers of all groups so far."""
    earlier = before or RebuildRecord()
    return RebuildRecord(
        (*earlier.layers, *made.layers),
        known(made.divergence),
        known(made.divergence_cut),
        (*earlier.notes, *(note for note in made.notes if note not in earlier.notes)),
        (*earlier.blocks, *made.blocks),
    )


def tried(job: Job, state: State, share: float) -> State:
    """Cut and rebuild the network at one size, measure what it loses, and forget the network."""
    images = images_of_rebuild(job, job.config.rebuild) or SEARCH_IMAGES
    few = replace(job.config.rebuild, images=min(images, SEARCH_IMAGES))
    model, _, _ = resized(job, state, target_for_share(job, share), few, "search")
    with job.stage("search"):
        drop = points_lost(job, model, _unseen(job))
    state = with_tried(state, share, drop)
    if job.run:
        job.run.log("tried", share=share, drop=drop)
    return replace(state, damage=damage_at_half(job))


def resized(
    job: Job, state: State, target: Target, config: RebuildConfig, stage: str
) -> tuple[nn.Module, Widths, Layout]:
    """The uncut network cut to a target and rebuilt; what was gathered of it once serves every target."""
    found = candidates_of_original(job)
    decided = widths_of(job, state, found, target)
    if job.rule.name in WIDTH_RULES:  # it has asked for all damage that it will ask for
        forget_view(job)
    layout: Layout = {}
    for group, selection in zip(job.groups, finished_selections(job, found, decided), strict=True):
        if selection.removed:
            layout = {**layout, **layout_of(job.original, group, selection.kept, layout)}
    model = apply_layout(job.original, layout)
    with job.stage(stage):
        if layout and config.solve:
            model = _rebuilt(job, model, layout, config).model
        elif layout and config.reestimate_batchnorm:
            reestimate_batchnorm(model, calibration_pass(job, images_of_rebuild(job, config)))
    same_weights_everywhere(model, job.fabric)
    return model, decided, layout


def points_lost(job: Job, model: nn.Module, batches: Iterator[tuple[Tensor, Tensor | None]]) -> float:
    """The points of accuracy that a model has lost on some images, as the first process counts them.

    Without labels, the images that the model puts into another class than the uncut network does are counted.
    What the processes decide by must be one number: another rounding on another device would set them apart.
    """
    right = {"whole": 0, "cut": 0}
    same = images = 0
    labelled = True
    with evaluating(job.original, model):
        for x, labels in batches:
            x = job.fabric.to_device(x)
            expected, found = (logits_of(each, x).argmax(1).cpu() for each in (job.original, model))
            images += len(x)
            same += int((expected == found).sum())
            if labels is None or labels.ndim != 1:
                labelled = False
                continue
            classes = checked_labels(labels, len(x), job.classes).cpu()
            right["whole"] += int((expected == classes).sum())
            right["cut"] += int((found == classes).sum())
    lost = right["whole"] - right["cut"] if labelled else images - same
    points: float = job.fabric.broadcast(100 * lost / max(images, 1))
    return points


def _unseen(job: Job) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Images that no fit of a search sees: held-out ones, or the calibration images behind those of the rebuild."""
    if job.holdout is not None:
        yield from first_images(job.holdout, SEARCH_IMAGES, job.config.seed)
        return
    yield from not_fitted(job, SEARCH_IMAGES, 2 * SEARCH_IMAGES)


def not_fitted(job: Job, fitted: int, images: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The first so many calibration images (0: all) without those that a rebuild on `fitted` (0: all) was fitted to."""
    seen = 0
    for x, labels in calibration_pass(job, images):
        number = torch.arange(seen, seen + len(x))
        # Every sixteenth image of a rebuild is set aside, and so is whatever lies behind its images.
        some = (number >= (fitted or math.inf)) | (number % 16 == 0)
        seen += len(x)
        if bool(some.any()):
            yield x[some.to(x.device)], None if labels is None else labels[some]
