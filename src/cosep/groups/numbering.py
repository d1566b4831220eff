"""Where a group's channels are in the network as it is now, and how strong their weights are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from cosep.records import Group, Layout, Slice


def current_positions(piece: Slice, layout: Layout) -> Tensor:
    """The positions of a group that is still whole, after the cuts of other groups on the same side: (width, span)."""
    alive = layout.get((piece.module, piece.side))
    if alive is None:
        return piece.positions
    return torch.searchsorted(torch.tensor(alive), piece.positions.contiguous())


def output_columns(group: Group, producer: str, layout: Layout) -> tuple[Tensor, ...]:
    """Which outputs of a producer are the group's channels: one (width,) tensor for each output that a channel has."""
    pieces = [piece for piece in group.slices if piece.module == producer and piece.side == "out"]
    return tuple(column for piece in pieces for column in current_positions(piece, layout).T)


def consumer_norms(model: nn.Module, group: Group, layout: Layout) -> Tensor:
    """The L2 norm of the weights that read each channel, over all of the group's consumers: (width,) float64."""
    squares = torch.zeros(group.width, dtype=torch.float64)
    for piece in group.slices:
        if piece.module not in group.consumers or piece.side != "in":
            continue
        module = model.get_submodule(piece.module)
        weight: Tensor = module.get_parameter("weight").detach().double().cpu()
        if isinstance(module, _ConvTransposeNd):
            norms = weight.flatten(1).square().sum(1)  # (inputs, outputs / groups, ...)
        else:
            # (outputs, inputs / groups, ...): the inputs of one block are read by its own outputs only.
            blocks = weight.unflatten(0, (getattr(module, "groups", 1), -1))
            norms = blocks.square().sum((1, *range(3, blocks.ndim))).flatten()
        squares += norms[current_positions(piece, layout)].sum(1)
    return squares.sqrt()


def channel_norms(model: nn.Module, group: Group, layout: Layout) -> Tensor:
    """The L2 norm of each channel's filter, over all of the group's producers: (width,) float64."""
    squares = torch.zeros(group.width, dtype=torch.float64)
    for name in group.producers:
        module = model.get_submodule(name)
        weight: Tensor = module.get_parameter("weight").detach().double().cpu()
        if isinstance(module, _ConvTransposeNd):
            # (inputs, outputs / groups, ...): the outputs of one block share the rows of its inputs.
            blocks = weight.unflatten(0, (module.groups, -1)).transpose(1, 2)
            weight = blocks.flatten(0, 1)
        norms = weight.flatten(1).square().sum(1)
        for column in output_columns(group, name, layout):
            squares += norms[column]
    return squares.sqrt()
