"""What a network would cost at other widths, without building it: layer by layer, from the uncut network's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cosep.records import Group, LayerCost, Side


@dataclass(frozen=True, eq=False)
class CostModel:
    """The uncut network's whole cost and the part of it that each layer's weights have, with what groups hold of it."""

    whole: float
    layers: Mapping[str, LayerCost]
    held: Mapping[str, Mapping[tuple[str, Side], int]]  # by group: how many places of a side one channel has
    widths: Mapping[str, int]  # the groups' own
    between: Mapping[str, float]  # by group: what goes with its channels between the layers

    def __call__(self, widths: Mapping[str, float]) -> float:
        """The cost where groups keep so many channels each; groups that are not named are whole."""
        gone: dict[tuple[str, Side], float] = {}
        for name, kept in widths.items():
            for side, span in self.held[name].items():
                gone[side] = gone.get(side, 0.0) + span * (self.widths[name] - kept)
        saved = sum(self.between[name] * (1 - kept / self.widths[name]) for name, kept in widths.items())
        for name in {module for module, _ in gone}:
            layer = self.layers.get(name)
            if layer is None:
                continue
            outputs = 1 - gone.get((name, "out"), 0.0) / layer.outputs
            inputs = 1 - gone.get((name, "in"), 0.0) / layer.inputs
            saved += layer.product * (1 - outputs * inputs) + layer.each * (1 - outputs)
        return self.whole - saved


def cost_model(
    whole: float, layers: Mapping[str, LayerCost], groups: Iterable[Group], *, between: bool = False
) -> CostModel:
    """The model of one kind of cost for some groups; `between`: of multiply-accumulates, which not only layers have."""
    groups = tuple(groups)
    held = {group.name: {(piece.module, piece.side): piece.span for piece in group.slices} for group in groups}
    widths = {group.name: group.width for group in groups}
    return CostModel(whole, layers, held, widths, {g.name: g.between if between else 0 for g in groups})
