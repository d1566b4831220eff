"""Elimination: the set of channels that jointly reproduces what their consumers compute, where it decides classes.

Errors of the consumers' outputs count by half in the metric of class margins (how far an error there moves the
differences between the classes' scores) and by half in that of the BatchNorm behind them. No labels are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosep.criteria.elimination import Consumer, Elimination, eliminate
from cosep.criteria.view import GroupView, NetworkView
from cosep.data.batches import images_between, small_images
from cosep.layers.maps import batchnorm_scale
from cosep.models.modes import logits_of, training_flags_kept
from cosep.records import Selection
from cosep.selection.candidates import Candidates, ranked

TEMPERATURE = 4.0  # of the probabilities whose covariance the margins are drawn with
MARGIN_IMAGES = 256  # behind the metric of margins; half as many above 64 x 64, where each has more positions
# Of the columns' variance. What others can only just stand in for is worth keeping: the rebuild moves all of them.
RIDGE = 0.1
# A share of what the consumers compute that is nothing: the channels that go for it are dead.
NOTHING = 1e-6
AT_A_TIME, LARGE_AT_A_TIME = 64, 4  # images whose whole graph is held in memory, up to 64 x 64 and above


@dataclass(frozen=True)
class Eliminating:
    """Backward elimination with exact re-solving; the channels that go last stay."""

    name: str = "elimination"
    about: str = "the set of channels that together reproduce their consumers' outputs, weighed by class margins"

    def __call__(self, view: GroupView) -> Candidates:
        looked = view.network.looked_at()
        metrics = view.network.once("margins", partial(_margins, view.network))
        with view.stage("select"):
            known = [name for name in view.group.consumers if name in looked.grams.maps]
            if not known:
                # Its consumers are too wide, or no plain layers: only the weights can be compared.
                return ranked(view.group.name, view.norms(), blocks=view.group.blocks, name="l2")
            found = eliminate(
                (_consumer(view, name, metrics) for name in known),
                ridge=RIDGE,
                swaps=0,
                blocks=view.group.blocks,
            )
            # The choice stays as long as the run; the matrices behind it take a gigabyte in a ResNet-50.
            return _candidates(view.group.name, view.group.blocks, replace(found, problems=()))


def _candidates(group: str, blocks: int, found: Elimination) -> Candidates:
    width = len(found.order)
    ranking = torch.zeros(width, dtype=torch.float64)
    ranking[found.order] = torch.arange(width, dtype=torch.float64)
    ks = tuple(range(2, width))

    def choose(k: int) -> Selection:
        whole = -(-k // blocks) * blocks  # elimination goes block by block; the rest is dropped by rank
        kept = found.nested(whole).kept.tolist()
        best = sorted(kept, key=lambda channel: -float(ranking[channel]))[:k]
        return Selection(width, tuple(sorted(best)), "elimination")

    errors = {k: float(found.errors[-(-k // blocks) * blocks]) for k in ks}
    return Candidates(
        group=group,
        channels=width,
        choose=choose,
        ranking=ranking,
        ks=ks,
        curve=tuple(1 - errors[k] for k in ks),
        losses=tuple(errors.values()),
        spare=width - next((k for k in ks if errors[k] <= NOTHING), width),
    )


def _consumer(view: GroupView, name: str, metrics: dict[str, Tensor]) -> Consumer:
    """A consumer's moments and weights for the group's channels only: (units, taps) unit by unit."""
    grams = view.network.looked_at().grams
    layer, moments = grams.maps[name], grams.moments[name]
    places = torch.cat([s.positions for s in view.group.slices if s.module == name and s.side == "in"], dim=1)
    reads = layer.inputs_of_columns()  # (parts, columns)
    taps = layer.columns // (layer.inputs // layer.parts)
    columns = [torch.nonzero(torch.isin(reads.flatten(), unit)).flatten() for unit in places]
    order = torch.stack(columns).flatten()
    part, column = order // layer.columns, order % layer.columns
    gram = moments.xx[part[:, None], column[:, None], column[None, :]].double()
    if layer.parts > 1:
        gram *= part[:, None] == part[None, :]
    outputs = layer.outputs // layer.parts
    weight = torch.zeros(layer.outputs, len(order), dtype=torch.float64)
    own = layer.weight()  # (parts, columns, outputs)
    for number in part.unique().tolist():
        mine = part == number
        weight[number * outputs : (number + 1) * outputs, mine] = own[number, column[mine]].T
    metric = _mixed(metrics.get(name), _norm_metric(view, name, layer.outputs), weight, gram)
    return Consumer(gram, weight.unflatten(1, (len(places), places.shape[1] * taps)), metric)


def _norm_metric(view: GroupView, name: str, outputs: int) -> Tensor:
    behind = view.network.looked_at().grams.behind.get(name)
    if behind is None:
        return torch.eye(outputs, dtype=torch.float64)
    norm: Any = view.model.get_submodule(behind)
    return torch.diag(batchnorm_scale(norm).square()) if norm.running_var is not None else torch.eye(outputs).double()


def _mixed(margin: Tensor | None, norm: Tensor, weight: Tensor, gram: Tensor) -> Tensor | None:
    """Both metrics, each divided by what the layer's whole output has in it."""
    power = weight @ gram @ weight.T
    parts = [each / float(size) for each in (margin, norm) if each is not None and (size := (each * power).sum()) > 0]
    return torch.stack(parts).mean(0) if parts else None


def _margins(network: NetworkView) -> dict[str, Tensor]:
    """For each consumer E[g g'] (outputs, outputs), g the gradient of v'scores at its output, v a random margin.

    v has the covariance of the softened class probabilities, so that every difference between two classes counts by
    how much it matters for the image at hand.
    """
    looked = network.looked_at()
    layers = {name: network.model.get_submodule(name) for name in looked.grams.maps}
    generator = torch.Generator().manual_seed(network.config.seed)
    found: dict[str, Tensor] = {}
    seen: list[tuple[str, Tensor]] = []

    def note(name: str, _module: nn.Module, _args: Any, output: Tensor) -> None:
        if output.requires_grad:
            seen.append((name, output))

    model = network.model
    handles = [module.register_forward_hook(partial(note, name)) for name, module in layers.items()]
    try:
        with training_flags_kept(model), torch.enable_grad(), network.passes.stage("look", ""):
            model.eval()
            for x in _few(looked.images):
                seen.clear()
                # Also where every weight is frozen there is a gradient; images of whole numbers have none of their own.
                scores = logits_of(model, x.clone().requires_grad_() if x.is_floating_point() else x)
                chance = torch.softmax(scores.detach() / TEMPERATURE, dim=1)
                v = chance.sqrt() * torch.randn(scores.shape, generator=generator).to(scores)
                v = v - chance * v.sum(1, keepdim=True)
                outputs = [output for _, output in seen]
                slopes = torch.autograd.grad((scores * v).sum(), outputs, allow_unused=True) if outputs else ()
                for (name, _), slope in zip(seen, slopes, strict=True):
                    if slope is not None:
                        rows = slope.movedim(looked.grams.maps[name].channel_axis, -1).flatten(0, -2)
                        found[name] = found.get(name, 0) + (rows.T @ rows).double().cpu()
    finally:
        for handle in handles:
            handle.remove()
    return {name: each for name, each in found.items() if bool(each.isfinite().all())}


def _few(batches: Sequence[Tensor]) -> list[Tensor]:
    """The first images of some batches, few at a time: their whole graph is held in memory."""
    small = not batches or small_images(batches[0].shape)
    first = images_between(batches, 0, MARGIN_IMAGES if small else MARGIN_IMAGES // 2)
    return [part for x in first for part in x.split(AT_A_TIME if small else LARGE_AT_A_TIME)]
