"""Cut channels out of a model by recorded positions: which tensors of which layer are sliced, and what else changes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import PlanError, TraceError
from cosep.layers import (
    INNER,
    TensorCut,
    bare_axis,
    cuttable,
    forget_computed,
    holder,
    number_of,
    places_now,
    resize_bare,
    set_number,
    side_size,
    written_out,
)
from cosep.records import Group, Layout, Plan, Side

SideKey = tuple[str, Side]
Chosen = Sequence[tuple[Group, Sequence[int]]]  # groups, and the channels that they keep


def cut_group(
    model: nn.Module, group: Group, kept: Sequence[int], layout: Layout, *, share: bool = False
) -> tuple[nn.Module, Layout]:
    """A new model without the group's other channels, and its layout; other groups may have been cut already.

    With `share` whatever is not cut is the given model's own: for steps on the way to a model of one's own.
    """
    return cut_groups(model, [(group, kept)], layout, share=share)


def cut_groups(model: nn.Module, chosen: Chosen, layout: Layout, *, share: bool = False) -> tuple[nn.Module, Layout]:
    """A new model without the other channels of several groups, all cut in one copy of the model; as `cut_group`."""
    model = written_out(model)
    after: dict[SideKey, tuple[int, ...]] = dict(layout)
    for group, kept in chosen:
        after.update(layout_of(model, group, kept, after))
    surgeon = _Surgeon(_shared_copy(model, [group for group, _ in chosen]) if share else copied(model))
    for key, alive in after.items():
        if layout.get(key) != alive:
            surgeon.slice(key, places_now(layout, *key, alive), grouped=(key[0], "in") in after)
    return surgeon.model, after


def layout_of(model: nn.Module, group: Group, kept: Sequence[int], layout: Layout) -> Layout:
    """What stays alive on each of the group's sides if these channels are kept, in the uncut model's numbering."""
    modules = dict(written_out(model).named_modules(remove_duplicate=False))
    keeping = set(kept)
    removed = torch.tensor([c for c in range(group.width) if c not in keeping], dtype=torch.int64)
    sides: dict[SideKey, tuple[int, ...]] = {}
    for piece in group.slices:
        key: SideKey = (piece.module, piece.side)
        before = layout.get(key, range(side_size(modules, *key)))
        gone = set(piece.positions[removed].reshape(-1).tolist())
        sides[key] = tuple(position for position in before if position not in gone)
        if not sides[key]:
            raise PlanError(
                f"nothing would be left of {piece.module} ({piece.side}); keep at least one of {group.name}'s channels."
            )
    return sides


def apply_layout(model: nn.Module, layout: Layout) -> nn.Module:
    """A new model from an uncut one, every side of the layout sliced at once: no tracing, no example input."""
    surgeon = _Surgeon(copied(model))
    entered = {name for name, side in layout if side == "in"}
    for key, alive in layout.items():
        size = side_size(surgeon.modules, *key)
        if not alive or list(alive) != sorted(set(alive)) or alive[0] < 0 or alive[-1] >= size:
            raise PlanError(
                f"the layout keeps {len(alive)} positions of {key[0]} ({key[1]}), which has {size}; "
                "they must be ascending, different and within it. Was the plan made for another model?"
            )
    for key, alive in layout.items():
        surgeon.slice(key, torch.tensor(alive, dtype=torch.int64), grouped=key[0] in entered)
    return surgeon.model


def cut(model: nn.Module, plan: Plan, groups: Iterable[Group] | None = None) -> nn.Module:
    """A new, smaller model as the plan says; with a layout in the plan the groups are not needed."""
    if plan.layout:
        return apply_layout(model, plan.layout)
    by_name = {group.name: group for group in groups or ()}
    layout: Layout = {}
    for chosen in plan.groups:
        if len(chosen.kept) == chosen.width:
            continue
        if chosen.group not in by_name:
            raise PlanError(f"the plan cuts {chosen.group!r} but has no layout; give the groups it was made for.")
        model, layout = cut_group(model, by_name[chosen.group], chosen.kept, layout)
    return copied(model) if not layout else model


def _shared_copy(model: nn.Module, groups: Iterable[Group]) -> nn.Module:
    """A copy of the modules that the groups' cuts change and of those around them; all else is shared."""
    names = dict(model.named_modules(remove_duplicate=False))
    touched: list[nn.Module] = []
    for piece in (piece for group in groups for piece in group.slices):
        module, attribute = holder(names, piece.module)
        # A module that is told its inner width changes what it calls, too.
        touched += module.modules() if attribute is not None and attribute.startswith(INNER) else [module]
    held = {id(t) for module in touched for t in _own(module)}
    changed = {id(module) for module in touched} | {id(m) for m in names.values() if held & {id(t) for t in _own(m)}}
    around: set[int] = set()
    for name, module in names.items():
        if id(module) in changed:
            parts = name.split(".") if name else []
            around.update(id(names[".".join(parts[:i])]) for i in range(len(parts) + 1))
    memo: dict[int, Any] = {id(m): m for m in names.values() if id(m) not in around}
    memo.update((id(t), t) for t in [*model.parameters(), *model.buffers()])
    return copy.deepcopy(model, memo)


def _own(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a module itself."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def copied(model: nn.Module) -> nn.Module:
    """A copy with attention written out, and no gradients: theirs would be of another shape, and are the caller's."""
    model = written_out(model)
    gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
    try:
        for parameter in gradients:
            parameter.grad = None
        copies = copy.deepcopy(model)
    except Exception as error:
        raise TraceError(
            f"the model cannot be copied ({type(error).__name__}: {error}). "
            "Remove tensors that are results of computations from its attributes, or detach them."
        ) from error
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
    own = set(model.parameters())
    if copies is model or not own.isdisjoint(copies.parameters()):
        raise TraceError(
            f"a copy of the model is the model itself, or shares its weights, so it would be cut instead of a copy. "
            f"Correct or remove the `__deepcopy__` of {type(model).__name__} or of a module in it."
        )
    return copies


class _Surgeon:
    """Slices the tensors of one model in place, each only once however many layers share it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.holders: dict[int, list[tuple[dict[str, Any], str]]] = defaultdict(list)
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        self.holders[id(tensor)].append((table, name))
        self.done: dict[tuple[int, int], Tensor] = {}  # tensors that were sliced already, by the id of the new one
        self.visited: set[tuple[int, str]] = set()

    def slice(self, key: SideKey, index: Tensor, *, grouped: bool) -> None:
        """Keep only these positions of a side; `grouped` says that a convolution with groups is not a depthwise one."""
        name, side = key
        module, attribute = holder(self.modules, name)
        if (id(module), f"{attribute}.{side}") in self.visited:
            return
        self.visited.add((id(module), f"{attribute}.{side}"))
        if attribute is not None and number_of(module, attribute) is not None:
            set_number(module, attribute, len(index))
            return
        if attribute is not None:
            tensor: Tensor = getattr(module, attribute)
            axis = bare_axis(tensor, side)
            self._take(module, TensorCut(attribute, axis, index))
            resize_bare(module, tensor.shape[axis], len(index))
            forget_computed(module)
            return
        kind = cuttable(module, name)
        refusal = kind.refusal(module, side, index, grouped)
        if refusal:
            raise PlanError(f"{name} {refusal}")
        for cut_of_one in kind.cuts(module, side, index, grouped):
            self._take(module, cut_of_one)
        kind.resize(module, side, len(index), grouped)

    def _take(self, module: nn.Module, wanted: TensorCut) -> None:
        """Replace a parameter or buffer, wherever the model holds it, by its slice; absent ones are left absent."""
        old: Tensor | None = module._parameters.get(wanted.name)
        old = module._buffers.get(wanted.name) if old is None else old
        if old is None or old.ndim == 0:
            return
        axis = wanted.axis % old.ndim
        if (id(old), axis) in self.done:
            return  # shared with a layer that was cut before
        with torch.no_grad():
            index = wanted.index.to(old.device)
            new = old.index_select(axis, index) if wanted.blocks == 1 else _take_grouped(old, index, wanted.blocks)
            new = new.contiguous(memory_format=_format(old))
        if isinstance(old, nn.Parameter):
            parameter = nn.Parameter(new, requires_grad=old.requires_grad)
            parameter.__dict__.update(old.__dict__)
            new = parameter
        holders = self.holders.pop(id(old))
        for table, attribute in holders:
            table[attribute] = new
        self.holders[id(new)] = holders
        for (tensor, sliced), kept_alive in list(self.done.items()):
            if kept_alive is old:
                self.done[id(new), sliced] = new
                del self.done[tensor, sliced]
        self.done[id(new), axis] = new


def _take_grouped(weight: Tensor, index: Tensor, groups: int) -> Tensor:
    """The columns of a grouped convolution's weight, (rows, size / groups, ...), for kept positions of all groups."""
    per = weight.shape[1]
    blocks = weight.unflatten(0, (groups, -1))
    local = index.reshape(groups, -1) - torch.arange(groups, device=index.device).unsqueeze(1) * per
    return torch.cat([block.index_select(1, columns) for block, columns in zip(blocks, local, strict=True)])


def _format(tensor: Tensor) -> torch.memory_format:
    """The memory format that a slice of the tensor should have."""
    if tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.ndim == 5 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def merged_layout(*layouts: Mapping[SideKey, tuple[int, ...]]) -> Layout:
    """What is alive in all of the layouts: groups do not overlap, so the order does not matter."""
    result: dict[SideKey, tuple[int, ...]] = {}
    for layout in layouts:
        for key, alive in layout.items():
            both = set(alive)
            result[key] = tuple(p for p in result[key] if p in both) if key in result else alive
    return result
