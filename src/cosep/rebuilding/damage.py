"""Damage: how far a network's outputs move when one group alone loses channels and its consumers are re-solved.

The consumers are solved on Gram matrices that one pass over the images gave. Then, for each group, only the part of the
network behind it runs again, on a few images that no fit has seen.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from cosep.models.modes import evaluating
from cosep.models.tape import Pass, check_tape, record
from cosep.rebuilding.fit import Moments, pull_for
from cosep.rebuilding.grams import Grams
from cosep.rebuilding.maps import LinearMap
from cosep.rebuilding.rebuild import divergence_of
from cosep.records import Group
from cosep.surgery.cut import apply_layout, layout_of


def measure_damage(
    model: nn.Module,
    groups: Sequence[Group],
    kept: Mapping[str, Sequence[int]],
    grams: Grams,
    images: Tensor,
    *,
    pull: float = 1e-3,
) -> dict[str, float]:
    """For each group, the KL divergence (temperature 4) on `images` where it alone keeps only these channels.

    The group's consumers are re-solved as far as their Gram matrices are there; the rest of the network is whole.
    """
    found: dict[str, float] = {}
    tape = record(model, images)
    check_tape(tape, model, images.flip(0))
    entries: dict[int, list[Group]] = {}
    for group in groups:
        steps = [tape.layers.get(name, ()) for name in group.consumers]
        if all(name in grams.maps for name in group.consumers) and all(len(s) == 1 for s in steps):
            entries.setdefault(min(s[0] for s in steps), []).append(group)
        else:
            found[group.name] = -1.0  # measured below, by cutting it
    with evaluating(model):
        goal = model(images)
        for name in [name for name in found if name in kept]:
            group = next(g for g in groups if g.name == name)
            cut = apply_layout(model, layout_of(model, group, kept[name], {}))
            with evaluating(cut):
                found[name] = float(divergence_of(cut(images), goal))
        run = Pass.begun(tape, images)
        for index in range(len(tape.steps)):
            for group in entries.get(index, ()):
                instead = {
                    name: without_channels(
                        grams.maps[name], grams.moments[name], *_columns(group, name, kept[group.name]), pull
                    )
                    for name in group.consumers
                }
                behind = run.branched()
                behind.run(range(index, len(tape.steps)), instead=instead)
                found[group.name] = float(divergence_of(behind.values[tape.output], goal))
            run.run((index,))
    return {group.name: found[group.name] for group in groups}


def _columns(group: Group, consumer: str, kept: Sequence[int]) -> tuple[Tensor, Tensor]:
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
    parts, columns = weight.shape[0], weight.shape[1]
    inputs = torch.arange(columns * parts).reshape(parts, -1)  # (parts, columns): which input each column reads
    per = layer.inputs // parts
    inputs = inputs % columns % per + torch.arange(parts).unsqueeze(1) * per
    constant = torch.zeros(parts, weight.shape[2], dtype=torch.float64)
    for part in range(parts):
        gone = torch.isin(inputs[part], go)
        if not bool(gone.any()):
            continue
        stays = ~gone
        covariance, mean = moments.xx[part], moments.x_mean[part]
        lost = weight[part, gone]
        inner = covariance[stays][:, stays]
        level = float(inner.diagonal().mean()) if len(inner) else 0.0
        strength = pull_for(moments.rows, len(inner), pull) * (level or 1.0)
        inner = inner + strength * torch.eye(len(inner), dtype=inner.dtype)
        change = torch.cholesky_solve(covariance[stays][:, gone] @ lost, torch.linalg.cholesky(inner))
        constant[part] = mean[gone] @ lost - mean[stays] @ change
        weight[part, stays] += change
        weight[part, gone] = 0
    with torch.no_grad():
        LinearMap(result).write(weight)
        own = result._parameters.get("bias")
        added = constant.flatten().to(result.get_parameter("weight"))
        result.bias = nn.Parameter(added if own is None else own + added, requires_grad=False)
    return result
