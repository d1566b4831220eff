"""From a model and an example input to its groups: channels that stay or go together, in order of execution."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import TraceError
from cosep.groups.flow import Flow, SideKey, follow
from cosep.layers import HEADS, INNER_WIDTHS, forget_computed, kind_of, number_of, written_out
from cosep.models.acceptance import check_structure
from cosep.models.modes import no_tensor
from cosep.records import Group, Scope, Side, Slice

SideMembers = Mapping[SideKey, list[int]]  # one channel: its positions on every side that holds it


def find_groups(model: nn.Module, example_input: Tensor, *, time_limit: float = 120.0) -> tuple[Group, ...]:
    """The groups of a model (batch, ...) -> (batch, classes), in order of execution; the model is left as it is."""
    check_structure(model)
    check_example(example_input)
    try:
        private = copy.deepcopy(model)
    except Exception as error:
        raise TraceError(
            f"the model cannot be copied ({type(error).__name__}: {error}). "
            "Remove tensors that are results of computations from its attributes, or detach them."
        ) from error
    private = written_out(private).eval()
    for module in private.modules():
        forget_computed(module)
    flow = Flow(private)
    _within(time_limit, flow, example_input.detach()[:1].clone())
    return assemble(flow)


def groups_in_scope(groups: Iterable[Group], scope: Scope = "interior") -> tuple[Group, ...]:
    """The groups that a scope may prune."""
    return tuple(g for g in groups if g.scope == "interior" or (scope == "all" and g.scope == "all"))


def check_example(example_input: Tensor) -> None:
    """Refuse what is no input of a network."""
    if not isinstance(example_input, Tensor) or example_input.ndim < 2 or example_input.shape[0] < 1:
        found = tuple(example_input.shape) if isinstance(example_input, Tensor) else type(example_input).__name__
        raise TraceError(
            f"the example input is {found}; a tensor with a batch axis in front is needed, like (1, 3, 224, 224)."
        )


def _within(time_limit: float, flow: Flow, example: Tensor) -> None:
    """Follow the channels in a thread of its own, so that a model that never ends cannot hold us up."""
    deadline = time.monotonic() + time_limit
    outcome: dict[str, BaseException] = {}

    def work() -> None:
        try:
            _follow_all(flow, example, deadline)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(time_limit + 1.0)
    error = outcome.get("error")
    if thread.is_alive() or isinstance(error, TimeoutError):
        last = max(flow.order, key=flow.order.__getitem__, default="") or "the model"
        raise TraceError(
            f"the model did not finish within {time_limit:g} s; it was in {last} or behind it. "
            "Use a smaller example input or a longer time limit."
        )
    if error is not None:
        raise error


def _follow_all(flow: Flow, example: Tensor, deadline: float) -> None:
    output = follow(flow, example, deadline)
    if not isinstance(output, Tensor):
        raise TraceError(no_tensor(output))
    if output.ndim < 2 or output.shape[0] != example.shape[0]:
        raise TraceError(
            f"the model returns shape {tuple(output.shape)} for one input; logits (1, classes) are needed."
        )
    _follow_training(flow, example, deadline)


def _follow_training(flow: Flow, example: Tensor, deadline: float) -> None:
    """Some layers run, and some buffers are filled, in training mode only: a second pass learns what they tie."""
    calls, macs, places = Counter(flow.calls), Counter(flow.macs), dict(flow.places)
    attended = list(flow.attended)
    for module in flow.model.train().modules():
        forget_computed(module)
    try:
        with torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
            follow(flow, torch.cat([example, example]), deadline, returned="returned in training")
    except (TraceError, TimeoutError):
        pass  # a model that cannot be trained on this input is still a model that can be evaluated
    finally:
        flow.model.eval()
        for name in list(flow.calls):
            flow.calls[name] = max(calls[name], 1)
        flow.macs, flow.places = macs, {**flow.places, **places}
        flow.attended = attended


def assemble(flow: Flow) -> tuple[Group, ...]:
    """Turn labels into groups: one for every set of channels that live on the same sides in the same way."""
    _tie_shared_parameters(flow)
    channels: dict[int, dict[SideKey, list[int]]] = defaultdict(lambda: defaultdict(list))
    for key, labels in flow.sides.items():
        for position, root in enumerate(flow.labels.canonical(labels).tolist()):
            channels[root][key].append(position)
    alike: dict[Any, list[int]] = defaultdict(list)
    for root, members in channels.items():
        if any(_produces(flow, key) for key in members):
            held = tuple(sorted((key, len(positions)) for key, positions in members.items()))
            alike[held, flow.labels.fixed(root), flow.labels.notes(root)].append(root)
    groups = [_group(flow, [channels[r] for r in roots], fixed, notes) for (_, fixed, notes), roots in alike.items()]
    groups.sort(
        key=lambda g: (flow.order.get(g.producers[0], len(flow.order)), int(_slice(g, g.producers[0]).positions[0, 0]))
    )
    return _balanced(flow, _unique_names(groups))


def _tie_shared_parameters(flow: Flow) -> None:
    """Layers that share a parameter are cut together."""
    for first, names in flow.aliases.items():
        for other in names[1:]:
            a, b = (flow.first[name.rpartition(".")[0]] for name in (first, other))
            sides: tuple[Side, ...] = ("out",) if first.endswith(".bias") else ("out", "in")
            for side in sides:
                keys: list[SideKey] = [(a, side), (b, side)]
                if a != b and any(k in flow.sides for k in keys) and type(flow.modules[a]) is type(flow.modules[b]):
                    flow.labels.merge(flow.side(keys[0]), flow.side(keys[1]), "shares its weights with constants")
                    flow.labels.note(flow.side(keys[0]), "shared")


def _produces(flow: Flow, key: SideKey) -> bool:
    """Whether a side makes channels out of other ones."""
    module = flow.modules.get(key[0])
    kind = kind_of(module)
    return key[1] == "out" and kind is not None and not kind.passes(module)


def _group(flow: Flow, members: list[dict[SideKey, list[int]]], fixed: str | None, notes: frozenset[str]) -> Group:
    order = flow.order
    keys = sorted(
        members[0], key=lambda k: (order.get(k[0], order.get(k[0].rpartition(".")[0], len(order))), k[1] == "in")
    )
    producers = [k[0] for k in keys if _produces(flow, k)]
    if "heads" in notes:  # what layers make of positions, one number for each head, is cut with it but makes no head
        producers = [p for p in producers if len(members[0][p, "out"]) > 1] or producers
    # A gate (squeeze-and-excitation) has one place an image where the main path has many: it comes last.
    widest = max((flow.places.get(p, 1) for p in producers), default=1)
    producers.sort(key=lambda p: flow.places.get(p, 1) == 1 and widest > 1)
    consumers = tuple(k[0] for k in keys if k[1] == "in" and k[0] in flow.modules)
    members = sorted(members, key=lambda m: m[producers[0], "out"][0])
    slices = tuple(
        Slice(name, side, torch.tensor([m[name, side] for m in members], dtype=torch.int64)) for name, side in keys
    )
    width = len(members)
    if "heads" in notes:
        slices += _numbers(flow, producers, slices)
    between = sum(macs for labels, macs in flow.attended if _holds(flow, labels, keys[0], members[0]))
    modules = {k[0] if k[0] in flow.modules else k[0].rpartition(".")[0] for k in keys}
    group = Group(
        name=producers[0],
        width=width,
        producers=tuple(producers),
        consumers=consumers,
        slices=slices,
        macs=sum(flow.macs[m] for m in modules) + between,
        scope="interior",
        unit="head" if "heads" in notes else "channel",
        between=between,
    )
    twice = [m for m in modules if flow.calls[m] > 1]
    if fixed is not None:
        return replace(group, scope=None, why_not=fixed)
    if twice:
        return replace(group, scope=None, why_not=f"module {twice[0]} is called several times")
    if width < 2 and "heads" in notes:
        return replace(group, scope=None, why_not="attention has one head only")
    if width < 2:
        tied = any(s.span > 1 for s in slices if s.side == "out") and "parts" in notes
        why = "splits and shuffles tie all its channels to one another" if tied else "has only one channel"
        return replace(group, scope=None, why_not=why)
    if not consumers:
        return replace(group, scope=None, why_not="its output is not used by any layer")
    if "sum" in notes:
        main = [p for p in producers[1:] if flow.places.get(p, 1) > 1 or widest == 1]
        named = ", ".join(main[:3]) + (f" and {len(main) - 3} more" if len(main) > 3 else "")
        return replace(group, scope="all", why_not=f"tied by an addition{f' with {named}' if named else ''}")
    if "shared" in notes:
        return replace(group, scope="all", why_not="tied by weights that layers share")
    # One half of a layer that gates the other (SwiGLU) is a split, too, but no other layer has a part in it.
    gated = "gated" in notes and len(producers) == 1
    if "parts" in notes and "heads" not in notes and not gated:
        return replace(group, scope="all", why_not="tied by a split or a shuffle: equal parts must stay equal")
    return group


def _holds(flow: Flow, labels: Tensor, key: SideKey, member: Mapping[SideKey, list[int]]) -> bool:
    """Whether labels are those of a group, one of whose channels is given."""
    own = flow.labels.find(int(flow.sides[key][member[key][0]]))
    return own in flow.labels.canonical(labels).unique().tolist()


def _numbers(flow: Flow, producers: Sequence[str], slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """What the modules around attention say of its heads: how many they are, and how many places they have in all."""
    width = len(slices[0].positions)
    places = next((s for s in slices if s.side == "in" and s.module in flow.modules), slices[0])
    size = len(flow.sides[places.module, places.side])
    found = []
    for holder in _around([s.module for s in slices if s.module in flow.modules]):
        module = flow.modules[holder]
        for name in HEADS:
            count = number_of(module, name)
            if count is not None and count >= width and count % width == 0:
                found.append(Slice(f"{holder}.{name}", "out", torch.arange(count).reshape(width, -1)))
        for name in INNER_WIDTHS:
            if number_of(module, name) == size and size == places.positions.numel():
                found.append(Slice(f"{holder}.{name}", "out", places.positions))
    return tuple(found)


def _around(layers: Sequence[str]) -> list[str]:
    """The modules that layers are in: the one of each, and those above it up to the first that holds all of them."""
    split = [layer.split(".") for layer in layers]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == split[0][shared] for path in split):
        shared += 1
    found = [".".join(path[:n]) for path in split for n in range(len(path) - 1, max(shared, 1) - 1, -1)]
    return list(dict.fromkeys([*(".".join(path[:-1]) for path in split), *found]))


def _unique_names(groups: list[Group]) -> list[Group]:
    """A layer whose channels fall into several groups gives them numbered names."""
    seen: Counter[str] = Counter()
    named = []
    for group in groups:
        seen[group.name] += 1
        named.append(replace(group, name=f"{group.name}#{seen[group.name]}") if seen[group.name] > 1 else group)
    return named


def _balanced(flow: Flow, groups: list[Group]) -> tuple[Group, ...]:
    """Grouped convolutions and group normalisation need equally many channels in each of their groups."""
    return tuple(_with_blocks(flow, group) for group in groups)


def _with_blocks(flow: Flow, group: Group) -> Group:
    if group.scope is None:
        return group
    blocks = 1
    for piece in group.slices:
        module = flow.modules.get(piece.module)
        kind = kind_of(module)
        parts = kind.parts(module) if kind is not None else 1
        if kind is None or parts == 1:
            continue
        size = len(flow.sides[piece.module, piece.side])
        block = piece.positions // (size // parts)  # (width, span)
        counts = torch.stack([(block == b).sum(dim=1) for b in range(parts)], dim=1)  # (width, parts)
        if bool((counts == counts[:, :1]).all()):
            continue  # every channel has its share in every part: nothing can get out of balance
        consecutive = torch.arange(parts).repeat_interleave(max(1, group.width // parts))
        if piece.span == 1 and group.width == size and torch.equal(block[:, 0], consecutive):
            blocks = math.lcm(blocks, parts)
            continue
        why = f"{kind.parts_name} {piece.module}, whose groups must stay equal, holds other channels too"
        return replace(group, scope=None, why_not=why)
    if group.width % blocks or group.width == blocks:
        return replace(group, scope=None, why_not="grouped layers whose groups must stay equal leave nothing to remove")
    return replace(group, blocks=blocks)


def _slice(group: Group, module: str) -> Slice:
    return next(s for s in group.slices if s.module == module and s.side == "out")
