"""Where a group's channels are in the network as it is now, and how strong their weights are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cosep.layers import mixing, places_now
from cosep.records import Group, Layout


def output_columns(group: Group, producer: str, layout: Layout) -> tuple[Tensor, ...]:
    """Which outputs of a producer are the group's channels: one (width,) tensor for each output that a channel has.

    The group is whole; other groups on the same side may have been cut.
    """
    pieces = [piece for piece in group.slices if piece.module == producer and piece.side == "out"]
    return tuple(column for piece in pieces for column in places_now(layout, producer, "out", piece.positions).T)


def consumer_norms(model: nn.Module, group: Group, layout: Layout) -> Tensor:
    """The L2 norm of the weights that read each channel, over all of the group's consumers: (width,) float64."""
    squares = torch.zeros(group.width, dtype=torch.float64)
    for piece in group.slices:
        if piece.module in group.consumers and piece.side == "in":
            module = model.get_submodule(piece.module)
            read = mixing(module).reading(module)
            squares += read[places_now(layout, piece.module, "in", piece.positions)].sum(1)
    return squares.sqrt()


def channel_norms(model: nn.Module, group: Group, layout: Layout) -> Tensor:
    """The L2 norm of each channel's filter, over all of the group's producers: (width,) float64."""
    squares = torch.zeros(group.width, dtype=torch.float64)
    for name in group.producers:
        module = model.get_submodule(name)
        norms = mixing(module).filters(module).square().sum(1)
        for column in output_columns(group, name, layout):
            squares += norms[column]
    return squares.sqrt()
