"""The memory format that a run computes in: channels_last where the network can bear it, else the usual one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cosep.models.modes import evaluating

# Both formats give the same sums in another order. What differs by more than this, relative to the largest output, was
# computed from other numbers; TF32 on a GPU already differs by 1e-3.
ROUNDING = 1e-2


def in_fast_format(model: nn.Module, example: Tensor) -> tuple[nn.Module, str]:
    """The model, in place, in channels_last if it computes the same in it; else as it was, and a note that says why.

    A `forward` with `.view` after a convolution fails in channels_last, one that reads strides or storage may give
    something else there. A model that fails in both formats stays as it was without a note: the format is not why.
    """
    deep = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.ndim > 4]
    note = f"{deep[0]} has more than four dimensions, for which there is no channels_last: contiguous" if deep else ""
    if not any(tensor.ndim == 4 for tensor in _tensors(model)):
        return model, note
    before = {tensor: tensor.data for tensor in _tensors(model)}
    usual = _outcomes(model, example)
    for tensor in before:
        if tensor.ndim == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    try:
        fast = _outcomes(model, example)
        why = next((why for one, other in zip(usual, fast, strict=True) if (why := _against(one, other))), "")
    except BaseException:
        _put_back(before)
        raise
    if why:
        _put_back(before)
        return model, f"computed in the contiguous memory format, as channels_last does not suit the model: {why}"
    return model, note


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Every parameter and buffer once."""
    yield from model.parameters()
    yield from model.buffers()


def _put_back(before: dict[Tensor, Tensor]) -> None:
    for tensor, data in before.items():
        tensor.data = data


def _outcomes(model: nn.Module, example: Tensor) -> list[Tensor | Exception]:
    """What a pass in evaluation and one in training give: scores, or what was raised."""
    found: list[Tensor | Exception] = []
    for training in (False, True):
        trial = copy.deepcopy(model) if training else model  # a pass in training changes statistics
        try:
            with _repeatable(), evaluating(trial):
                trial.train(training)
                # BatchNorm needs two samples in training.
                output = trial(example[:1].repeat(1 + training, *[1] * (example.ndim - 1)))
                found.append(output if isinstance(output, Tensor) and not training else torch.zeros(0))
        except Exception as error:  # whatever the user's forward raises
            found.append(error)
    return found


@contextmanager
def _repeatable() -> Iterator[None]:
    """The same random numbers every time, and the caller's go on as if nothing had happened."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        yield


def _against(usual: Tensor | Exception, fast: Tensor | Exception) -> str:
    """What speaks against the fast format; "" if nothing does."""
    if isinstance(usual, Exception):
        return ""
    if isinstance(fast, Exception):
        first = next((line.strip() for line in str(fast).splitlines() if line.strip()), "")
        return f"{type(fast).__name__}: {first}"
    if usual.shape != fast.shape:
        return f"it gives {tuple(fast.shape)} there instead of {tuple(usual.shape)}"
    if usual.numel() and usual.is_floating_point():
        largest, difference = float(usual.abs().max()), float((usual - fast).abs().max())
        if difference > ROUNDING * largest:
            return f"outputs up to {largest:.3g} differ by {difference:.3g} there"
    return ""
