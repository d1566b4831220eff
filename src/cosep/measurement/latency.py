"""How long a forward pass takes, measured so that two models can be compared on a machine that is not idle."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosep.config import check_at_least, check_choice
from cosep.errors import ConfigError, ExportError
from cosep.models.modes import device_of
from cosep.records import Latency

MemoryFormat = Literal["contiguous", "channels_last"]


def latency(
    models: Mapping[str, nn.Module],
    example_input: Tensor,
    *,
    repeats: int = 50,
    warmup: int = 5,
    threads: int | None = None,
    memory_format: MemoryFormat = "contiguous",
    seeds: int = 1,
) -> dict[str, Latency]:
    """Time the models in turn, A B, B A, A B ..., on the example (batch, ...); each runs where its parameters live.

    Taking turns lets a disturbance hit all of them; the speed-up is taken within each round for the same reason.
    The first model is the one the others are compared with. The callers' models are copied, not touched. On a GPU the
    time is that between two events of its stream, the device being idle before. Several `seeds` repeat it all, warm-up
    included, with random inputs of the example's shape: the mean and its deviation are over them.
    """
    _check_settings(models, repeats, warmup, threads)
    check_at_least("seeds", seeds, 1)
    check_choice("memory_format", memory_format, MemoryFormat)
    if memory_format == "channels_last" and example_input.ndim != 4:
        raise ConfigError(
            f"memory_format is 'channels_last' and the input has shape {tuple(example_input.shape)}; that format needs "
            "(batch, channels, height, width). Use 'contiguous'."
        )
    layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    devices = {name: device_of(model) for name, model in models.items()}
    # torch's stubs know `to` with a memory format only together with a tensor.
    ready: dict[str, nn.Module] = {
        name: copy.deepcopy(model).eval().to(memory_format=layout)  # type: ignore[call-overload]
        for name, model in models.items()
    }
    times = []
    with _threads(threads) as used, torch.inference_mode():
        for inputs in _inputs(example_input.detach(), seeds):
            placed = {name: inputs.to(device).contiguous(memory_format=layout) for name, device in devices.items()}
            calls = {name: _Call(partial(model, placed[name]), devices[name]) for name, model in ready.items()}
            times.append(_take_turns(calls, repeats, warmup))
    return _summaries(
        times, len(example_input), used, memory_format, {name: str(d) for name, d in devices.items()}, "torch"
    )


def onnx_latency(
    paths: Mapping[str, str | os.PathLike[str]],
    example_input: Tensor,
    *,
    repeats: int = 50,
    warmup: int = 5,
    threads: int | None = None,
) -> dict[str, Latency]:
    """As `latency`, for exported files in ONNX Runtime on the CPU."""
    _check_settings(paths, repeats, warmup, threads)
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            'timing an ONNX file needs onnxruntime, which is not installed: pip install "cosep[onnx]".'
        ) from error
    used = torch.get_num_threads() if threads is None else threads
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = used
    # A session's threads go on spinning for a while after its turn, on the cores that the next session is timed on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only: warnings about the machine's topology say nothing about the model
    array = example_input.detach().cpu().numpy()
    calls = {}
    for name, path in paths.items():
        try:
            session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own classes have no public base
            raise ExportError(f"onnxruntime cannot open {path}: {error}") from error
        run = partial(session.run, None, {session.get_inputs()[0].name: array})
        calls[name] = _Call(run, torch.device("cpu"))
    times = _take_turns(calls, repeats, warmup)
    return _summaries([times], len(array), used, "contiguous", dict.fromkeys(paths, "cpu"), "onnxruntime")


def _check_settings(models: Mapping[str, Any], repeats: int, warmup: int, threads: int | None) -> None:
    if not models:
        raise ConfigError("there is no model to time; give at least one.")
    check_at_least("repeats", repeats, 1)
    check_at_least("warmup", warmup, 0)
    if threads is not None:
        check_at_least("threads", threads, 1)


@contextmanager
def _threads(count: int | None) -> Iterator[int]:
    """Run with this many of torch's threads (None: as it is), and give back the number before."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _inputs(example: Tensor, seeds: int) -> Iterator[Tensor]:
    """The example itself, then random inputs of its shape, one for every further seed."""
    yield example
    for seed in range(1, seeds):
        yield torch.randn(example.shape, generator=torch.Generator().manual_seed(seed)).to(example.dtype)


@dataclass(frozen=True, eq=False)
class _Call:
    """A forward pass and the device that it runs on, which decides how it is timed."""

    run: Callable[[], object]
    device: torch.device

    def seconds(self) -> float:
        """Do it, to its end, and say how long it took."""
        if self.device.type == "cuda":
            return self._between_events()
        start = time.perf_counter()
        self.run()
        if self.device.type == "mps":  # whose kernels return before they are done, as a GPU's do
            torch.mps.synchronize()
        # A clock that did not tick between the two readings must not make a speed infinite.
        return max(time.perf_counter() - start, 1e-9)

    def _between_events(self) -> float:
        """Kernels return before they are done: the GPU itself notes when the first began and the last was done."""
        with torch.cuda.device(self.device):
            began, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(self.device)
            began.record()
            self.run()
            done.record()
            done.synchronize()
            return max(began.elapsed_time(done) / 1e3, 1e-9)


def _take_turns(calls: Mapping[str, _Call], repeats: int, warmup: int) -> dict[str, list[float]]:
    """Seconds of every call in every round, {name: (repeats,)}; the order is reversed from round to round."""
    for call in calls.values():
        for _ in range(warmup):
            call.seconds()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        for name, call in calls.items() if turn % 2 == 0 else reversed(list(calls.items())):
            times[name].append(call.seconds())
    return times


def _summaries(
    by_seed: Sequence[Mapping[str, list[float]]],
    batch: int,
    threads: int,
    layout: str,
    devices: Mapping[str, str],
    runtime: str,
) -> dict[str, Latency]:
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    times = {name: [value for seed in by_seed for value in seed[name]] for name in by_seed[0]}
    first = torch.tensor(next(iter(times.values())), dtype=torch.float64)
    result = {}
    for name, seconds in times.items():
        own = torch.tensor(seconds, dtype=torch.float64)
        spread = own if len(by_seed) == 1 else own.view(len(by_seed), -1).mean(dim=1)
        p10, median, p90 = torch.quantile(own, levels).tolist()
        ratio_p10, ratio, ratio_p90 = torch.quantile(first / own, levels).tolist()
        result[name] = Latency(
            batch=batch,
            median_ms=median * 1e3,
            p10_ms=p10 * 1e3,
            p90_ms=p90 * 1e3,
            throughput=batch / median,
            speedup=ratio,
            speedup_p10=ratio_p10,
            speedup_p90=ratio_p90,
            repeats=len(seconds) // len(by_seed),
            threads=threads,
            memory_format=layout,
            device=devices[name],
            runtime=runtime,
            mean_ms=float(own.mean()) * 1e3,
            sd_ms=float(spread.std()) * 1e3 if len(spread) > 1 else 0.0,
            seeds=len(by_seed),
        )
    return result
