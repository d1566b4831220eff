"""Run calibration batches only as far as needed: stop at the last consumer, start where an earlier sweep left off.

Groups are cut in order of execution, so what lies before a group does not change any more. A sweep therefore keeps,
for every batch, the input of one module, the *entry*: a module through whose input alone everything before it acts.
The next sweep skips what comes before that entry: skipped modules return nan, and the entry is handed what was kept.
Nothing of this is taken on trust. On a few images it is checked that the model computes the same either way; if not
(weights before the entry have changed, something reaches around it), the batches run from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import CalibrationError
from cosep.layers import is_batchnorm
from cosep.models.modes import device_of, evaluating
from cosep.models.passes import PassEnded

Reader = Callable[[Tensor], None]  # told a module's input, every time it is called
REHEARSED = 8  # images on which a sweep learns the order of execution and checks its shortcuts


@dataclass(eq=False)
class PrefixCache:
    """The inputs of one module, batch by batch, from one sweep to the next. Needs the same batches in the same order.

    Batches beyond `limit` bytes, or that turn out to be other ones, run from the start.
    """

    limit: int = 2**30
    entry: str = ""
    inputs: dict[int, tuple[Any, Tensor, int]] = field(default_factory=dict)  # batch: its mark, the input, its version
    reused: int = 0  # batches that did not have to start from the beginning, over all sweeps

    def clear(self) -> None:
        """Forget everything."""
        self.entry = ""
        self.inputs.clear()

    def get(self, index: int, x: Tensor) -> Tensor | None:
        """The entry's input for a batch, if it was kept, for this very batch, and nobody has written to it since."""
        mark, value, version = self.inputs.get(index, (None, x, -1))
        return value if mark is not None and version == value._version and mark == _mark(x) else None

    def put(self, index: int, x: Tensor, value: Tensor) -> None:
        """Keep the entry's input for a batch if there is room."""
        self.inputs.pop(index, None)
        used = sum(v.untyped_storage().nbytes() for _, v, _ in self.inputs.values())
        if used + value.untyped_storage().nbytes() <= self.limit:
            self.inputs[index] = (_mark(x), value, value._version)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What a run over a few images showed."""

    images: int
    calls: Mapping[str, int]  # of every module that ran
    begin: Mapping[str, int]  # when its first call began, counted in events
    end: Mapping[str, int]  # when its last call ended
    shapes: Mapping[str, tuple[int, ...]]  # of outputs that are one tensor with a batch axis
    dtypes: Mapping[str, torch.dtype]
    behind: Mapping[str, str]  # BatchNorm: the one module whose output, as it is, is all that it is ever given
    seen: Mapping[str, list[Tensor]]  # inputs of the modules to be read
    output: Any


def input_of(batch: Any, model: nn.Module) -> Tensor:
    """The images of a batch, which is a tensor or begins with one, where the model is."""
    x = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    if not isinstance(x, Tensor):
        raise CalibrationError(
            f"a calibration batch is a {type(x).__name__}; a tensor of images, or a tuple that begins with one, is "
            "needed. Let the loader give (input, label)."
        )
    return x.to(device_of(model))


def first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer is called with, be it by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


def _with_first(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another first argument."""
    return ((value, *args[1:]), kwargs) if args else ((), {**kwargs, next(iter(kwargs)): value})


def sweep(
    model: nn.Module,
    batches: Iterable[Any],
    readers: Mapping[str, Reader],
    *,
    entries: tuple[str, ...] = (),
    cache: PrefixCache | None = None,
) -> Rehearsal:
    """Tell each reader every input of its module over all batches; return what the rehearsal on a few images showed.

    With a cache, batches start at its entry where they can, and leave there the input of the first of `entries`
    (modules that the next sweep may start from, best first) that everything passes through.
    The model evaluates without gradients; its modes, hooks and weights are as before afterwards, also on failure.
    """
    rehearsal: Rehearsal | None = None
    with evaluating(model):
        start = stop = ""
        index = -1
        for index, batch in enumerate(batches):
            x = input_of(batch, model)
            if rehearsal is None:
                few = x[:REHEARSED]
                rehearsal = _rehearse(model, few, tuple(readers))
                if cache is not None:
                    start = _usable_entry(model, few, x, rehearsal, cache)
                    stop = _separator(model, few, rehearsal, entries, start)
                    if not start:
                        cache.clear()
                    cache.entry = ""  # until this sweep is complete, so that a failure leaves nothing half replaced
            kept = cache.get(index, x) if cache is not None and start else None
            captured = _run(model, x, readers, rehearsal, start if kept is not None else "", kept, stop)
            if cache is not None:
                cache.reused += kept is not None
                if captured is not None:
                    cache.put(index, x, captured)
                else:
                    cache.inputs.pop(index, None)
        if cache is not None:
            cache.entry = stop
            for late in [i for i in cache.inputs if i > index]:
                del cache.inputs[late]
    if rehearsal is None:
        raise CalibrationError(
            "there are no calibration batches; at least one is needed. Check that the data set is not empty and that "
            "an iterator is not used up."
        )
    return rehearsal


def _run(
    model: nn.Module,
    x: Tensor,
    readers: Mapping[str, Reader],
    rehearsal: Rehearsal,
    start: str,
    kept: Tensor | None,
    stop: str,
) -> Tensor | None:
    """One batch, from `start` (given `kept`) to the last reader; the input of `stop`."""
    left = {name: rehearsal.calls.get(name, 0) for name in readers}
    captured: list[Tensor] = []

    def read(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        readers[name](first_of(args, kwargs))
        left[name] -= 1
        if all(calls <= 0 for calls in left.values()):
            raise PassEnded

    def capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not captured:
            captured.append(first_of(args, kwargs))

    with ExitStack() as stack:
        if kept is not None:
            stack.enter_context(_started(model, start, kept, len(x), rehearsal))
        if stop:
            stack.callback(model.get_submodule(stop).register_forward_pre_hook(capture, with_kwargs=True).remove)
        for name in readers:
            reading = model.get_submodule(name).register_forward_pre_hook(partial(read, name), with_kwargs=True)
            stack.callback(reading.remove)
        if any(left.values()) or stop:
            with suppress(PassEnded):
                model(x)
    return captured[0] if captured else None


def _rehearse(model: nn.Module, x: Tensor, read: tuple[str, ...]) -> Rehearsal:
    """Run a few images to the end, watching every module."""
    begin: dict[str, int] = {}
    end: dict[str, int] = {}
    calls: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, torch.dtype] = {}
    seen: dict[str, list[Tensor]] = {name: [] for name in read}
    made: list[tuple[str, Tensor]] = []  # convolutions' and linear layers' outputs: held, so that no two share an id
    given: dict[str, set[str]] = {}
    clock = iter(range(1 << 62))

    def before(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begin.setdefault(name, next(clock))
        calls[name] = calls.get(name, 0) + 1
        if name in seen:
            seen[name].append(first_of(args, kwargs).clone())
        if is_batchnorm(module):
            given.setdefault(name, set()).add(next((n for n, t in made if t is first_of(args, kwargs)), ""))

    def after(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        end[name] = next(clock)
        if isinstance(output, Tensor) and output.dim() and len(output) == len(x):
            shapes[name], dtypes[name] = tuple(output.shape), output.dtype
        if name in seen:
            made.append((name, output))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(before, name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(after, name)).remove)
        output = model(x)
    behind = {name: next(iter(sources)) for name, sources in given.items() if len(sources) == 1 and "" not in sources}
    return Rehearsal(len(x), calls, begin, end, shapes, dtypes, behind, seen, output)


def _usable_entry(model: nn.Module, few: Tensor, x: Tensor, rehearsal: Rehearsal, cache: PrefixCache) -> str:
    """The cache's entry if starting there shows every reader what it saw in the rehearsal; else ""."""
    kept = cache.get(0, x)
    if not cache.entry or kept is None or rehearsal.calls.get(cache.entry) != 1:
        return ""
    again: dict[str, list[Tensor]] = {name: [] for name in rehearsal.seen}
    readers = {name: again[name].append for name in again}
    _run(model, few, readers, rehearsal, cache.entry, kept[: len(few)], "")
    pairs = [(a, b) for name in again for a, b in zip(again[name], rehearsal.seen[name], strict=False)]
    complete = all(len(again[name]) == len(rehearsal.seen[name]) for name in again)
    return cache.entry if complete and all(_alike(a, b) for a, b in pairs) else ""


def _separator(model: nn.Module, few: Tensor, rehearsal: Rehearsal, entries: tuple[str, ...], start: str) -> str:
    """The first of `entries` through whose input alone everything before it acts on the model's output; else ""."""
    for entry in entries:
        late_enough = not start or rehearsal.begin.get(entry, -1) >= rehearsal.begin[start]
        if rehearsal.calls.get(entry) != 1 or not late_enough or not isinstance(rehearsal.output, Tensor):
            continue
        captured = _run(model, few, {}, rehearsal, "", None, entry)
        if isinstance(captured, Tensor) and captured.dim() and len(captured) == len(few):
            with _started(model, entry, captured, len(few), rehearsal), suppress(RuntimeError):
                if _alike(model(few), rehearsal.output):
                    return entry
    return ""


@contextmanager
def _started(model: nn.Module, entry: str, value: Tensor, images: int, rehearsal: Rehearsal) -> Iterator[None]:
    """Let the model's next pass begin at a module: what ran before it returns nan at once, it is given `value`."""
    skipped: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        done = rehearsal.end.get(name, 1 << 62) < rehearsal.begin[entry]
        inside = any(name.startswith(f"{other}.") for other in skipped)
        if done and not inside and rehearsal.calls[name] == 1 and name in rehearsal.shapes:
            skipped[name] = module
    shapes = {name: (images, *rehearsal.shapes[name][1:]) for name in skipped}
    room = max((torch.Size(shape).numel() for shape in shapes.values()), default=0)
    nothing = torch.full((room,), torch.nan, device=value.device)

    def absent(name: str, *args: Any, **kwargs: Any) -> Tensor:
        shape = torch.Size(shapes[name])
        return nothing[: shape.numel()].view(shape).to(rehearsal.dtypes[name])

    own = {name: vars(module)["forward"] for name, module in skipped.items() if "forward" in vars(module)}
    handle = model.get_submodule(entry).register_forward_pre_hook(
        lambda _, args, kwargs: _with_first(value, args, kwargs), prepend=True, with_kwargs=True
    )
    try:
        for name, module in skipped.items():
            module.forward = partial(absent, name)
        yield
    finally:
        handle.remove()
        for name, module in skipped.items():
            if name in own:
                module.forward = own[name]
            else:
                del module.forward


def _alike(a: Tensor, b: Any) -> bool:
    """Equal but for what another batch size may change in the last bits; nan is never alike."""
    if not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max()) if a.numel() else True


def _mark(x: Tensor) -> Any:
    """Tells batches apart: another batch has another mark, the same images in another order the same one."""
    return tuple(x.shape), float(x.sum(dtype=torch.float64)), float(x.square().sum(dtype=torch.float64))
