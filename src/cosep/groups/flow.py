"""Follow every channel through one forward pass: which module sides hold it, and which operations tie it to others.

The pass runs on real tensors. Beside each tensor travels a field of labels that broadcasts to its shape: for an
activation the label of the channel in each place, for a tensor made of parameters the index along each parameter axis.
Operations that move elements are repeated on the fields themselves, so that flatten, concatenation, shuffles and the
like need no rules. An operation without a rule fixes the channels that reach it: what is not understood is not cut.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from cosep.errors import TraceError
from cosep.groups import operations as ops
from cosep.groups.heads import Division, Scout, base_name
from cosep.groups.heads import tensors_in as _tensors
from cosep.groups.labels import CONSTANT, Labels, aligned, compress, moved, varying
from cosep.layers import bare_axis, kind_of, mixing, side_size
from cosep.records import Side

SideKey = tuple[str, Side]
AxisKey = tuple[str, int]  # a parameter or buffer by name, and one of its axes


@dataclass
class Info:
    """What is known of one tensor: the label of each place, and the parameter axes it is made of."""

    labels: Tensor | None = None
    axes: dict[AxisKey, Tensor] = field(default_factory=dict)  # -1 in places that are made of something else
    computed: bool = False  # made of parameters by more than moving them


@dataclass
class Flow:
    """Everything one or more passes have shown."""

    model: nn.Module
    labels: Labels = field(default_factory=Labels)
    sides: dict[SideKey, Tensor] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # modules by first execution
    calls: Counter[str] = field(default_factory=Counter)
    macs: Counter[str] = field(default_factory=Counter)
    places: dict[str, int] = field(default_factory=dict)  # spatial places of each producer's output
    attended: list[tuple[Tensor, int]] = field(default_factory=list)  # heads, and what one of their products costs
    computed: set[str] = field(default_factory=set)  # layers that work on weights computed from their parameters

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())
        known = {id(module): name for name, module in self.modules.items()}
        # A module may stand under several names; it is known by its first.
        self.first = {name: known[id(m)] for name, m in self.model.named_modules(remove_duplicate=False)}
        self.names: dict[int, str] = {}
        self.aliases: dict[str, list[str]] = {}
        tensors = [
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        ]
        for name, tensor in tensors:
            first = self.names.setdefault(id(tensor), name)
            self.aliases.setdefault(first, []).append(name)
        self.tensors = dict(tensors)

    def side(self, key: SideKey) -> Tensor:
        """The labels of a module side or of a bare tensor: (size,), made when first asked for."""
        if key not in self.sides:
            self.sides[key] = self.labels.fresh(side_size(self.modules, *key))
        return self.sides[key]


def owner(flow: Flow, name: str) -> tuple[str, nn.Module, str]:
    """The module that a parameter or buffer belongs to: (its name, itself, the attribute)."""
    path, _, attribute = name.rpartition(".")
    return path, flow.modules[path], attribute


def side_of(flow: Flow, key: AxisKey) -> SideKey | None:
    """Which module side an axis of a parameter belongs to; None for axes that hold no channels of their own."""
    name, axis = key
    path, module, attribute = owner(flow, name)
    kind = kind_of(module)
    if kind is not None and attribute in kind.tensors:
        side = kind.side_of(module, attribute, axis)
        return None if side is None else (path, side)
    tensor = flow.tensors[name]
    if axis == tensor.ndim - 1 and sum(size > 1 for size in tensor.shape) == 2:
        return name, "in"  # a table of positions with a column for each head, or for each channel
    if axis != bare_axis(tensor):
        return None
    return name, "out"


@dataclass(frozen=True)
class Call:
    """One operation of torch as it ran."""

    name: str
    func: Any
    args: Any
    kwargs: Any
    result: Any


class _Tracer(TorchDispatchMode):
    """Carries the fields along while a model runs."""

    def __init__(self, flow: Flow, deadline: float, divisions: Mapping[int, Division]) -> None:
        super().__init__()
        self.flow = flow
        self.divisions = divisions  # into heads, by the number of the reshape in the pass
        self.reshapes = 0
        self.labels = flow.labels
        self.known: Any = WeakTensorKeyDictionary()
        # Means across heads, which attention returns whether anyone wants them or not: why their heads would stay.
        self.unused: Any = WeakTensorKeyDictionary()
        self.stack: list[str] = []
        self.deadline = deadline
        self.busy = False  # at work on a rule: what happens meanwhile is no operation of the model's

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its whole compiler, for seconds, at the first operation

    # -- where we are

    @property
    def where(self) -> str:
        return self.stack[-1] if self.stack and self.stack[-1] else "the model"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if time.monotonic() > self.deadline:
            raise TimeoutError
        for tensor in _tensors(args, kwargs):
            self.use(tensor)
        inputs = [self.info(t) for t in _tensors(args, kwargs)]  # before an in-place operation changes anything
        base = base_name(func)
        self.reshapes += base in ops.RESHAPES
        result = func(*args, **kwargs)
        if any(i.labels is not None or i.axes for i in inputs):
            self.busy = True
            try:
                self.step(base, func, args, kwargs, result)
            finally:
                self.busy = False
        return result

    def use(self, tensor: Tensor) -> None:
        """What was taken across heads is used after all, so these heads stay."""
        if tensor in self.unused:
            self.labels.fix(*self.unused[tensor])

    def info(self, tensor: Tensor) -> Info:
        known = self.known.get(tensor)
        if known is not None:
            return known
        name = self.flow.names.get(id(tensor))
        if name is None:
            return Info()
        axes = {
            (name, d): torch.arange(tensor.shape[d]).reshape([-1 if e == d else 1 for e in range(tensor.ndim)])
            for d in range(tensor.ndim)
            if tensor.shape[d] > 1
        }
        made = Info(axes=axes)
        self.known[tensor] = made
        return made

    def put(self, tensor: object, info: Info) -> None:
        if isinstance(tensor, Tensor):
            if info.labels is not None:
                info = Info(self.labels.canonical(info.labels), info.axes, info.computed)
            self.known[tensor] = info

    def put_all(self, result: object, info: Info) -> None:
        for tensor in _tensors((result,), {}):
            self.put(tensor, info)

    # -- the rules

    def step(self, name: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        rule = _RULES.get(name)
        if rule is not None:
            rule(self, Call(name, func, args, kwargs, result))
        elif name == "as_strided" and _same_values(args[0], result):
            self.put_all(result, self.info(args[0]))
        else:
            self.unknown(name, args, kwargs)

    def leaves(self, tensor: Tensor, how: str) -> None:
        """Numbers that Python or another library reads come back as constants, whatever they were made of."""
        self.fix(self.info(tensor), f"leaves torch in {self.where} ({how})")

    def unknown(self, name: str, args: Any, kwargs: Any) -> None:
        for tensor in _tensors(args, kwargs):
            self.fix(
                self.info(tensor), f"used by an operation that cannot be followed ({name.strip('_')} in {self.where})"
            )

    def not_plain(self, what: str) -> str:
        """Why channels that meet a weight which is no plain parameter cannot go, {} standing for the place."""
        parametrised = getattr(self.flow.modules.get(self.where), "parametrizations", None)
        if parametrised:
            names = ", ".join(repr(name) for name in parametrised)
            call = f"torch.nn.utils.parametrize.remove_parametrizations(model.{self.where}, {names})"
            return f"used by {self.where}, whose weight is not a plain parameter but parametrised: {call} makes it one"
        return f"used by {what.format(self.where)}"

    def fix(self, info: Info, reason: str) -> None:
        if info.labels is not None:
            self.labels.fix(info.labels, reason)

    def act(self, tensor: Tensor, axis: int, reason: str) -> Tensor | None:
        """The labels of a tensor along its channel axis, (channels,); None, and fixed, if they lie elsewhere."""
        info = self.info(tensor)
        if info.labels is None:
            return None
        found = compress(self.labels.canonical(info.labels))
        if any(d != axis for d in varying(found)):
            self.labels.fix(found, reason)
            return None
        return found.reshape(-1).expand(tensor.shape[axis])

    def tie_axes(self, tensor: Tensor, axis: int, labels: Tensor, skip: frozenset[str] = frozenset()) -> bool:
        """Say that a tensor made of parameters has these channels along an axis; False if that cannot be."""
        fine, held = True, torch.zeros(len(labels), dtype=torch.bool)
        for key, index in self.info(tensor).axes.items():
            if key[0] in skip or axis not in varying(index):
                continue
            side = side_of(self.flow, key)
            if side is None or varying(index) != (axis,):
                fine = False
                continue
            reason = f"held by {key[0]} together with something of fixed size"
            own = index.reshape(-1) >= 0
            self.labels.merge(self.flow.side(side)[index.reshape(-1)[own]], labels[own], reason)
            held |= own
        return fine and bool(held.all() or not held.any())

    def layer(self, weight: Tensor, operation: str) -> tuple[str, Any] | None:
        """The layer whose own weight an operation is given, possibly normalised on the way; None for anything else."""
        info = self.info(weight)
        for name in {key[0] for key in info.axes} or {self.flow.names.get(id(weight), "")}:
            if not name:
                continue
            path, module, attribute = owner(self.flow, name)
            kind = kind_of(module)
            if kind is None or kind.operation != operation:
                continue
            if attribute == "weight" and module._parameters.get("weight") is not None:
                for (n, axis), index in info.axes.items():
                    dim = 1 - axis if operation == "product" else axis  # a linear layer's weight comes turned
                    if n == name and varying(index) != (dim,):
                        return None
                if info.computed:
                    self.flow.computed.add(path)
                return path, module
        return None

    def convolution(self, args: Any, result: Tensor) -> None:
        x, weight, bias = args[0], args[1], args[2]
        groups = int(args[8])
        inputs = x.shape[1] if x.ndim == weight.ndim else 0
        found = self.layer(weight, "convolution")
        if x.ndim != weight.ndim or (found is None and groups != inputs):
            self.fix(
                self.info(x), self.not_plain("a convolution in {} whose weight is not a plain parameter of a layer")
            )
            return
        entering = self.act(x, 1, f"its channels are not where the convolution {self.where} expects them")
        if found is None:
            if entering is None:
                return
            if groups != result.shape[1] or not self.tie_axes(weight, 0, entering) or not self.has_axis(weight, 0):
                self.labels.fix(entering, f"used by a convolution in {self.where} that is not a layer")
                return
            self.put(result, Info(_along(entering, 1, result.ndim)))
            return
        path, module = found
        self.flow.macs[path] += (
            result.numel() // result.shape[0] * (weight.numel() // result.shape[1])
            if (not module.transposed)
            else x.numel() // x.shape[0] * (weight.numel() // x.shape[1])
        )
        out = self.flow.side((path, "out"))
        if mixing(module).passes(module):
            if entering is not None:
                self.labels.merge(entering.repeat_interleave(module.out_channels // groups), out, f"passes {path}")
            else:
                self.labels.fix(out, f"filters the channels of the input one by one ({path})")
        else:
            into = self.flow.side((path, "in"))
            if entering is not None:
                self.labels.merge(into, entering, f"enters {path} beside constants")
            self.flow.places[path] = max(self.flow.places.get(path, 0), result[0, 0].numel())
        if isinstance(bias, Tensor) and not self.tie_axes(bias, 0, out):
            self.labels.fix(out, f"the bias of {path} is computed")
        self.tie_axes(weight, 0 if not module.transposed else 1, out, skip=frozenset({f"{path}.weight"}))
        self.put(result, Info(_along(out, 1, result.ndim)))

    def has_axis(self, tensor: Tensor, axis: int) -> bool:
        return any(axis in varying(index) for index in self.info(tensor).axes.values())

    def product(self, name: str, args: Any, result: Tensor) -> None:
        bias, x, weight = (args[0], args[1], args[2]) if name == "addmm" else (None, args[0], args[1])
        if name == "linear":
            turned = weight.t()
            if self.info(weight).labels is None:
                self.known[turned] = Info(axes={k: v.t() for k, v in self.info(weight).axes.items()})
            bias, weight = (args[2] if len(args) > 2 else None), turned
        found = self.layer(weight, "product") if self.info(weight).labels is None else None
        if found is None:
            reason = self.not_plain("a product in {} with a matrix that is not the weight of a linear layer")
            self.fix(self.info(x), reason)
            self.fix(self.info(weight), reason)
            return
        path, _ = found
        if path not in self.stack and len(self.flow.aliases.get(f"{path}.weight", ())) == 1:
            self.flow.calls[path] += 1  # used without being called: F.linear(x, self.layer.weight)
        entering = self.act(x, x.ndim - 1, f"its channels are not where the linear layer {path} expects them")
        self.flow.macs[path] += result.numel() // max(1, self.batch) * x.shape[-1]
        out, into = self.flow.side((path, "out")), self.flow.side((path, "in"))
        if entering is not None:
            self.labels.merge(into, entering, f"enters {path} beside constants")
        if isinstance(bias, Tensor) and not self.tie_axes(bias, 0, out):
            self.labels.fix(out, f"the bias of {path} is computed")
        self.flow.places[path] = max(self.flow.places.get(path, 0), result.numel() // result.shape[-1] // self.batch)
        self.put(result, Info(_along(out, result.ndim - 1, result.ndim)))

    batch = 1

    def norm(self, x: Tensor, weights: Sequence[Any], result: Tensor, axis: int) -> None:
        info = self.info(x)
        others = [tensor for tensor in weights if isinstance(tensor, Tensor)]
        if info.labels is None:  # weights that are normalised before use, and the gains that they get
            gains = {k: _along(i.reshape(-1), axis, x.ndim) for t in others for k, i in self.info(t).axes.items()}
            self.put(result, Info(axes={**info.axes, **gains}, computed=True))
            return
        found = compress(self.labels.canonical(info.labels))
        if varying(found) and axis not in varying(found) and self.is_heads(found):
            self.put(result, Info(found))  # within each head: the weights are the same for all of them
            return
        channels = self.act(x, axis, f"normalised over other axes than its channels in {self.where}")
        if channels is None:
            return
        for tensor in others:
            if tensor.numel() > 1 and not (self.tie_axes(tensor, tensor.ndim - 1, channels) and self.info(tensor).axes):
                self.labels.fix(channels, f"normalised in {self.where} with weights that cannot be followed")
        self.put(result, Info(_along(channels, axis, result.ndim)))

    def is_heads(self, labels: Tensor) -> bool:
        return all("heads" in self.labels.notes(label) for label in labels.unique().tolist())

    def copy(self, args: Any, result: Tensor) -> None:
        target, source = args[0], args[1]
        whole = target.untyped_storage().nbytes() <= target.numel() * target.element_size()
        if whole and target.shape == source.shape:
            labels = self.info(source).labels
            if labels is not None and self.info(target).axes:  # a buffer that keeps what was computed
                field = compress(self.labels.canonical(labels))
                self.match_axes(field, target, f"copied into a tensor of fixed size in {self.where}")
            self.put(result, self.info(source))
        else:
            self.unknown("copy into a slice", args, {})

    def pointwise(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        out = _first(result)
        tensors = [t for t in _tensors(args, kwargs) if t.numel() > 1 or self.info(t).labels is not None]
        carriers, others = [], []
        for tensor in tensors:
            info = self.info(tensor)
            if info.labels is not None:
                carriers.append((tensor, aligned(compress(self.labels.canonical(info.labels)), out.ndim)))
            else:
                others.append(tensor)
        if not carriers:
            merged: dict[AxisKey, Tensor] = {}
            for tensor in others:
                merged.update({k: aligned(v, out.ndim) for k, v in self.info(tensor).axes.items()})
            computed = len(others) > 1 or any(self.info(t).computed for t in others)
            self.put_all(result, Info(axes=merged, computed=computed))
            return
        carriers.sort(key=lambda c: -len(varying(c[1])))
        lead_tensor, lead = carriers[0]
        reason = f"combined with a tensor of fixed size ({name.strip('_')} in {self.where})"
        for tensor, labels in carriers[1:]:
            self.match(lead, labels, tensor, reason)
            self.match(labels, lead, lead_tensor, reason)
            if varying(labels) and set(varying(labels)) <= set(varying(lead)):
                # Heads that are turned by their positions are added to themselves, which ties nothing.
                turned = torch.equal(lead, labels) and self.is_heads(lead)
                # What layers make of positions and add to the scores of each head is no other part of the network.
                turned |= self.is_heads(lead) and not self.is_heads(labels)
                self.labels.merge(lead, labels, f"combined with channels padded by constants in {self.where}")
                if name not in ops.PRODUCTS and not turned:
                    self.labels.note(lead, "sum")
                elif name == "mul" and torch.equal(lead, labels):
                    self.labels.note(lead, "gated")
            elif varying(labels):
                self.labels.fix(lead, reason)
                self.labels.fix(labels, reason)
        for tensor in others:
            self.match_axes(lead, tensor, reason)
        self.put_all(result, Info(lead))

    def match(self, labels: Tensor, partner: Tensor, tensor: Tensor, reason: str) -> None:
        """Fix channels that meet a long axis of another activation which carries none."""
        size = (1,) * (labels.ndim - tensor.ndim) + tuple(tensor.shape)
        if any(size[d] > 1 and partner.shape[d] == 1 for d in varying(labels)):
            self.labels.fix(labels, reason)

    def match_axes(self, labels: Tensor, tensor: Tensor, reason: str) -> None:
        """Tie channels to the parameter axes that meet them; fix them where something else does."""
        size = (1,) * (labels.ndim - tensor.ndim) + tuple(tensor.shape)
        meeting = {d for d in varying(labels) if size[d] > 1}
        tied: set[int] = set()
        held = torch.zeros((1,) * labels.ndim, dtype=torch.bool)
        for key, raw in self.info(tensor).axes.items():
            index = aligned(raw, labels.ndim)
            along = set(varying(index))
            if not along & meeting:
                continue
            side = side_of(self.flow, key)
            if side is None or not along <= meeting:
                self.labels.fix(labels, f"combined with {key[0]}, whose axes cannot be cut")
            else:
                of, met = torch.broadcast_tensors(index, labels)
                own = of >= 0
                self.labels.merge(self.flow.side(side)[of[own]], met[own], f"held by {key[0]} beside constants")
                held = held | own
            tied |= along
        if meeting - tied or (held.any() and not held.all()):
            self.labels.fix(labels, reason)

    def look_up(self, call: Call) -> None:
        """Rows of a table that numbers choose: its other axes stay what they are."""
        x = call.args[0]
        info = self.info(x)
        labels = None
        if info.labels is not None:
            labels = compress(self.labels.canonical(info.labels))
            chosen = {d: index for d, index in enumerate(call.args[1]) if index is not None}
            numbers = all(i.dtype == torch.int64 and self.info(i).labels is None for i in chosen.values())
            if not numbers or set(chosen) & set(varying(labels)):
                self.unknown(call.name, call.args, call.kwargs)
                return
            labels = moved(labels, x.shape, lambda t: call.func(t, *call.args[1:]))
        axes = {k: moved(v, x.shape, lambda t: call.func(t, *call.args[1:])) for k, v in info.axes.items()}
        self.put(call.result, Info(labels, axes, info.computed))

    def made_like(self, x: Tensor, result: Tensor) -> None:
        """A tensor made on the device of another: of its shape it holds its channels, else none."""
        info = self.info(x)
        if info.labels is not None and x.shape == result.shape:
            self.put(result, Info(compress(self.labels.canonical(info.labels))))

    def reshape(self, x: Tensor, result: Tensor) -> None:
        info = self.info(x)
        axes = {k: moved(v, x.shape, lambda t: t.reshape(result.shape)) for k, v in info.axes.items()}
        if info.labels is None:
            self.put(result, Info(axes=axes, computed=info.computed))
            return
        before = compress(self.labels.canonical(info.labels))
        after = moved(before, x.shape, lambda t: t.reshape(result.shape))
        if len(varying(after)) > max(1, len(varying(before))):
            after = self.tie_parts(after, tuple(result.shape))
        self.put(result, Info(after))

    def tie_parts(self, labels: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Channels folded into several axes stay or go along all but one of them, so that every part stays equal."""
        dims = varying(labels)
        division = self.divisions.get(self.reshapes)
        if division is not None and division.shape == shape:
            return self.tie_heads(labels, division)
        # (batch, channels, height, width) made from one long axis keeps its channel axis; else parts come first.
        keep = 1 if labels.ndim == 4 and 1 in dims and dims[-1] >= 2 else dims[-1]
        first = labels
        for d in dims:
            if d != keep:
                first = first.narrow(d, 0, 1)
        self.labels.merge(labels, first, "folded together with constants")
        self.labels.note(labels, "parts")
        return compress(self.labels.canonical(labels))

    def tie_heads(self, labels: Tensor, division: Division) -> Tensor:
        """Channels folded into heads: a head is one channel, wherever it has a place."""
        first = labels
        for d in varying(labels):
            if d not in division.axes:
                first = first.narrow(d, 0, 1)
        self.labels.merge(labels, first, "folded into heads together with constants")
        self.labels.note(labels, "heads")
        return compress(self.labels.canonical(labels))

    def batched(self, args: Any, result: Any) -> None:
        """Attention, or one of its products: heads stay apart, and the same head of all operands goes together."""
        operands = [t for t in args[:3] if isinstance(t, Tensor)]
        fields = [self.info(t).labels for t in operands]
        found = [compress(self.labels.canonical(f)) for f in fields if f is not None]
        last = operands[0].ndim - 2
        lead = max(found, key=lambda f: len(varying(f)))
        plain = all(d < last for f in found for d in varying(f))
        alone = any(
            f is None and any(t.shape[d] > 1 for d in varying(lead)) for t, f in zip(operands, fields, strict=True)
        )
        if not plain or alone:
            for f in found:
                self.labels.fix(f, f"multiplied by other channels in {self.where}, as within one head of attention")
            return
        for f in found:
            self.labels.merge(lead, f, f"attended to together with constants in {self.where}")
        lead = compress(self.labels.canonical(lead))
        self.flow.attended.append((lead, _multiplications(operands) // max(1, self.batch)))
        self.put(_first(result), Info(lead))

    def attention(self, args: Any, kwargs: Any, result: Any) -> None:
        masks = [t for t in _tensors(args[3:], kwargs) if t.ndim > 2]
        self.batched(args[:3], result)
        labels = self.info(_first(result)).labels
        if labels is None:
            return
        reason = f"masked head by head in {self.where}"
        for mask in masks:
            made = self.info(mask).labels
            if made is None:
                self.match_axes(labels, mask, reason)
                continue
            made = aligned(compress(self.labels.canonical(made)), labels.ndim)  # by layers, from positions
            self.match(labels, made, mask, reason)
            if set(varying(made)) <= set(varying(labels)):
                self.labels.merge(labels, made, reason)
            else:
                self.labels.fix(labels, reason)
                self.labels.fix(made, reason)

    def move(self, x: Tensor, result: Any, how: Callable[[Tensor], Tensor]) -> None:
        info = self.info(x)
        axes = {k: moved(v, x.shape, how) for k, v in info.axes.items()}
        labels = None
        if info.labels is not None:
            labels = moved(self.labels.canonical(info.labels), x.shape, how)
        self.put(_first(result), Info(labels, axes, info.computed))

    def spatial(self, name: str, x: Tensor, result: Any) -> None:
        info = self.info(x)
        if info.labels is None:
            return
        labels = compress(self.labels.canonical(info.labels))
        if x.ndim != _first(result).ndim or any(d > x.ndim - _dimensions(name) - 1 for d in varying(labels)):
            self.labels.fix(labels, f"pooled or resized across its channels in {self.where}")
            return
        self.put(_first(result), Info(labels))

    def reduction(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        x = args[0]
        info = self.info(x)
        dims = _reduced(name, args, kwargs, x.ndim)
        if len(args) > 1 and isinstance(args[1], Tensor):  # max and min of two tensors
            self.pointwise("maximum", args, kwargs, result)
            return
        keepdim = name in ops.KEEPS_SHAPE or _first(result).ndim == x.ndim
        if info.labels is None:
            axes = {k: v for k, v in info.axes.items() if not set(varying(v)) & set(dims)}
            if name in ops.KEEPS_SHAPE:
                axes = info.axes
            elif not keepdim:
                axes = {k: v.reshape([s for d, s in enumerate(v.shape) if d not in dims]) for k, v in axes.items()}
            self.put_all(result, Info(axes=axes, computed=True))
            return
        labels = compress(self.labels.canonical(info.labels))
        crossed = set(varying(labels)) & set(dims)
        if crossed and set(varying(labels)) <= set(dims):
            word = name.strip("_").replace("log_", "")
            reason = f"{word} is taken across its {{}} in {self.where}"
            if self.is_heads(labels):
                for tensor in _tensors((result,), {}):
                    self.unused[tensor] = (labels, reason.format("heads"))
            else:
                self.labels.fix(labels, reason.format("channels"))
            return
        for d in crossed:  # an axis made by stacking: what is stacked is added up
            self.labels.merge(labels, labels.narrow(d, 0, 1), "added to constants")
            self.labels.note(labels, "sum")
        labels = compress(self.labels.canonical(labels))
        if not keepdim:
            labels = labels.reshape([s for d, s in enumerate(labels.shape) if d not in dims])
        self.put_all(result, Info(labels))

    def pad(self, x: Tensor, amounts: Sequence[int], result: Tensor) -> None:
        info = self.info(x)
        if info.labels is None:
            return
        labels = compress(self.labels.canonical(info.labels))
        for i in range(len(amounts) // 2):
            d = x.ndim - 1 - i
            before, after = int(amounts[2 * i]), int(amounts[2 * i + 1])
            if labels.shape[d] == 1 or (before == 0 and after == 0):
                continue
            if before < 0 or after < 0:
                self.labels.fix(labels, f"cropped at a fixed channel in {self.where}")
                return
            widths = [list(labels.shape), list(labels.shape)]
            widths[0][d], widths[1][d] = before, after
            ends = [torch.full(w, CONSTANT) for w in widths]
            labels = torch.cat([ends[0], labels, ends[1]], dim=d)
        self.put(result, Info(labels))

    def join(self, name: str, args: Any, kwargs: Any, result: Tensor) -> None:
        tensors = [t for t in args[0] if t.numel() > 0]
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        infos = [self.info(t) for t in tensors]
        if all(i.labels is None for i in infos):
            if name == "cat":
                self.join_parameters(tensors, infos, dim, result)
            return
        along = {d for i in infos if i.labels is not None for d in varying(compress(self.labels.canonical(i.labels)))}
        parts = []
        for tensor, info in zip(tensors, infos, strict=True):
            labels = self.of_parameter(tensor, along) if info.labels is None else info.labels
            labels = (
                torch.full((1,) * tensor.ndim, CONSTANT) if labels is None else compress(self.labels.canonical(labels))
            )
            if name == "stack":
                labels = labels.unsqueeze(dim)
            else:
                labels = labels.expand([tensor.shape[d] if d == dim else s for d, s in enumerate(labels.shape)])
            parts.append(labels)
        others = [max(p.shape[d] for p in parts) for d in range(result.ndim)]
        crosswise = name == "cat" and any(s > 1 for d, s in enumerate(others) if d != dim)
        joined = torch.cat(
            [p.expand([p.shape[d] if d == dim else others[d] for d in range(result.ndim)]) for p in parts], dim
        )
        joined = compress(joined)
        if crosswise and dim in varying(joined):
            self.labels.merge(joined, joined.narrow(dim, 0, 1), f"joined with a constant in {self.where}")
            self.labels.note(joined, "sum")
            joined = compress(self.labels.canonical(joined))
        self.put(result, Info(joined))

    def join_parameters(self, tensors: Sequence[Tensor], infos: Sequence[Info], dim: int, result: Tensor) -> None:
        """Parameters one behind the other, such as the biases of queries, keys and values."""
        axes: dict[AxisKey, Tensor] = {}
        for number, info in enumerate(infos):
            for key, index in info.axes.items():
                if key in axes or varying(index) != (dim,):
                    return  # what it is joined into is not followed
                parts = [torch.full((t.shape[dim],), -1) for t in tensors]
                parts[number] = index.reshape(-1)
                axes[key] = _along(torch.cat(parts), dim, result.ndim)
        self.put(result, Info(axes=axes, computed=any(info.computed for info in infos)))

    def of_parameter(self, tensor: Tensor, along: set[int]) -> Tensor | None:
        """The labels of a parameter that is joined to activations, such as a class token; None for anything else."""
        for key, index in self.info(tensor).axes.items():
            side = side_of(self.flow, key)
            if side is not None and varying(index) and set(varying(index)) == along and bool((index >= 0).all()):
                return self.flow.side(side)[index]
        return None

    def pick(self, name: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        x = args[0]
        info = self.info(x)
        position = 1 if name in ("unbind", "slice", "select") else 2
        dim = (args[position] if len(args) > position else kwargs.get("dim", 0)) % x.ndim
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        labels = None
        if info.labels is not None:
            labels = compress(self.labels.canonical(info.labels))
            if dim in varying(labels) and [o.shape for o in outputs] != [x.shape]:
                labels = self.parts(name, labels, dim, outputs)
                if labels is None:
                    return
        made = []
        for fields in ([labels] if labels is not None else []), list(info.axes.values()):
            for f in fields:
                picked = func(f.expand(x.shape), *args[1:], **kwargs)
                made.append([compress(p) for p in picked] if isinstance(picked, (list, tuple)) else [compress(picked)])
        for i, output in enumerate(outputs):
            values = [m[i] for m in made]
            chosen = values.pop(0) if labels is not None else None
            self.put(output, Info(chosen, dict(zip(info.axes, values, strict=True)), info.computed))

    def gate(self, x: Tensor, dim: int, result: Tensor) -> None:
        """One half multiplied by the sigmoid of the other."""
        info = self.info(x)
        if info.labels is None:
            return
        labels: Tensor | None = compress(self.labels.canonical(info.labels))
        assert labels is not None
        if dim % x.ndim in varying(labels):
            labels = self.parts("chunk", labels, dim % x.ndim, [result, result])
        if labels is not None:
            self.labels.note(labels, "gated")
            self.put(result, Info(compress(labels.expand(x.shape).chunk(2, dim)[0])))

    def parts(self, name: str, labels: Tensor, dim: int, outputs: Sequence[Tensor]) -> Tensor | None:
        """The labels of a tensor whose channel axis is taken apart, tied so that parts stay equal; None if fixed."""
        if name in ("unbind", "select", "slice"):
            if varying(labels) == (dim,) or name == "slice":
                self.labels.fix(labels, f"taken apart at fixed channels in {self.where}")
                return None
            return labels
        sizes = {o.shape[dim] for o in outputs}
        if len(sizes) > 1:
            self.labels.fix(labels, f"split at a fixed channel in {self.where}")
            return None
        pieces = labels.split(next(iter(sizes)), dim)
        for piece in pieces[1:]:
            self.labels.merge(pieces[0], piece, f"split together with constants in {self.where}")
        self.labels.note(labels, "parts")
        return self.labels.canonical(labels)


class _Border(TorchFunctionMode):
    """What the dispatcher does not see: tensors that are read from outside torch, and dropout, which ties nothing."""

    def __init__(self, tracer: _Tracer | Scout) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ops.EXITS and args and isinstance(args[0], Tensor) and not self.tracer.busy:
            self.tracer.leaves(args[0], name.strip("_"))
        if name in ops.DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))


_Rule = Callable[[_Tracer, Call], None]


def _table(*entries: tuple[Iterable[str], _Rule]) -> dict[str, _Rule]:
    """The rule of each operation; where several entries name one, the first counts."""
    return {name: rule for names, rule in reversed(entries) for name in names}


_RULES = _table(
    (ops.CONVOLUTIONS, lambda t, c: t.convolution(c.args, c.result)),
    (ops.MATRIX_PRODUCTS, lambda t, c: t.product(c.name, c.args, c.result)),
    (ops.BATCHED_PRODUCTS, lambda t, c: t.batched(c.args, c.result)),
    (ops.ATTENTION, lambda t, c: t.attention(c.args, c.kwargs, c.result)),
    (ops.BATCH_NORMS, lambda t, c: t.norm(c.args[0], c.args[1:5], _first(c.result), axis=1)),
    (["native_group_norm"], lambda t, c: t.norm(c.args[0], c.args[1:3], _first(c.result), axis=1)),
    (["native_layer_norm"], lambda t, c: t.norm(c.args[0], c.args[2:4], _first(c.result), axis=c.args[0].ndim - 1)),
    (["copy"], lambda t, c: t.copy(c.args, c.result)),
    (["glu"], lambda t, c: t.gate(c.args[0], c.args[1] if len(c.args) > 1 else -1, c.result)),
    (["_local_scalar_dense"], lambda t, c: t.leaves(c.args[0], "item")),
    (ops.IDENTITY, lambda t, c: t.put_all(c.result, t.info(c.args[0]))),
    (ops.POINTWISE, lambda t, c: t.pointwise(c.name, c.args, c.kwargs, c.result)),
    (["index"], lambda t, c: t.look_up(c)),
    (ops.MAKERS, lambda t, c: t.made_like(c.args[0], c.result)),
    (ops.RESHAPES, lambda t, c: t.reshape(c.args[0], c.result)),
    (ops.MOVES, lambda t, c: t.move(c.args[0], c.result, lambda x: _first(c.func(x, *c.args[1:], **c.kwargs)))),
    (["expand"], lambda t, c: t.move(c.args[0], c.result, lambda x: x.expand(c.result.shape))),
    (ops.SPATIAL, lambda t, c: t.spatial(c.name, c.args[0], c.result)),
    (ops.REDUCTIONS, lambda t, c: t.reduction(c.name, c.args, c.kwargs, c.result)),
    (["constant_pad_nd"], lambda t, c: t.pad(c.args[0], c.args[1], c.result)),
    (["cat", "stack"], lambda t, c: t.join(c.name, c.args, c.kwargs, c.result)),
    (ops.PICKS, lambda t, c: t.pick(c.name, c.func, c.args, c.kwargs, c.result)),
)


def look_ahead(flow: Flow, example_input: Tensor, deadline: float) -> dict[int, Division]:
    """Which reshapes of a pass divide channels into heads; {} where the pass fails, which is for `follow` to tell."""
    scout = Scout(deadline)
    devices = [example_input.device] if example_input.is_cuda else []
    # A pass may change buffers, or put others in their place: it is not this one that should.
    model = copy.deepcopy(flow.model, {id(p): p for p in flow.model.parameters()})
    for name, module in model.named_modules():
        module.register_forward_pre_hook(partial(_note_order, flow.order, name), prepend=True)
    try:
        # The same chances for both passes: a network that takes its way by them takes the same one.
        with torch.random.fork_rng(devices=devices), torch.no_grad(), scout, _Border(scout):
            model(example_input)
    except TimeoutError:
        raise
    except Exception:
        return {}
    return scout.divisions()


def _note_order(order: dict[str, int], name: str, _module: nn.Module, _args: Any) -> None:
    order.setdefault(name, len(order))


def follow(
    flow: Flow, example_input: Tensor, deadline: float, *, returned: str = "feeds the classifier's output"
) -> Any:
    """Run the model once on the input, filling the flow; returns the model's output, whose channels stay."""
    tracer = _Tracer(flow, deadline, look_ahead(flow, example_input, deadline))
    tracer.batch = example_input.shape[0]
    handles = []

    def entered(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            tracer.stack.append(name)
            flow.order.setdefault(name, len(flow.order))
            flow.calls[name] += 1

        return hook

    def left(module: nn.Module, args: Any, output: Any) -> None:
        tracer.stack.pop()

    for name, module in flow.modules.items():
        handles.append(module.register_forward_pre_hook(entered(name), prepend=True))
        handles.append(module.register_forward_hook(left))
    try:
        with torch.no_grad(), tracer, _Border(tracer):
            output = flow.model(example_input)
    except Exception as error:
        if isinstance(error, TimeoutError):
            raise
        raise TraceError(
            f"the model failed in {tracer.where} on an input of shape {tuple(example_input.shape)}: "
            f"{type(error).__name__}: {_short(error)} Give an example input that the model accepts in evaluation mode."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    for tensor in _tensors((output,), {}):
        tracer.use(tensor)
        info = tracer.info(tensor)
        if info.labels is not None:
            flow.labels.fix(info.labels, returned)
    return output


def _same_values(x: Tensor, result: Tensor) -> bool:
    """Whether a new view of a tensor only gave it other strides, as pooling does to keep a memory format."""
    return x.shape == result.shape and torch.equal(x, result)


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else "no message").rstrip(".") + "."


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, (list, tuple)) else result


def _multiplications(operands: Sequence[Tensor]) -> int:
    """How many of a product of many matrices; of queries, keys and values with both products."""
    if len(operands) == 2:
        return operands[0].numel() * operands[1].shape[-1]
    query, key, value = operands
    return query.numel() * key.shape[-2] + query.numel() // query.shape[-1] * value.shape[-2] * value.shape[-1]


def _along(labels: Tensor, axis: int, ndim: int) -> Tensor:
    return labels.reshape([-1 if d == axis else 1 for d in range(ndim)])


def _dimensions(name: str) -> int:
    """How many trailing spatial dimensions a pooling or resizing operation works on."""
    return next((int(c) for c in reversed(name.replace("2d_aa", "2d").replace("_with_indices", "")) if c.isdigit()), 2)


def _reduced(name: str, args: Any, kwargs: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions that a reduction takes away."""
    position = 2 if name in ("linalg_vector_norm", "norm") else 1
    dims = kwargs.get("dim", args[position] if len(args) > position else None)
    if dims is None or dims == [] or isinstance(dims, (bool, Tensor)) or ndim == 0:
        return tuple(range(ndim))
    return tuple(int(d) % ndim for d in (dims if isinstance(dims, (list, tuple)) else [dims]))
