"""What makes two starts one run: what the data hold and what the model computes, not where they lie.

Numbers, not checksums of floats: another processor rounds an image's normalisation and a network's scores otherwise in
the last bit, and that is no other data set and no other model. A few random sums of the numbers are kept instead, and
compared within a tolerance. The machine is recorded too; another one is told, not refused.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.data.batches import inputs_and_labels
from cosep.errors import CosepError
from cosep.models.modes import device_of, evaluating

IDENTITY, MACHINE = "identity", "machine"
BATCHES = 2  # of each part: enough to tell data sets apart, and read in a moment
SUMS = 4

# Relative to the size of what is summed. Images differ by rounding only; scores add up the rounding of every layer.
SAME_IMAGES, SAME_SCORES = 1e-4, 1e-3
PLACES = ("about.model", "about.checkpoint", "about.data")  # where things were found, of which the content is known


def identity_of(
    model: nn.Module, loaders: Mapping[str, Iterable[Any] | None], example: Tensor | None, *, seed: int, device: str
) -> dict[str, dict[str, Any]]:
    """The sections of a run's description by which its model, data and machine are known again.

    The model is a copy of the caller's own making: it is run once. example: an input, else the first of calibration.
    """
    found: dict[str, Any] = {}
    with torch.random.fork_rng(devices=()):
        for part, loader in loaders.items():
            if loader is not None:
                numbers, first = _content(loader, seed)
                found |= {f"{part}_{name}": value for name, value in numbers.items()}
                example = first if example is None and part == "calibration" else example
        found["scores"] = [] if example is None else _scores(model, example)
    return {IDENTITY: found, MACHINE: machine(device)}


def machine(device: str) -> dict[str, Any]:
    """What decides how numbers are rounded here."""
    return {
        "device": device,
        "processor": _processor(),
        "kernels": f"{torch.backends.cpu.get_cpu_capability()} {os.environ.get('MKL_CBWR', '')}".strip(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _content(loader: Iterable[Any], seed: int) -> tuple[dict[str, Any], Tensor | None]:
    """What the first batches of a loader hold, and the first inputs; nothing of one that gives others every time."""
    unknown: dict[str, Any] = {"batches": 0, "labels": "", "images": []}
    if hasattr(loader, "__next__"):  # it would give every batch but these afterwards
        return unknown, None
    try:
        batches = list(islice(_batches(loader, seed), BATCHES))
        again = next(_batches(loader, seed), None)
    except CosepError:  # the checks of the data will say it better
        return unknown, None
    if not batches or again is None:
        return unknown, None
    first = batches[0][0]
    if not all(torch.equal(one, other) for one, other in zip(batches[0], again, strict=True)):
        return unknown, first
    digest = hashlib.sha256()
    numbers = []
    for inputs, labels in batches:
        numbers.append(inputs)
        if labels.is_floating_point():
            numbers.append(labels)  # probabilities
        else:
            digest.update(f"{tuple(labels.shape)} {labels.long().tolist()}".encode())
    try:
        length = len(loader)  # type: ignore[arg-type]
    except TypeError:
        length = 0
    return {"batches": length, "labels": digest.hexdigest()[:16], "images": _sums(numbers)}, first


def _batches(loader: Iterable[Any], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the first pass, in the same order every time, also of a shuffled DataLoader."""
    torch.manual_seed(seed)
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(0)
    for batch in loader:
        inputs, labels = inputs_and_labels(batch, "a batch")
        yield inputs, torch.empty(0, dtype=torch.int64) if labels is None else labels


def _scores(model: nn.Module, example: Tensor) -> list[float]:
    """What the model computes for a fixed input of the example's shape; nothing if it fails, which is told later."""
    torch.manual_seed(0)
    inputs = example[:1].detach().cpu()
    if inputs.is_floating_point():
        inputs = torch.randn(2, *inputs.shape[1:], generator=torch.Generator().manual_seed(0)).to(inputs.dtype)
    try:
        with evaluating(model):
            output = model(inputs.to(device_of(model)))
    except Exception:  # whatever the user's forward raises
        return []
    return _sums([output]) if isinstance(output, Tensor) else []


def _sums(tensors: Iterable[Tensor]) -> list[float]:
    """A few sums of all the numbers with fixed random weights, and the root of the sum of their squares."""
    generator = torch.Generator().manual_seed(0)
    sums, square = torch.zeros(SUMS, dtype=torch.float64), 0.0
    for tensor in tensors:
        rows = tensor.detach().cpu().reshape(len(tensor), -1)
        columns = torch.randn(rows.shape[1], SUMS, generator=generator).double()
        for few in rows.split(16):  # to spare memory
            values = few.double()
            sums += (values @ columns * torch.randn(len(few), SUMS, generator=generator).double()).sum(0)
            square += float(values.square().sum())
    found = [*sums.tolist(), square**0.5]
    return [round(value, 9) for value in found] if all(map(math.isfinite, found)) else []


def other_run(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In what two flat descriptions of runs differ, as the end of a sentence; "" if they are of one run."""
    known = f"{IDENTITY}.scores" in stored and f"{IDENTITY}.scores" in wanted
    for name in sorted(stored.keys() | wanted.keys()):
        section, _, rest = name.partition(".")
        if section == MACHINE:
            continue
        there, here = stored.get(name), wanted.get(name)
        if section == IDENTITY:
            if found := _other_content(rest, there, here):
                return found
        elif name not in stored:
            return f"that says nothing of {name}, which is {here!r} here"
        elif there != here and not (known and name in PLACES and name in wanted):
            return f"its {name} is {there!r}, this one's is {here!r}"
    return ""


def _other_content(name: str, there: Any, here: Any) -> str:
    part, _, what = name.rpartition("_")
    if part == "evaluate" and (there is None or here is None):
        return ""  # it decides nothing: a run may go on with or without it
    if there is None or here is None:
        return f"it was started {'without' if there is None else 'with'} {part or name}, and this one is not"
    if not there or not here or there == here:
        return ""  # unknown: a loader that gives other batches every time
    if name == "scores":
        if _close(there, here, SAME_SCORES):
            return ""
        return "with the same weights the model gave other scores for the same input: its forward is another one"
    if what == "images" and _close(there, here, SAME_IMAGES):
        return ""
    found = {"batches": f"{there} batches, {here} here", "labels": "other labels", "images": "other inputs"}[what]
    return f"its {part} data were others ({found})"


def _close(there: list[float], here: list[float], tolerance: float) -> bool:
    return len(there) == len(here) and all(
        abs(one - other) <= tolerance * max(abs(there[-1]), 1e-30) for one, other in zip(there, here, strict=True)
    )


def warn_of_another_machine(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Tell the caller that a run goes on where numbers are rounded otherwise."""
    names = sorted(name for name in wanted if name.startswith(f"{MACHINE}.") and stored.get(name) != wanted[name])
    if names:
        told = ", ".join(f"{name.partition('.')[2]} {stored.get(name)!r}, now {wanted[name]!r}" for name in names)
        warnings.warn(
            f"the run in {folder} was started under other conditions ({told}). It goes on, but sums are rounded "
            "otherwise here: the result may differ from that of a run that was never stopped. For exactly that result, "
            "go on under the first conditions, or start over in another folder.",
            stacklevel=2,
        )
