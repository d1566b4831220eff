"""How long a run will take and how much memory it needs, said before the work starts.

One forward pass, one update and one product of matrices are timed here; the rest is counting. The work that is counted
is that of the stages which take nearly all of the time, so an estimate is good to a factor of about two.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cosep.criteria.view import ASIDE, FITTED, fitted_and_aside
from cosep.data.batches import small_images
from cosep.layers.maps import LinearMap, may_be_solved
from cosep.models.modes import evaluating
from cosep.runs.recovering import SHOWN_IMAGES, planned_updates
from cosep.runs.remaking import SEARCH_IMAGES, images_of_rebuild
from cosep.runs.search import STEPS, searches
from cosep.runs.state import Batches, Job, State

TIMED_IMAGES = 16
LONG_ENOUGH = 0.3  # seconds of timing one thing
GIB = 1 << 30
# Passes over an image that a stage costs, beside its products of matrices: both networks run, one layer at a time.
REBUILD_PASSES, LOOK_PASSES, DAMAGE_PASSES = 4.0, 3.5, 0.6
REFINING_COST = 3.0  # plain passes for each one in which blocks are refined: forward, backward, judging


@dataclass(frozen=True)
class Estimate:
    """What a run will need, about."""

    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage that is still to come
    bytes: int = 0  # of memory, at the most
    rounds: int = 0  # what comes so many times: groups one by one, or the sizes of a sweep; 0: all at once

    @property
    def in_all(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class _Speed:
    """What this machine does in a second, as far as it matters."""

    forward: float  # seconds an image
    update: float  # seconds an image, forward and backward
    product: float  # seconds a multiply-accumulate of a product of matrices


def estimated(job: Job, state: State, evaluate: Batches | None, *, deciding: bool = False, sizes: int = 0) -> Estimate:
    """What is left of a run, from where it is; `deciding`: it ends with a plan. `sizes`: so many are made of it."""
    with torch.random.fork_rng(devices=()):
        speed = _speed(job)
    config, passes = job.config, job.config.rebuild
    images = images_of_rebuild(job, passes) or _images(job.calibration)
    images = min(images, _images(job.calibration) or images)
    solves = sum(_solving(job, d, images) for d in _columns(job)) * speed.product
    one = (REBUILD_PASSES * images * speed.forward + solves) if passes.solve else images * speed.forward
    again = passes.refine if passes.solve else 0
    refining = again * REFINING_COST * images * speed.forward
    left = len(job.groups) - len(state.plans)
    seconds: dict[str, float] = {}
    if left and config.select.criterion.startswith(("cosep", "medoid", "random-in")):
        heads = sum(group.unit == "head" for group in job.groups) if config.profile.heads == "multivariate" else 0
        looks = left + heads if config.order == "one-by-one" else 1 + bool(heads)
        seconds["observe"] = looks * (config.observe.images or _images(job.calibration)) * speed.forward
    if left and (config.select.criterion == "elimination" or job.rule.name == "damage"):
        there = _images(job.calibration) or FITTED + ASIDE
        fitted, aside = fitted_and_aside(there, len(job.groups), small_images(job.example.shape))
        seconds["look"] = LOOK_PASSES * fitted * speed.forward + 3 * sum(d**3 for d in _columns(job)) * speed.product
        seconds["damage"] = DAMAGE_PASSES * len(job.groups) * aside * speed.forward
    if left and searches(job) and not sizes:
        share = min(1.0, SEARCH_IMAGES / max(1, images))
        seconds["search"] = (STEPS - len(state.tried)) * (share * (one + refining) + 2 * SEARCH_IMAGES * speed.forward)
    if left and not deciding:
        in_all = one * left if config.order == "one-by-one" else one + refining
        seconds["rebuild" if passes.solve else "batchnorm"] = in_all
    if job.trains and (state.final is None) and not job.recovery:
        teacher = speed.forward if config.recover.distill or config.recover.features else 0.0
        size = _batch_size(job.train) or TIMED_IMAGES
        seconds["recover"] = planned_updates(job, state) * size * (speed.update + teacher)
    held = _images(job.holdout)
    after_each = 0 if config.order == "together" else held if job.takes_back else min(held, SHOWN_IMAGES)
    scored = 2 * _images(evaluate) + 3 * held + left * after_each
    if not deciding:
        seconds["measure"] = scored * speed.forward
    for stage in ("rebuild", "batchnorm", "recover", "measure") if sizes else ():
        seconds[stage] = sizes * seconds.get(stage, 0.0)
    return Estimate(seconds, _memory(job, images), left if config.order == "one-by-one" else sizes)


def _speed(job: Job) -> _Speed:
    """Time one pass, one update and one product."""
    inputs = job.example.repeat(TIMED_IMAGES, *[1] * (job.example.ndim - 1))
    with evaluating(job.original):
        forward = _timed(lambda: job.original(inputs), job.example.device)
    update = 3 * forward
    if job.trains and not job.recovery:
        student = copy.deepcopy(job.original).train()
        with torch.enable_grad():
            update = _timed(lambda: student(inputs).float().square().mean().backward(), job.example.device)
    square = torch.ones(256, 256)
    product = _timed(lambda: square @ square, square.device) / 256**3
    return _Speed(forward / TIMED_IMAGES, update / TIMED_IMAGES, product)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """The fastest of a few times, after a first one that does not count: on a busy machine a single one may be any."""
    work()
    _settle(device)
    found: list[float] = []
    while len(found) < 5 and sum(found) < LONG_ENOUGH:
        start = time.perf_counter()
        work()
        _settle(device)
        found.append(time.perf_counter() - start)
    return min(found)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _columns(job: Job) -> list[int]:
    """How many columns the solution of each layer has."""
    return [LinearMap(module).columns for module in job.original.modules() if may_be_solved(module)]


def _solving(job: Job, columns: int, images: int) -> float:
    """Multiply-accumulates behind the solution of one layer: sums of products of its rows, and a factorisation."""
    rows = min(job.config.rebuild.rows * columns, job.config.rebuild.positions * images)
    return rows * columns**2 + 2 * columns**3


def _memory(job: Job, images: int) -> int:
    """Bytes at the most: what the process holds now, and the larger of the rebuild and the training."""
    weights = sum(t.numel() * t.element_size() for t in job.original.state_dict().values() if isinstance(t, Tensor))
    outputs = _output_bytes(job)
    kept = min(images * max(outputs, default=0), round(job.config.rebuild.memory * GIB))
    inputs = images * job.example.numel() * job.example.element_size()
    grams = sum(8 * columns**2 for columns in _columns(job))
    rebuilding = 3 * weights + kept + inputs + grams
    training = 0
    if job.trains and not job.recovery:
        training = 6 * weights + (_batch_size(job.train) or TIMED_IMAGES) * 2 * sum(outputs)
    return _held() + max(rebuilding, training)


def _output_bytes(job: Job) -> list[int]:
    """What each layer gives for one image, in bytes."""
    found: list[int] = []

    def note(_module: nn.Module, _inputs: Any, output: object) -> None:
        if isinstance(output, Tensor):
            found.append(output.numel() * output.element_size())

    handles = [m.register_forward_hook(note) for m in job.original.modules() if not list(m.children())]
    try:
        with evaluating(job.original):
            job.original(job.example)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _held() -> int:
    """The memory that this process holds now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _batch_size(loader: Batches | None) -> int:
    """The images of a batch, where the loader says it without being read; else 0."""
    size = getattr(loader, "batch_size", None)
    if isinstance(size, int):
        return size
    if isinstance(loader, (list, tuple)) and loader:
        first = loader[0][0] if isinstance(loader[0], (list, tuple)) else loader[0]
        return len(first) if hasattr(first, "__len__") else 0
    return 0


def _images(loader: Batches | None) -> int:
    """About how many images a loader gives; 0 where it does not say."""
    try:
        return len(loader) * _batch_size(loader)  # type: ignore[arg-type]
    except TypeError:
        return 0
