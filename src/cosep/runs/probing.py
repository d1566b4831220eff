"""What a width rule may ask of the uncut network: what widths cost, and how much they harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor, nn

from cosep.config import Runtime
from cosep.errors import ConfigError, ExportError
from cosep.measurement import latency, macs, onnx_latency, parameters
from cosep.measurement.cost import layer_macs, layer_parameters
from cosep.records import Group, Latency, Layout
from cosep.selection.costs import CostModel, cost_model
from cosep.selection.finishing import finished_width
from cosep.storage.export import export_onnx
from cosep.surgery import apply_layout, layout_of

LATENCY_REPEATS = 30

Damage = Callable[[Mapping[str, int]], Mapping[str, float]]  # of each of some groups alone at a width, measured


def timed(models: Mapping[str, nn.Module], example: Tensor, runtime: Runtime) -> dict[str, Latency]:
    """The models in turn on the example, in the runtime that will be used."""
    if runtime == "torch":
        return latency(models, example, repeats=LATENCY_REPEATS)
    with TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in models}
        for name, model in models.items():
            export_onnx(model, paths[name], example)
        return onnx_latency(paths, example, repeats=LATENCY_REPEATS)


def timed_anyhow(
    models: Mapping[str, nn.Module], example: Tensor, runtime: Runtime
) -> tuple[dict[str, Latency], tuple[str, ...]]:
    """As `timed`; in PyTorch, and with a note that says so, where that runtime does not take the models.

    What was pruned and trained is not given up for the want of a figure.
    """
    try:
        return timed(models, example, runtime), ()
    except ExportError as error:
        return timed(models, example, "torch"), (f"the times are PyTorch's, as {error}".rstrip("."),)


class NetworkProbe:
    """Costs of the network with other widths, rounded and balanced as they will be."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        groups: Iterable[Group],
        *,
        round_to: int = 1,
        runtime: Runtime = "torch",
        damage: Damage | None = None,
    ) -> None:
        self.runtime = runtime
        self.model, self.example, self.groups, self.round_to = model, example, tuple(groups), round_to
        self._damage = damage

    def macs(self, widths: Mapping[str, float]) -> float:
        """Multiply-accumulates of one input."""
        return self._macs(self._finished(widths))

    def parameters(self, widths: Mapping[str, float]) -> float:
        """Parameters."""
        return self._parameters(self._finished(widths))

    def milliseconds(self, widths: Mapping[str, float]) -> float:
        """The measured time of one input, in the runtime that will be used."""
        return timed({"model": self.network(widths)}, self.example, self.runtime)["model"].median_ms

    def damage(self, widths: Mapping[str, int]) -> Mapping[str, float]:
        """The measured damage of each of these groups alone at its width."""
        if self._damage is None:
            raise ConfigError("the damage of cutting is not available here: nothing measures it.")
        return self._damage(widths)

    @cached_property
    def _macs(self) -> CostModel:
        return cost_model(
            macs(self.model, self.example), layer_macs(self.model, self.example), self.groups, between=True
        )

    @cached_property
    def _parameters(self) -> CostModel:
        return cost_model(parameters(self.model), layer_parameters(self.model), self.groups)

    def _finished(self, widths: Mapping[str, float]) -> dict[str, float]:
        """The widths that the network would have: rounded up, and those of the groups that are not named whole."""
        return {
            group.name: finished_width(widths.get(group.name, group.width), group, self.round_to)
            for group in self.groups
        }

    def network(self, widths: Mapping[str, float]) -> nn.Module:
        """A network of these widths, with any channels: what it costs does not depend on which."""
        layout: Layout = {}
        for group in self.groups:
            width = int(finished_width(widths.get(group.name, group.width), group, self.round_to))
            layout = {**layout, **layout_of(self.model, group, _any_channels(group, width), layout)}
        return apply_layout(self.model, layout)


def _any_channels(group: Group, width: int) -> tuple[int, ...]:
    """As many channels as the width says, the same number in every block."""
    size, each = group.width // group.blocks, -(-width // group.blocks)
    return tuple(block * size + channel for block in range(group.blocks) for channel in range(each))
