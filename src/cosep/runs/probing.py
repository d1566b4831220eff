"""What a width rule may ask of the uncut network: what widths cost, and how much they harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn

from cosep.errors import ConfigError
from cosep.measurement import latency, macs, parameters
from cosep.records import Group, Layout
from cosep.selection.finishing import finished_width
from cosep.surgery import apply_layout, layout_of

LATENCY_REPEATS = 30

Damage = Callable[[str, int], float]  # of a group at a width, measured


class NetworkProbe:
    """Costs of the network with other widths, rounded and balanced as they will be."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        groups: Iterable[Group],
        *,
        round_to: int = 1,
        damage: Damage | None = None,
    ) -> None:
        self.model, self.example, self.groups, self.round_to = model, example, tuple(groups), round_to
        self._damage = damage

    def macs(self, widths: Mapping[str, int]) -> float:
        """Multiply-accumulates of one input."""
        return macs(self.network(widths), self.example)

    def parameters(self, widths: Mapping[str, int]) -> float:
        """Parameters."""
        return parameters(self.network(widths))

    def milliseconds(self, widths: Mapping[str, int]) -> float:
        """The measured time of one input."""
        return latency({"model": self.network(widths)}, self.example, repeats=LATENCY_REPEATS)["model"].median_ms

    def damage(self, group: str, k: int) -> float:
        """The measured damage of a group at a width."""
        if self._damage is None:
            raise ConfigError(f"the damage of cutting {group} to {k} channels is not available: nothing measures it.")
        return self._damage(group, k)

    def network(self, widths: Mapping[str, int]) -> nn.Module:
        """A network of these widths, with any channels: what it costs does not depend on which."""
        layout: Layout = {}
        for group in self.groups:
            width = finished_width(widths.get(group.name, group.width), group, self.round_to)
            layout = {**layout, **layout_of(self.model, group, _any_channels(group, width), layout)}
        return apply_layout(self.model, layout)


def _any_channels(group: Group, width: int) -> tuple[int, ...]:
    """As many channels as the width says, the same number in every block."""
    size, each = group.width // group.blocks, -(-width // group.blocks)
    return tuple(block * size + channel for block in range(group.blocks) for channel in range(each))
