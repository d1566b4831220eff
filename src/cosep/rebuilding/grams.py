"""Gram matrices of what layers of an uncut network read, all of them from one pass over the images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cosep.models.tape import Pass, Tape, record
from cosep.rebuilding.fit import Moments, Sums
from cosep.rebuilding.maps import LinearMap, sampled, why_no_map
from cosep.rebuilding.rebuild import RebuildConfig


@dataclass(frozen=True, eq=False)
class Grams:
    """The moments of the inputs of layers, and the layers as maps of such rows; layers that are no maps are left out."""

    moments: Mapping[str, Moments]
    maps: Mapping[str, LinearMap]


def gather_grams(
    model: nn.Module,
    layers: Iterable[str],
    batches: Iterable[Tensor],
    config: RebuildConfig,
    *,
    images: int,
    seed: int = 0,
) -> Grams:
    """The moments of what each layer reads, over all batches, of about so many images together."""
    tapes: dict[tuple[int, ...], Tape] = {}
    maps: dict[str, LinearMap] = {}
    sums: dict[str, Sums] = {}
    generators: dict[str, torch.Generator] = {}
    wanted = list(dict.fromkeys(layers))
    for x in batches:
        if tuple(x.shape) not in tapes:
            tapes[tuple(x.shape)] = record(model, x)
        tape = tapes[tuple(x.shape)]
        if not maps:
            for number, name in enumerate(wanted):
                if len(tape.layers.get(name, ())) == 1 and not why_no_map(model.get_submodule(name)):
                    maps[name] = LinearMap(model.get_submodule(name))
                    sums[name] = Sums(maps[name].parts, maps[name].columns, 0)
                    generators[name] = torch.Generator().manual_seed(seed * 1_000_003 + number)
        tapped = {tape.layers[name][0]: name for name in maps}
        run = Pass.begun(tape, x)
        for index, step in enumerate(tape.steps):
            name = tapped.get(index)
            read = run.values[step.sources[0]] if name else None
            run.run((index,))
            if name and read is not None:
                where = sampled(maps[name], run.values[index], config.rows, config.positions, images, generators[name])
                rows = maps[name].rows(read, where).flatten(0, 1).transpose(0, 1)
                sums[name].add(rows, rows[:, :, :0])
    return Grams({name: each.moments() for name, each in sums.items()}, maps)
