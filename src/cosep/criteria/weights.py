"""Criteria that look at weights, and at their gradients. The only home of the package `torch_pruning`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cosep.criteria.view import GroupView
from cosep.data.batches import pair_of
from cosep.errors import ConfigError
from cosep.groups.numbering import output_columns
from cosep.layers import channel_axis, is_batchnorm, mixing
from cosep.models.modes import logits_of, training_flags_kept

Name = Literal["l1", "l2", "bn-scale", "taylor"]
TAYLOR_IMAGES = 1024  # calibration images behind the gradients: our choice, as Torch-Pruning leaves it to the user

# A layer, and which of its outputs (width,) are the group's channels.
Outputs = Sequence[tuple[nn.Module, Tensor]]


class _Item(NamedTuple):
    """One layer of a group, in the form in which Torch-Pruning's criteria read it."""

    dep: Any
    idxs: list[int]
    roots: list[int]

    @property
    def root_idxs(self) -> list[int]:
        return self.roots

    def __iter__(self) -> Any:  # they unpack two values
        return iter((self.dep, self.idxs))


def importance(criterion: Name, outputs: Outputs) -> Tensor:
    """Torch-Pruning's importance of a group's channels, (width,), from the filters that make them.

    l1, l2: the norm of the filter (Li et al. 2017). bn-scale: |gamma| of BatchNorm (Liu et al. 2017), for which the
    outputs are BatchNorms. taylor: sum of |weight x gradient|, Torch-Pruning's form of what Molchanov et al. (2019)
    square and average over batches; gradients must be there. Torch-Pruning would add what consumers and norms weigh;
    the published criteria look at the filters alone.
    """
    try:
        import torch_pruning as tp
        from torch_pruning.dependency.dependency import Dependency
        from torch_pruning.dependency.node import Node
    except ImportError as error:
        raise ConfigError(
            f"{criterion} is taken from Torch-Pruning, which is not installed. "
            "Install it with: pip install 'cosep[compare]'."
        ) from error
    if not outputs:
        raise ConfigError(f"{criterion} finds no layer to look at in this group. Compare with another criterion.")
    items = []
    for module, columns in outputs:
        _refuse_unreadable(criterion, module)
        if is_batchnorm(module):
            handler = tp.prune_batchnorm_out_channels
        elif channel_axis(module) == -1:
            handler = tp.prune_linear_out_channels
        else:
            handler = tp.prune_conv_out_channels
        node = Node(module, None)
        places, roots = columns.sort()  # some criteria sort the places themselves, and would lose the order
        items.append(_Item(Dependency(handler, handler, node, node), places.tolist(), roots.tolist()))
    criteria = {
        "l1": tp.importance.MagnitudeImportance(p=1),
        "l2": tp.importance.MagnitudeImportance(p=2),
        "bn-scale": tp.importance.BNScaleImportance(),
        "taylor": tp.importance.TaylorImportance(),
    }
    found = criteria[criterion](items)
    return torch.as_tensor(found).detach().double().cpu()


def _refuse_unreadable(criterion: Name, module: nn.Module) -> None:
    """Refuse in words what Torch-Pruning would read wrongly or fail at."""
    kind, weight = type(module).__name__, getattr(module, "weight", None)
    if weight is None:
        raise ConfigError(f"{criterion} looks at weights, and a {kind} of this group has none. Leave {criterion} out.")
    if criterion == "taylor" and weight.grad is None:
        raise ConfigError(
            f"taylor needs gradients, and a {kind} of this group has none: is it frozen? Leave taylor out."
        )
    if getattr(module, "transposed", False) and getattr(module, "groups", 1) > 1:
        raise ConfigError(f"{criterion} cannot be read from a {kind} in groups. Leave {criterion} out.")


def fpgm(outputs: Outputs) -> Tensor:
    """The sum of each filter's distances to all others, (width,): He et al. 2019 remove the smallest, near the median.

    Not taken from Torch-Pruning 1.6, which measures the distances between the filters' squared entries.
    """
    total = torch.zeros(len(outputs[0][1]), dtype=torch.float64)
    for module, columns in outputs:
        filters = mixing(module).filters(module)[columns]
        total += torch.cdist(filters, filters).sum(1)
    return total


def with_gradients(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor | None]]) -> nn.Module:
    """The model with the gradients of the cross-entropy, summed over the batches, in evaluation mode."""
    model.zero_grad()
    with training_flags_kept(model):
        model.eval()
        for batch in batches:
            inputs, labels = pair_of(batch, "a batch of the calibration loader")
            logits = logits_of(model, inputs)
            nn.functional.cross_entropy(logits, labels.to(logits.device), reduction="sum").backward()
    return model


def by_l1(view: GroupView) -> Tensor:
    """The L1 norm of each channel's filters."""
    return importance("l1", view.outputs())


def by_l2(view: GroupView) -> Tensor:
    """The L2 norm of each channel's filters."""
    return importance("l2", view.outputs())


def by_fpgm(view: GroupView) -> Tensor:
    """How far each channel's filters are from all others."""
    return fpgm(view.outputs())


def by_batchnorm(view: GroupView) -> Tensor:
    """The scales of the BatchNorms behind the channels."""
    names = dict.fromkeys(piece.module for piece in view.group.slices if piece.side == "out")
    modules = dict(view.model.named_modules())
    norms = [name for name in names if is_batchnorm(modules.get(name))]
    return importance(
        "bn-scale",
        [
            (view.model.get_submodule(name), columns)
            for name in norms
            for columns in output_columns(view.group, name, view.layout)
        ],
    )


def by_taylor(view: GroupView) -> Tensor:
    """The first-order effect of each channel on the loss; the gradients of one pass serve all groups."""

    def gather() -> dict[str, Tensor]:
        try:
            with_gradients(view.model, view.images(TAYLOR_IMAGES))
            return {group.name: importance("taylor", view.outputs(group)) for group in view.network.groups}
        finally:
            view.model.zero_grad()

    return view.network.once("taylor", gather)[view.group.name]
