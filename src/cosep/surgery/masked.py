"""The check of a cut: the cut model computes what a masked copy does, the former model without the removed channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from cosep.errors import CosepError
from cosep.layers import places_now, written_out
from cosep.models.modes import evaluating
from cosep.records import Group, Layout
from cosep.surgery.cut import Chosen, copied, cut_group, cut_groups, layout_of
from cosep.surgery.in_training import wrong_in_training
from cosep.surgery.masking import Keep, difference, first_line, run_of

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


Checks = dict[str, MaskedCheck]  # by the names of the groups


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
) -> tuple[nn.Module, Layout, Checks]:
    """Cut and check many groups: the new model, its layout, and the check of every group.

    All are cut in one copy and compared with one masked copy. Only where these differ are the groups cut and checked
    one after the other, to find the ones that have to stay whole. layout: what earlier cuts left of the model.
    """
    layout = layout or {}
    chosen = list(chosen)
    current = written_out(model)
    probes = _Probes(example_input, tuple(inputs), seed)
    if (together := _cut_together(current, chosen, layout, probes)) is not None:
        return together
    checks: Checks = {}
    for group, kept in chosen:
        result = _cut_checked(current, group, kept, layout, probes, share=True)
        current, layout, checks[group.name] = result.model, result.layout, result.check
    return copied(current), layout, checks


def _cut_together(
    model: nn.Module, chosen: Chosen, layout: Layout, probes: _Probes
) -> tuple[nn.Module, Layout, Checks] | None:
    """All groups cut at once; None where not every one of them passes its check."""
    try:
        after, new_layout = cut_groups(model, chosen, layout)
    except CosepError:
        return None
    keep = {key: places_now(layout, *key, alive) for key, alive in new_layout.items()}
    checks = _checks(model, after, chosen, layout, keep, probes)
    return (after, new_layout, checks) if all(check.equal for check in checks.values()) else None


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
    `inputs`, and in training mode on two images, where nothing but dropout is random. `layout` is that of `before`. The
    masked copy is `before` with zeros for the consumers' weights of removed channels. Layers that compute statistics
    over channels (LayerNorm, GroupNorm, standardised weights) change by definition when channels go: the masked copy
    lets them see the kept channels only.
    """
    before = written_out(before)
    alive = layout_of(before, group, kept, layout)
    keep = {key: places_now(layout, *key, positions) for key, positions in alive.items()}
    probes = _Probes(example_input, tuple(inputs), seed)
    return _checks(before, after, [(group, kept)], layout, keep, probes)[group.name]


def _checks(before: nn.Module, after: nn.Module, chosen: Chosen, layout: Layout, keep: Keep, probes: _Probes) -> Checks:
    """The checks of groups that were cut together, each by the logits and the outputs of its own consumers."""
    if not chosen:
        return {}
    with evaluating(before, after):
        compared = partial(_compared, before, after, [group for group, _ in chosen], keep)
        checks = compared(probes.first)
        for images in probes.more():
            if all(check.equal for check in checks.values()):
                checks = _on_more(checks, compared, images)
    reason = ""
    if all(check.equal for check in checks.values()):
        tolerance = max(check.tolerance for check in checks.values())
        reason = wrong_in_training(before, after, chosen, layout, keep, probes.pair(), tolerance)
    return {name: replace(each, equal=False, reason=reason) for name, each in checks.items()} if reason else checks


_COPY_FAILS = "the masked copy fails"


def _on_more(checks: Checks, compared: Callable[[Tensor], Checks], images: Tensor) -> Checks:
    """Checks that held for one input, on more images: all at once, or one by one where that says nothing."""
    found = [compared(images)]
    if _says_nothing(found[0]):
        found = [one for one in map(compared, images.split(1)) if not _says_nothing(one)]
    for other in found:
        checks = {name: _joined(check, other[name]) for name, check in checks.items()}
        if not all(check.equal for check in checks.values()):
            break
    return checks


def _joined(check: MaskedCheck, later: MaskedCheck) -> MaskedCheck:
    worst = max(check.max_difference, later.max_difference)
    return replace(later, max_difference=worst, informative=check.informative or later.informative)


def _says_nothing(checks: Checks) -> bool:
    """Whether the former model does not accept an input, or overflows on it: that is not the cut's doing."""
    return any(c.reason.startswith(_COPY_FAILS) or math.isnan(c.max_difference) for c in checks.values())


def _compared(before: nn.Module, after: nn.Module, groups: Sequence[Group], keep: Keep, probe: Tensor) -> Checks:
    """Compare a cut model with its masked copy on one input; both are in evaluation mode."""
    tolerance = TOLERANCE.get(probe.dtype, 1e-4)

    def failed(amount: float, reason: str) -> Checks:
        return {group.name: MaskedCheck(False, amount, tolerance, reason) for group in groups}

    try:
        expected, expected_inner = run_of(before, after, groups, keep, probe, masked=True)
    except Exception as error:
        return failed(float("nan"), f"{_COPY_FAILS}: {first_line(error)}")
    try:
        found, found_inner = run_of(before, after, groups, keep, probe, masked=False)
    except Exception as error:
        return failed(float("inf"), f"the cut model fails: {first_line(error)}")
    images = len(probe)
    at_end = difference(expected, found, images)
    amounts = {
        name: difference(value, found_inner[name], images) if name in found_inner else float("inf")
        for name, value in expected_inner.items()
    }
    checks = {}
    for group in groups:
        own = {name: expected_inner[name] for name in group.consumers if name in expected_inner}
        worst, where = at_end, "the model's output"
        for name in own:
            # Never true again once it is NaN: that is the answer.
            if math.isnan(amounts[name]) or amounts[name] > worst:
                worst, where = amounts[name], name
        if worst <= tolerance:
            informative = any(bool(value.min() != value.max()) for value in own.values() if value.numel())
            checks[group.name] = MaskedCheck(True, worst, tolerance, informative=informative)
        else:
            checks[group.name] = MaskedCheck(False, worst, tolerance, _why_not(before, probe, worst, tolerance, where))
    return checks


def _why_not(before: nn.Module, probe: Tensor, worst: float, tolerance: float, where: str) -> str:
    """Why a cut does not pass, in words."""
    if math.isnan(worst):
        return f"{where} is not finite, so nothing can be compared"
    if difference(before(probe), before(probe)) > tolerance:
        return (
            "the model is random in evaluation mode, so nothing can be compared; a dropout by function needs "
            "training=self.training"
        )
    return f"differs from its masked copy by {worst:.2g} at {where}"
