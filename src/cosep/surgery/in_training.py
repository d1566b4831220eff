"""The check of a cut in training mode: the cut model computes what its masked copy does there too.

Buffers that only training fills, and layers that only training runs, are cut by what a trace has seen of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from cosep.records import Layout
from cosep.surgery.cut import Chosen, cut_groups
from cosep.surgery.masking import Keep, difference, first_line, run_of

# BatchNorm over few values magnifies rounding. How much is measured, by an input that differs by a few roundings.
ROUNDINGS = 16
MAGNIFIED = 30.0  # a cut may differ by this many times what that makes
TELLING = 0.1  # beyond this nothing can be said: rounding is magnified too much, or chance has a part


def wrong_in_training(
    before: nn.Module,
    after: nn.Module,
    chosen: Chosen,
    layout: Layout,
    keep: Keep,
    probe: Tensor,
    tolerance: float,
) -> str:
    """Why a cut model cannot be trained as the former one can, in words; "" where it can, or nothing can be said.

    Compared are all tensors that a pass returns, the outputs of the groups' consumers, and the buffers that the pass
    leaves behind. Dropout is off; where something else is random, the cut model must only run.
    """
    groups = [group for group, _ in chosen]

    def passed(masked: bool, images: Tensor = probe, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
        models = _private(before), _private(after)
        with torch.no_grad(), torch.random.fork_rng(devices=[probe.device] if probe.is_cuda else []):
            torch.manual_seed(seed)
            output, inner = run_of(*models, groups, keep, images, masked=masked)
        return models[0 if masked else 1], {**dict(_tensors(output, "the model's output")), **inner}

    try:
        found_model, found = passed(masked=False)
    except Exception as error:
        return f"the cut model fails in training mode: {first_line(error)}" if _runs(before, probe) else ""
    try:
        masked_model, expected = passed(masked=True)
        sliced, _ = cut_groups(masked_model, chosen, layout, share=True)
        left, cut_left = (
            {f"{name} after a pass": buffer for name, buffer in model.named_buffers()}
            for model in (sliced, found_model)
        )
        amount, where = max(_differences(expected | left, found | cut_left, len(probe)), default=(0.0, ""))
        if amount <= tolerance:
            return ""
        moved = probe * (1 + ROUNDINGS * torch.finfo(probe.dtype).eps) if probe.is_floating_point() else probe
        again = passed(masked=True, images=moved, seed=1)[1]
    except Exception:
        return ""  # the former model cannot be trained on this input
    noise = max((part for part, _ in _differences(expected, again, len(probe))), default=0.0)
    if amount <= MAGNIFIED * noise or MAGNIFIED * noise > TELLING:
        return ""
    return f"differs from its masked copy by {amount:.2g} at {where} in training mode"


def _private(model: nn.Module) -> nn.Module:
    """A copy in training mode, dropout off: running statistics and counters of the model itself stay as they are."""
    private = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # a pass changes no parameter
    for module in private.train().modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    return private


def _runs(model: nn.Module, probe: Tensor) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[probe.device] if probe.is_cuda else []):
            _private(model)(probe)
    except Exception:
        return False
    return True


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in what a model returns, with its place."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for number, part in enumerate(value):
            yield from _tensors(part, f"{name}[{number}]")


def _differences(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor], images: int
) -> Iterator[tuple[float, str]]:
    """How far values of the same place are apart, and the place; what is not finite says nothing and is left out."""
    for name, value in expected.items():
        amount = difference(value, found[name], images) if name in found else math.inf
        if not math.isnan(amount):
            yield amount, name
