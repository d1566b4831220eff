"""The table of layer kinds, and what is asked of any module by looking it up."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from cosep.errors import PlanError
from cosep.layers.activation import PRELU
from cosep.layers.bare import bare_axis
from cosep.layers.convolution import Convolution
from cosep.layers.kind import LayerKind, MixingKind
from cosep.layers.linear import Linear
from cosep.layers.narrow import INNER
from cosep.layers.normalisation import CHANNEL_NORM, GroupNorm, LayerNorm
from cosep.layers.numbers import number_of
from cosep.records import Side

# The first that fits a module is its kind.
KINDS: list[LayerKind] = [Convolution(), Linear(), CHANNEL_NORM, GroupNorm(), LayerNorm(), PRELU]


def register(kind: LayerKind) -> None:
    """Add a kind of layer; it comes before those that are there, so it may refine one of them."""
    KINDS.insert(0, kind)


def kind_of(module: object) -> LayerKind | None:
    """The kind of a layer; None for anything else."""
    return next((kind for kind in KINDS if isinstance(module, kind.types)), None)


def mixing_kind_of(module: object) -> MixingKind | None:
    """The kind of a layer that makes channels out of other ones; None for anything else."""
    kind = kind_of(module)
    return kind if isinstance(kind, MixingKind) else None


def mixing(module: nn.Module) -> MixingKind:
    """The kind of a producer or consumer."""
    kind = mixing_kind_of(module)
    assert kind is not None, f"{type(module).__name__} makes no channels out of others"
    return kind


def channel_axis(module: nn.Module) -> int:
    """Along which axis of a module's output the channels lie: behind the batch, or last as in linear layers."""
    kind = kind_of(module)
    if kind is not None:
        return kind.channel_axis(module)
    return -1 if hasattr(module, "out_features") else 1


def holder(modules: Mapping[str, nn.Module], name: str) -> tuple[nn.Module, str | None]:
    """A module by name, or the module that holds a bare tensor or a number of channels, and that attribute."""
    if name in modules:
        return modules[name], None
    path, inner, attribute = name.rpartition(f".{INNER}.")
    if inner:
        attribute = f"{INNER}.{attribute}"
    else:
        path, _, attribute = name.rpartition(".")
    parent = modules.get(path)
    held = {} if parent is None else {**parent._parameters, **parent._buffers}
    if parent is None or (attribute not in held and number_of(parent, attribute) is None):
        raise PlanError(f"the model has no module or parameter {name!r}. Was the plan made for another model?")
    return parent, attribute


def cuttable(module: nn.Module, name: str) -> LayerKind:
    """The kind of a layer that is to be cut; anything else is refused."""
    kind = kind_of(module)
    if kind is None:
        raise PlanError(f"{name} is a {type(module).__name__}, which cannot be cut.")
    return kind


def side_size(modules: Mapping[str, nn.Module], name: str, side: Side) -> int:
    """How many channels a side of a module, or a bare tensor, holds now; a number is how many it says."""
    module, attribute = holder(modules, name)
    if attribute is not None:
        number = number_of(module, attribute)
        if number is not None:
            return number
        tensor: Tensor = getattr(module, attribute)
        return tensor.shape[bare_axis(tensor, side)]
    return cuttable(module, name).size(module, side)
