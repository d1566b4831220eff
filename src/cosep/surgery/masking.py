"""A masked copy of a model, without building it: what the model computes when some of its channels carry nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cosep.layers import bare_axis, channel_axis, kind_of, mixing
from cosep.models.passes import first_of
from cosep.records import Group, Side

Keep = dict[tuple[str, Side], Tensor]  # the places that stay, of every side of the groups


def run_of(
    before: nn.Module,
    after: nn.Module,
    groups: Sequence[Group],
    keep: Keep,
    probe: Tensor,
    *,
    masked: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits and consumers' outputs (kept channels only) of the masked copy or of the cut model."""
    model = before if masked else after
    modules, cut_modules = dict(before.named_modules()), dict(after.named_modules())
    inner: dict[str, Tensor] = {}
    handles = []
    tensors: dict[str, Tensor] = {}
    try:
        for piece in (piece for group in groups for piece in group.slices if masked):
            module = modules.get(piece.module)
            kind = kind_of(module)
            if module is None or kind is None:
                continue  # a bare tensor of channels that go: what it makes of them is masked where it is read
            if kind.over_channels or (piece.side == "in" and not kind.plain(module)):
                hook = _selecting(piece.module, cut_modules[piece.module], keep)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
            elif piece.side == "in":
                tensors[f"{piece.module}.weight"] = _masked(module, keep[piece.module, "in"])
        for name in dict.fromkeys(name for group in groups for name in group.consumers):
            rows = keep.get((name, "out")) if masked else None
            target = modules[name] if masked else cut_modules[name]
            handles.append(target.register_forward_hook(_collecting(inner, name, target, rows)))
        output = functional_call(model, tensors, (probe,), tie_weights=False) if tensors else model(probe)
    finally:
        for handle in handles:
            handle.remove()
    return output, inner


def _masked(module: nn.Module, keep: Tensor) -> Tensor:
    """A consumer's weight with zeros for every input position that is not kept."""
    kind = mixing(module)
    gone = torch.ones(kind.size(module, "in"), dtype=torch.bool)
    gone[keep] = False
    return kind.masked(module, gone)


def _selecting(name: str, cut: nn.Module, keep: Keep) -> Callable[..., Tensor]:
    """A hook that lets a layer see only its kept channels, and puts what it makes of them back in place."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        x = first_of(args, kwargs)
        kind = kind_of(module)
        norm = kind is not None and kind.over_channels
        into = keep.get((name, "out" if norm else "in"))
        axis = _axis_of(module, x, norm)
        seen = x if into is None else x.index_select(axis, into.to(x.device))
        rows = keep.get((name, "out"))
        # Its tensors are taken from the former layer, not from the cut one: a wrong slice must not be its own witness.
        made = functional_call(cut, _sliced(module, None if norm else into, rows), (seen,))
        if rows is None:
            return made
        full = torch.zeros_like(output)
        return full.index_copy_(axis, rows.to(x.device), made.to(full.dtype))

    return hook


def _axis_of(module: nn.Module, x: Tensor, norm: bool) -> int:
    """Along which axis of its input a layer has its channels; layers derived from a LayerNorm differ in that."""
    kind = kind_of(module)
    if norm and kind is not None:
        size = kind.size(module, "out")
        fitting = [axis for axis in (1, -1) if x.shape[axis] == size]
        if len(fitting) == 1:
            return fitting[0]
    return channel_axis(module)


def _sliced(module: nn.Module, into: Tensor | None, rows: Tensor | None) -> dict[str, Tensor]:
    """A layer's parameters for kept inputs and outputs, written out plainly; {} for grouped ones, which are not."""
    kind = kind_of(module)
    if kind is None or getattr(module, "groups", 1) != 1:
        return {}
    tensors = {}
    for name, parameter in module.named_parameters(recurse=False):
        value = parameter.detach()
        for axis in range(value.ndim):
            if name in kind.tensors:
                side = kind.side_of(module, name, axis)
            else:
                side = "out" if axis == bare_axis(value) and value.numel() > 1 else None
            index = {"out": rows, "in": into, None: None}[side]
            if index is not None:
                value = value.index_select(axis, index.to(value.device))
        tensors[name] = value
    return tensors


def _collecting(inner: dict[str, Tensor], name: str, module: nn.Module, rows: Tensor | None) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, output: Tensor) -> None:
        value = output.detach()
        inner[name] = value.clone() if rows is None else value.index_select(channel_axis(module), rows.to(value.device))

    return hook


def difference(expected: Tensor, found: Tensor, images: int = 1) -> float:
    """The largest difference relative to the largest value; infinite for other shapes, NaN where not finite.

    With several images the largest value is each image's own, or else one of a small scale could hide behind others.
    """
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    if not bool(expected.isfinite().all() and found.isfinite().all()):
        return float("nan")
    rows = images if expected.ndim > 1 and len(expected) == images else 1
    expected, found = expected.double().reshape(rows, -1), found.double().reshape(rows, -1)
    scale = expected.abs().amax(1)
    apart = (expected - found).abs().amax(1)
    return float(torch.where(scale > 0, apart / scale, apart).max())


def first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
