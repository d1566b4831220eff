"""The channels that Torch-Pruning would keep, so that they can be cut, rebuilt and recovered as ours are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch_pruning as tp
from torch import Tensor, nn

from cosep.errors import ConfigError
from cosep.measurement import macs
from cosep.records import Group
from cosep.surgery import copied

IMPORTANCES = {
    "magnitude": tp.importance.MagnitudeImportance,
    "taylor": tp.importance.TaylorImportance,
    "fpgm": tp.importance.FPGMImportance,
}
TAYLOR_IMAGES = 1024  # calibration images behind the gradients, as many as our criterion of that name takes
STEPS = 20  # of the bisection for the ratio: more would not change a width


def kept_by_torch_pruning(
    importance: str,
    model: nn.Module,
    groups: Iterable[Group],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    share: float,
    globally: bool,
) -> dict[str, tuple[int, ...]]:
    """The channels of each group that stay, at the largest ratio whose MACs are at most this share.

    Everything is as its users have it by default: one step, one ratio for all layers or one threshold for all channels.
    It is held to the groups given, since it stops with a shape error on the padded shortcuts of CIFAR's ResNets.
    """
    if importance not in IMPORTANCES:
        raise ConfigError(f"there is no importance {importance!r} here; there are {', '.join(IMPORTANCES)}.")
    pairs = iter(batches)
    first = next(pairs)
    example = first[0][:1]
    gradients: dict[str, Tensor] = {}
    if importance == "taylor":
        gradients = _gradients(model, [first, *pairs])
    limit = share * macs(model, example)
    found = {group.name: tuple(range(group.width)) for group in groups}
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        kept, cut = _pruned(importance, model, groups, example, gradients, ratio=middle, globally=globally)
        if macs(cut, example) <= limit:
            found, high = kept, middle
        else:
            low = middle
    return found


def _gradients(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The gradient of the loss, summed over the first images."""
    network, seen = copied(model).eval(), 0
    for inputs, labels in batches:
        nn.functional.cross_entropy(network(inputs), labels, reduction="sum").backward()
        seen += len(labels)
        if seen >= TAYLOR_IMAGES:
            break
    return {name: each.grad for name, each in network.named_parameters() if each.grad is not None}


def _pruned(
    importance: str,
    model: nn.Module,
    groups: Iterable[Group],
    example: Tensor,
    gradients: Mapping[str, Tensor],
    *,
    ratio: float,
    globally: bool,
) -> tuple[dict[str, tuple[int, ...]], nn.Module]:
    """What stays of each group at a ratio, and the network that Torch-Pruning cut."""
    network = copied(model).eval()
    for name, parameter in network.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].clone()
    producers = {network.get_submodule(group.producers[0]): group for group in groups}
    layers = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    pruner = tp.pruner.BasePruner(
        network,
        example,
        importance=IMPORTANCES[importance](),
        global_pruning=globally,
        pruning_ratio=ratio,
        ignored_layers=[layer for layer in layers if layer not in producers],
    )
    kept = {group.name: set(range(group.width)) for group in groups}
    for step in pruner.step(interactive=True):
        root, channels = step[0].dep.target.module, step[0].idxs
        kept[producers[root].name] -= set(channels)
        step.prune()
    return {name: tuple(sorted(left)) for name, left in kept.items()}, network
