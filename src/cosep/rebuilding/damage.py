"""Damage: how far a network's outputs move when one group alone loses channels and its consumers are re-solved.

The consumers are solved on Gram matrices that one pass over the images gave. Then, for each group, only the part of the
network behind it runs again, on a few images that no fit has seen.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from cosep.layers.maps import LinearMap
from cosep.models.modes import evaluating
from cosep.models.tape import Pass, Tape, TapeError, recorded
from cosep.rebuilding.fit import Moments, factored, pull_for
from cosep.rebuilding.grams import Grams
from cosep.rebuilding.rebuild import divergence_of
from cosep.records import Group
from cosep.surgery.cut import apply_layout, layout_of

# The damage of a group whose cut breaks the network: a rule that goes by damage leaves it whole.
UNCUTTABLE = 1e6


def measure_damage(
    model: nn.Module,
    groups: Sequence[Group],
    kept: Mapping[str, Sequence[int]],
    grams: Grams,
    batches: Sequence[Tensor],
    *,
    pull: float = 1e-3,
) -> dict[str, float]:
    """For each group, the KL divergence (temperature 4) on batches of images where it alone keeps these channels.

    The group's consumers are re-solved as far as their Gram matrices are there; the rest of the network is whole.
    """
    images = sum(len(x) for x in batches)
    total = dict.fromkeys((group.name for group in groups), 0.0)
    tapes = _tapes(model, batches)
    solved = {
        group.name: {
            name: without_channels(grams.maps[name], grams.moments[name], *_inputs(group, name, kept[group.name]), pull)
            for name in group.consumers
        }
        for group in groups
        if tapes and all(name in grams.maps for name in group.consumers)
    }
    by_cutting = {
        group.name: apply_layout(model, layout_of(model, group, kept[group.name], {}))
        for group in groups
        if group.name not in solved
    }
    with evaluating(model, *by_cutting.values()):
        for x in batches:
            goal = model(x)
            for name, cut in by_cutting.items():
                total[name] += _moved(cut, x, goal)
            if solved:
                for name, found in _behind_each(tapes[tuple(x.shape)], groups, solved, x):
                    total[name] += float(divergence_of(found, goal, "sum"))
    return {name: value / max(images, 1) for name, value in total.items()}


def _moved(cut: nn.Module, x: Tensor, goal: Tensor) -> float:
    """How far a plainly cut network's outputs move; out of all bounds where the cut network does not even run."""
    try:
        return float(divergence_of(cut(x), goal, "sum"))
    except Exception:  # whatever a model raises on a width that it did not foresee
        return UNCUTTABLE * len(x)


def _tapes(model: nn.Module, batches: Sequence[Tensor]) -> dict[tuple[int, ...], Tape]:
    """A tape for every shape of batch; none at all where the model cannot be run in steps."""
    try:
        return recorded(model, batches)
    except TapeError:
        return {}


def _behind_each(
    tape: Tape, groups: Sequence[Group], solved: Mapping[str, Mapping[str, nn.Module]], x: Tensor
) -> list[tuple[str, Tensor]]:
    """The network's outputs with each group's consumers replaced in turn: what lies before them runs once for all."""
    entries: dict[int, list[str]] = {}
    for group in groups:
        if group.name in solved:
            entries.setdefault(min(tape.layers[name][0] for name in group.consumers), []).append(group.name)
    found = []
    run = Pass.begun(tape, x)
    for index in range(max(entries, default=-1) + 1):
        for name in entries.get(index, ()):
            behind = run.branched()
            behind.run(range(index, len(tape.steps)), instead=solved[name])
            found.append((name, behind.values[tape.output]))
        run.run((index,))
    return found


def _inputs(group: Group, consumer: str, kept: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The consumer's inputs that stay of a group, and those that go."""
    places = torch.cat([s.positions for s in group.slices if s.module == consumer and s.side == "in"], dim=1)
    stays = torch.zeros(group.width, dtype=torch.bool)
    stays[list(kept)] = True
    return places[stays].flatten(), places[~stays].flatten()


def without_channels(layer: LinearMap, moments: Moments, stay: Tensor, go: Tensor, pull: float) -> nn.Module:
    """A copy of a layer that does without some of its inputs, its other weights re-solved to give what it gave.

    With x = (x_s, x_g) the change of the weights that stay is (C_ss + pull)^-1 C_sg W_g, and the constant makes up for
    the means.
    """
    result = copy.deepcopy(layer.module)
    weight = layer.weight()
    constant = torch.zeros(weight.shape[0], weight.shape[2], dtype=torch.float64)
    for part, inputs in enumerate(layer.inputs_of_columns()):
        gone = torch.isin(inputs, go)
        if not bool(gone.any()):
            continue
        stays = ~gone
        covariance, mean = moments.xx[part], moments.x_mean[part]
        lost = weight[part, gone]
        inner = covariance[stays][:, stays].double()
        factor, _ = factored(inner, pull_for(moments.rows, len(inner), pull), moments.precision)
        change = torch.cholesky_solve(covariance[stays][:, gone].double() @ lost, factor)
        constant[part] = mean[gone] @ lost - mean[stays] @ change
        weight[part, stays] += change
        weight[part, gone] = 0
    with torch.no_grad():
        LinearMap(result).write(weight)
        own = result._parameters.get("bias")
        added = constant.flatten().to(result.get_parameter("weight"))
        result.register_parameter("bias", nn.Parameter(added if own is None else own + added, requires_grad=False))
    return result
