"""The check of a cut: the cut model computes what a masked copy does, the former model without the removed channels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cosep.errors import CosepError
from cosep.layers import bare_axis, channel_axis, kind_of, mixing, places_now, written_out
from cosep.models.modes import evaluating
from cosep.models.passes import first_of
from cosep.records import Group, Layout, Side
from cosep.surgery.cut import copied, cut_group, layout_of

# Slices change the order of sums, nothing else: a few thousand roundings of the largest value.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class MaskedCheck:
    """Whether a cut model agrees with its masked copy, and by how much they differ, relative to the largest value."""

    equal: bool
    max_difference: float
    tolerance: float
    reason: str = ""  # in words, where they are not equal
    informative: bool = True  # False where every consumer's output is constant, so that nothing could have differed


@dataclass(frozen=True, eq=False)
class CutResult:
    """The model after a cut that passed its check; or, where it did not, the model and layout as they were."""

    model: nn.Module
    layout: Layout
    check: MaskedCheck

    @property
    def done(self) -> bool:
        return self.check.equal


def cut_checked(
    model: nn.Module,
    group: Group,
    kept: Sequence[int],
    layout: Layout,
    example_input: Tensor,
    *,
    inputs: Sequence[Tensor] = (),
    seed: int = 0,
) -> CutResult:
    """Cut a group and check it; a cut that fails or computes something else is taken back, and the check says why."""
    model = written_out(model)
    return _cut_checked(model, group, kept, layout, _Probes(example_input, tuple(inputs), seed), share=False)


def cut_all_checked(
    model: nn.Module,
    chosen: Iterable[tuple[Group, Sequence[int]]],
    example_input: Tensor,
    *,
    layout: Layout | None = None,
    inputs: Sequence[Tensor] = (),
    seed: int = 0,
) -> tuple[nn.Module, Layout, dict[str, MaskedCheck]]:
    """Cut and check many groups one after the other: the new model, its layout, and the check of every group.

    layout: what earlier cuts left of the model.
    """
    layout = layout or {}
    checks: dict[str, MaskedCheck] = {}
    current = written_out(model)
    probes = _Probes(example_input, tuple(inputs), seed)
    for group, kept in chosen:
        result = _cut_checked(current, group, kept, layout, probes, share=True)
        current, layout, checks[group.name] = result.model, result.layout, result.check
    return copied(current), layout, checks


def _cut_checked(
    model: nn.Module, group: Group, kept: Sequence[int], layout: Layout, probes: _Probes, share: bool
) -> CutResult:
    try:
        after, new_layout = cut_group(model, group, kept, layout, share=share)
    except CosepError as error:
        return CutResult(model, layout, MaskedCheck(False, float("nan"), 0.0, str(error)))
    check = check_cut(model, after, group, kept, layout, probes.example, inputs=probes.inputs, seed=probes.seed)
    return CutResult(after, new_layout, check) if check.equal else CutResult(model, layout, check)


@dataclass(frozen=True, eq=False)
class _Probes:
    """What a cut is checked on: random input of several scales, the example itself, and images that were given."""

    example: Tensor
    inputs: tuple[Tensor, ...]
    seed: int

    @property
    def first(self) -> Tensor:
        """Random input of the example's shape, device and type, at most two images; whole numbers are its own."""
        return self._random(min(2, len(self.example)), 1.0, 0)

    def more(self) -> list[Tensor]:
        """Images of other scales, of the example and of the given inputs: all of the example's shape in one batch."""
        scaled = [self._random(1, 0.1, 1), self._random(1, 10.0, 2)] if self.example.is_floating_point() else []
        images = [*scaled, *self.example[:2].split(1), *(x[:1].to(self.example) for x in self.inputs)]
        alike = [image for image in images if image.shape == images[0].shape]
        return [torch.cat(alike), *(image for image in images if image.shape != images[0].shape)]

    def pair(self) -> Tensor:
        """Two images, as BatchNorm needs them in training."""
        first = self.first
        return first if len(first) > 1 else torch.cat([first, self.example[:1]])

    def _random(self, images: int, scale: float, number: int) -> Tensor:
        if not self.example.is_floating_point():
            return self.example[:images]
        generator = torch.Generator().manual_seed(self.seed + number)
        noise = torch.randn((images, *self.example.shape[1:]), generator=generator) * scale
        return noise.to(device=self.example.device, dtype=self.example.dtype)


def check_cut(
    before: nn.Module,
    after: nn.Module,
    group: Group,
    kept: Sequence[int],
    layout: Layout,
    example_input: Tensor,
    *,
    inputs: Sequence[Tensor] = (),
    seed: int = 0,
) -> MaskedCheck:
    """Compare a cut model with its masked copy: their logits and the outputs of the group's consumers.

    They are compared on random input of three scales, on images of the example, and on the first image of each of
    `inputs`; the cut model must also run in training mode where the former one does. `layout` is that of `before`. The
    masked copy is `before` with zeros for the consumers' weights of removed channels. Layers that compute statistics
    over channels (LayerNorm, GroupNorm, standardised weights) change by definition when channels go: the masked copy
    lets them see the kept channels only.
    """
    before = written_out(before)
    alive = layout_of(before, group, kept, layout)
    keep = {key: places_now(layout, *key, positions) for key, positions in alive.items()}
    probes = _Probes(example_input, tuple(inputs), seed)
    with evaluating(before, after):
        check = _compared(before, after, group, keep, probes.first)
        for images in probes.more():
            if check.equal:
                check = _on_more(check, partial(_compared, before, after, group, keep), images)
    reason = _fails_in_training(before, after, probes.pair()) if check.equal else ""
    return replace(check, equal=False, reason=reason) if reason else check


_COPY_FAILS = "the masked copy fails"


def _on_more(check: MaskedCheck, compared: Callable[[Tensor], MaskedCheck], images: Tensor) -> MaskedCheck:
    """A check that held for one input, on more images: all at once, or one by one where that says nothing."""
    found = [compared(images)]
    if _says_nothing(found[0]):
        found = [one for one in map(compared, images.split(1)) if not _says_nothing(one)]
    for other in found:
        worst = max(check.max_difference, other.max_difference)
        check = replace(other, max_difference=worst, informative=check.informative or other.informative)
        if not check.equal:
            break
    return check


def _says_nothing(check: MaskedCheck) -> bool:
    """Whether the former model does not accept an input, or overflows on it: that is not the cut's doing."""
    return check.reason.startswith(_COPY_FAILS) or math.isnan(check.max_difference)


def _compared(
    before: nn.Module, after: nn.Module, group: Group, keep: dict[tuple[str, Side], Tensor], probe: Tensor
) -> MaskedCheck:
    """Compare a cut model with its masked copy on one input; both are in evaluation mode."""
    tolerance = TOLERANCE.get(probe.dtype, 1e-4)
    try:
        expected, expected_inner = _run(before, after, group, keep, probe, masked=True)
    except Exception as error:
        return MaskedCheck(False, float("nan"), tolerance, f"{_COPY_FAILS}: {_first_line(error)}")
    try:
        found, found_inner = _run(before, after, group, keep, probe, masked=False)
    except Exception as error:
        return MaskedCheck(False, float("inf"), tolerance, f"the cut model fails: {_first_line(error)}")
    images = len(probe)
    worst, where = _difference(expected, found, images), "the model's output"
    for name, value in expected_inner.items():
        difference = _difference(value, found_inner[name], images) if name in found_inner else float("inf")
        if math.isnan(difference) or difference > worst:  # never true again once it is NaN: that is the answer
            worst, where = difference, name
    if worst <= tolerance:
        informative = any(bool(value.min() != value.max()) for value in expected_inner.values() if value.numel())
        return MaskedCheck(True, worst, tolerance, informative=informative)
    if math.isnan(worst):
        return MaskedCheck(False, worst, tolerance, f"{where} is not finite, so nothing can be compared")
    if _difference(before(probe), before(probe)) > tolerance:
        reason = (
            "the model is random in evaluation mode, so nothing can be compared; a dropout by function needs "
            "training=self.training"
        )
        return MaskedCheck(False, worst, tolerance, reason)
    return MaskedCheck(False, worst, tolerance, f"differs from its masked copy by {worst:.2g} at {where}")


def _fails_in_training(before: nn.Module, after: nn.Module, probe: Tensor) -> str:
    """Why a cut model cannot be trained though the former one can, in words; "" where it can.

    Buffers that only training fills, and layers that only training runs, are cut by what a trace has seen of them.
    """
    try:
        _trained(after, probe)
    except Exception as error:
        try:
            _trained(before, probe)
        except Exception:
            return ""  # nor could the former one, on this input
        return f"the cut model fails in training mode: {_first_line(error)}"
    return ""


def _trained(model: nn.Module, probe: Tensor) -> None:
    """Run a copy of a model in training mode: running statistics, counters and chance stay as they are."""
    private = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # a pass changes no parameter
    with torch.no_grad(), torch.random.fork_rng(devices=[probe.device] if probe.is_cuda else []):
        private.train()(probe)


def _run(
    before: nn.Module,
    after: nn.Module,
    group: Group,
    keep: dict[tuple[str, Side], Tensor],
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
        for piece in group.slices if masked else ():
            module = modules.get(piece.module)
            kind = kind_of(module)
            if module is None or kind is None:
                continue  # a bare tensor of channels that go: what it makes of them is masked where it is read
            if kind.over_channels or (piece.side == "in" and not kind.plain(module)):
                hook = _selecting(piece.module, cut_modules[piece.module], keep)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
            elif piece.side == "in":
                tensors[f"{piece.module}.weight"] = _masked(module, keep[piece.module, "in"])
        for name in group.consumers:
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


def _selecting(name: str, cut: nn.Module, keep: dict[tuple[str, Side], Tensor]) -> Callable[..., Tensor]:
    """A hook that lets a layer see only its kept channels, and puts what it makes of them back in place."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        x = first_of(args, kwargs)
        kind = kind_of(module)
        norm = kind is not None and kind.over_channels
        into = keep.get((name, "out" if norm else "in"))
        axis = channel_axis(module)
        seen = x if into is None else x.index_select(axis, into.to(x.device))
        rows = keep.get((name, "out"))
        # Its tensors are taken from the former layer, not from the cut one: a wrong slice must not be its own witness.
        made = functional_call(cut, _sliced(module, None if norm else into, rows), (seen,))
        if rows is None:
            return made
        full = torch.zeros_like(output)
        return full.index_copy_(axis, rows.to(x.device), made.to(full.dtype))

    return hook


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


def _difference(expected: Tensor, found: Tensor, images: int = 1) -> float:
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
    difference = (expected - found).abs().amax(1)
    return float(torch.where(scale > 0, difference / scale, difference).max())


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
