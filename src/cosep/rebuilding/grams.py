"""Gram matrices of what layers of an uncut network read, all of them from one pass over the images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from cosep.config import RebuildConfig
from cosep.layers import is_batchnorm
from cosep.layers.maps import LinearMap, sampled, why_no_map
from cosep.models.modes import evaluating
from cosep.models.tape import Pass, Tape, TapeError, recorded
from cosep.rebuilding.fit import Moments, Sums

# Wider Gram matrices take minutes and gigabytes: such layers are told from others by their weights alone.
WIDEST = 6000


@dataclass(frozen=True, eq=False)
class Grams:
    """The moments of the inputs of layers, and the layers as maps of such rows, as far as they are maps."""

    moments: Mapping[str, Moments] = field(default_factory=dict)
    maps: Mapping[str, LinearMap] = field(default_factory=dict)
    behind: Mapping[str, str] = field(default_factory=dict)  # the BatchNorm that alone reads a layer's output


def gather_grams(
    model: nn.Module, layers: Iterable[str], batches: Sequence[Tensor], config: RebuildConfig, *, seed: int = 0
) -> Grams:
    """The moments of what each layer reads, over all batches; nothing where the model cannot be run in steps."""
    wanted = list(dict.fromkeys(layers))
    try:
        tapes = recorded(model, batches)
    except TapeError:
        return Grams()
    images = sum(len(x) for x in batches)
    maps: dict[str, LinearMap] = {}
    for name in wanted if batches else ():
        module, tape = model.get_submodule(name), tapes[tuple(batches[0].shape)]
        if len(tape.layers.get(name, ())) == 1 and not why_no_map(module) and LinearMap(module).columns <= WIDEST:
            maps[name] = LinearMap(module)
    sums = {name: Sums(each.parts, each.columns, 0) for name, each in maps.items()}
    generators = {name: torch.Generator().manual_seed(seed * 1_000_003 + n) for n, name in enumerate(maps)}
    for x in batches:
        tape = tapes[tuple(x.shape)]
        tapped = {tape.layers[name][0]: name for name in maps}
        run = Pass.begun(tape, x)
        with evaluating(model):
            for index in range(max(tapped, default=-1) + 1):
                read = run.values[tape.steps[index].sources[0]] if index in tapped else None
                run.run((index,))
                if read is None:
                    continue
                name = tapped[index]
                where = sampled(maps[name], run.values[index], config.rows, config.positions, images, generators[name])
                rows = maps[name].rows(read, where).flatten(0, 1).transpose(0, 1)
                sums[name].add(rows, rows[:, :, :0])
    behind = _norms_behind(model, tapes[tuple(batches[0].shape)], maps) if batches else {}
    # Each layer's sums go as soon as its moments are there: together they take gigabytes in a ResNet-50.
    return Grams({name: _kept(sums.pop(name).moments(), maps[name].module) for name in maps}, maps, behind)


def _kept(moments: Moments, module: nn.Module) -> Moments:
    """Moments to be kept for all layers at a time: covariances in single precision, where their products were."""
    double = any(parameter.dtype == torch.float64 for parameter in module.parameters())
    return moments if double else replace(moments, xx=moments.xx.float())


def _norms_behind(model: nn.Module, tape: Tape, layers: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in layers:
        users = tape.steps[tape.layers[name][0]].users
        behind = tape.steps[users[0]].layer if len(users) == 1 else ""
        if behind and is_batchnorm(model.get_submodule(behind)):
            found[name] = behind
    return found
