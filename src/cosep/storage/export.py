"""Files for other runtimes, each one run and compared with the model before it is put in its place."""

from __future__ import annotations

import copy
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosep.errors import ExportError
from cosep.models.modes import no_tensor
from cosep.storage.files import write_atomically

BATCHES = (1, 3)  # both sides of what tracing takes for a special case: 1 must work, and so must another number

# What to write instead of what an exporter takes for a number.
FREE_BATCH = "The batch size stays free in x.shape[0] and x.flatten(1), not in len(x) or x.view(8, -1)."

# ONNX files are protocol buffers, which end at 2 GiB.
ONNX_LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class ExportCheck:
    """An exported file and how far its outputs were from the model's on random inputs."""

    path: Path
    format: Literal["onnx", "torch"]
    max_difference: float  # the largest absolute one of any output
    max_output: float  # the largest absolute output of the model itself, to judge the difference by
    batches: tuple[int, ...]  # the batch sizes that were compared
    size_bytes: int
    opset: int | None = None  # ONNX only

    def __str__(self) -> str:
        return (
            f"{self.path}  {self.size_bytes:,} bytes{f', opset {self.opset}' if self.opset else ''}, "
            f"largest difference {self.max_difference:.3g} (outputs up to {self.max_output:.3g}, "
            f"batches of {' and '.join(map(str, self.batches))})"
        )


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: Tensor,
    *,
    opset: int | None = None,
    tolerance: float | None = None,
) -> ExportCheck:
    """Write the model as one ONNX file with a free batch size, from an example (batch, ...), checked in ONNX Runtime.

    `tolerance` is relative to the largest output; None: 1e-4, or 2e-2 in half precision. The model itself is not
    touched; it is exported in evaluation mode, on the CPU. Input and output are named "input" and "output".
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401  (needed below; better to know before the work)
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f'exporting to ONNX needs {error.name}, which is not installed: pip install "cosep[onnx]".'
        ) from error
    path, ready, example = _prepared(model, path, example_input)
    size = sum(tensor.numel() * tensor.element_size() for tensor in ready.state_dict().values())
    if size > ONNX_LIMIT:
        raise ExportError(f"the weights have {size:,} bytes; one ONNX file holds {ONNX_LIMIT:,}. Use export_torch.")
    with _quiet(), _explained("ONNX"):
        program: Any = torch.onnx.export(
            ready,
            (example,),
            input_names=["input"],
            output_names=["output"],
            opset_version=opset,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        proto = program.model_proto
    # The exporter notes on every node the source lines it came from, with the paths of this machine.
    for node in proto.graph.node:
        del node.metadata_props[:]
    used = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset is not None and used != opset:  # where it cannot convert, the exporter keeps its own without a word
        raise ExportError(
            f"the exporter could not write the model with operator set {opset}: it gave {used}. Nothing was written. "
            f"Ask for {used} or later, or leave the choice to it."
        )

    def write(beside: Path) -> tuple[float, float]:
        onnx.save_model(proto, os.fspath(beside))
        return _compared(ready, in_onnxruntime(beside), example, tolerance, path)

    return _written(path, write, "onnx", used)


def export_torch(
    model: nn.Module, path: str | os.PathLike[str], example_input: Tensor, *, tolerance: float | None = None
) -> ExportCheck:
    """Write the model with `torch.export`, with a free batch size, from an example (batch, ...); reloaded and compared.

    `torch.export.load(path).module()` runs it without this library or the model's source. See `export_onnx`.
    """
    path, ready, example = _prepared(model, path, example_input)
    with _quiet(), _explained("torch.export"):
        program = torch.export.export(ready, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))

    def write(beside: Path) -> tuple[float, float]:
        with _quiet(), _explained("torch.export"):
            torch.export.save(program, beside)
            reloaded = torch.export.load(beside).module()
        return _compared(ready, reloaded, example, tolerance, path)

    return _written(path, write, "torch", None)


def _prepared(model: nn.Module, path: str | os.PathLike[str], example_input: Tensor) -> tuple[Path, nn.Module, Tensor]:
    """The path, a copy of the model to export, and an example whose batch size no tracer takes for a constant."""
    path = Path(path)
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name the file to write, for example {path / 'model.onnx'}.")
    if not path.parent.is_dir():
        raise ExportError(f"{path.parent} is no folder, so {path.name} cannot be written there. Make it first.")
    if example_input.ndim < 2 or len(example_input) == 0:
        raise ExportError(
            f"the example input has shape {tuple(example_input.shape)}; (batch, ...) with a sample is needed."
        )
    ready = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    example = example_input[:1].detach().cpu()
    try:
        with torch.no_grad():
            output = ready(example)
    except Exception as error:  # whatever the user's forward raises
        raise ExportError(f"the model fails on one sample of the example {tuple(example.shape)}: {error}") from error
    if not isinstance(output, Tensor):
        raise ExportError(no_tensor(output))
    return path, ready, example.repeat(2, *[1] * (example.ndim - 1))


def _written(
    path: Path, write: Callable[[Path], tuple[float, float]], kind: Literal["onnx", "torch"], opset: int | None
) -> ExportCheck:
    """Write the file atomically and describe it."""
    found: list[tuple[float, float]] = []
    try:
        write_atomically(path, lambda beside: found.append(write(beside)))
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error}") from error
    difference, largest = found[0]
    return ExportCheck(path, kind, difference, largest, BATCHES, path.stat().st_size, opset)


def _compared(
    model: nn.Module, exported: Callable[[Tensor], Tensor], example: Tensor, tolerance: float | None, path: Path
) -> tuple[float, float]:
    """The largest difference and the largest output over all batch sizes; an error if the difference is too large."""
    difference = largest = 0.0
    generator = torch.Generator().manual_seed(0)
    for batch in BATCHES:
        inputs = example[:1].repeat(batch, *[1] * (example.ndim - 1))
        if inputs.is_floating_point():
            inputs = torch.randn(inputs.shape, generator=generator).to(inputs.dtype)
        with torch.no_grad():
            expected = model(inputs)
            output_type = expected.dtype if expected.is_floating_point() else torch.float32
            expected = expected.double()
            try:
                found = exported(inputs).double()
            except Exception as error:  # whatever the other runtime raises
                raise ExportError(
                    f"the export to {path} does not run with a batch of {batch}, as if it had a fixed batch size "
                    f"({_first_line(error)}). {FREE_BATCH}"
                ) from error
        if not expected.isfinite().all():
            raise ExportError(
                "the model's own output is not finite on random inputs, so no export can be checked against it. "
                "Check its weights for NaN."
            )
        if found.shape != expected.shape:
            raise ExportError(
                f"the export to {path} gave {tuple(found.shape)} for a batch of {batch}; the model gives "
                f"{tuple(expected.shape)}. It may have a fixed batch size. {FREE_BATCH}"
            )
        if expected.numel():
            difference = max(difference, _largest(found - expected))
            largest = max(largest, _largest(expected))
    if tolerance is None:
        tolerance = 1e-4 if torch.finfo(output_type).eps < 1e-6 else 2e-2
    # Relative only: the outputs of an untrained deep network may be of the order of 1e-9, where any absolute bound
    # would let zeros pass.
    allowed = tolerance * largest
    if difference > allowed:
        raise ExportError(
            f"the export to {path} differs from the model by up to {difference:.3g}; {allowed:.3g} is allowed (outputs "
            f"up to {largest:.3g}). Nothing was written. Raise `tolerance` if that is good enough."
        )
    return difference, largest


def _largest(values: Tensor) -> float:
    # A NaN counts as infinitely far, for max() would lose it.
    return float(values.abs().nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def in_onnxruntime(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = 1  # its idle threads spin, which on a busy machine costs more than they bring
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes have no public base
        raise ExportError(f"onnxruntime cannot open what was exported: {error}") from error
    return partial(_run_session, session)


def _run_session(session: Any, inputs: Tensor) -> Tensor:
    return torch.from_numpy(session.run(["output"], {"input": inputs.numpy()})[0])


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn whatever an exporter raises into one error with its first line and the usual causes."""
    try:
        yield
    except Exception as error:  # exporters raise every kind
        raise ExportError(
            f"{what} could not export the model ({_first_line(error)}). Usual causes: a forward that depends on the "
            f"values of its input, or on a fixed batch size. {FREE_BATCH}"
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress, notes and warnings about themselves away from the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
