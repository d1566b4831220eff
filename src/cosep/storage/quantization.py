"""ONNX files with 8-bit integers: quantized statically by ONNX Runtime on calibration data, and measured beside the
float file."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cosep.data.batches import inputs_and_labels, pair_of
from cosep.errors import DataError, ExportError
from cosep.storage.export import in_onnxruntime
from cosep.storage.files import write_atomically

IMAGES = 512  # calibration images: ranges of activations hardly change with more
AT_A_TIME = 32  # images in memory with all their activations


@dataclass(frozen=True)
class Quantized:
    """A quantized file beside the float one; accuracies are shares, None where no labelled data were given."""

    path: Path
    size_bytes: int
    float_bytes: int
    images: int  # that the ranges were measured on
    agreement: float  # the share of these that both put into the same class
    accuracy: float | None = None
    float_accuracy: float | None = None


def quantize_onnx(
    model: str | os.PathLike[str],
    path: str | os.PathLike[str],
    calibration: Iterable[Any],
    *,
    evaluate: Iterable[Any] | None = None,
    images: int = IMAGES,
) -> Quantized:
    """Write an ONNX file, as `export_onnx` makes it, with weights and activations in 8 bits.

    The ranges of activations are those of the first `images` calibration images, given as batches of inputs, with or
    without labels. With `evaluate`, batches of (inputs, labels), both files are scored in ONNX Runtime.
    """
    try:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise ExportError(
            f'quantizing needs {error.name}, which is not installed: pip install "cosep[onnx]".'
        ) from error
    model, path = Path(model), Path(path)
    seen = _first(calibration, images)
    if not seen:
        raise DataError("the calibration data gave no image to measure ranges on.")

    def write(beside: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="cosep-") as scratch, _quiet():
            ready = Path(scratch) / "ready.onnx"
            quant_pre_process(str(model), str(ready))
            quantize_static(
                str(ready),
                str(beside),
                _Reader(seen),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )

    try:
        write_atomically(path, write)
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error}") from error
    except Exception as error:  # whatever the quantizer raises
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(f"ONNX Runtime could not quantize {model}: {first}") from error
    floats, integers = in_onnxruntime(model), in_onnxruntime(path)
    same = sum(int((floats(x).argmax(1) == integers(x).argmax(1)).sum()) for x in seen)
    count = sum(len(x) for x in seen)
    scored = [None if evaluate is None else _accuracy(run, evaluate) for run in (integers, floats)]
    return Quantized(path, path.stat().st_size, model.stat().st_size, count, same / count, scored[0], scored[1])


class _Reader:
    """Calibration images, in the form in which ONNX Runtime asks for them."""

    def __init__(self, batches: list[Tensor]) -> None:
        self._left: Iterator[Tensor] = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._left, None)
        return None if batch is None else {"input": batch.numpy()}


def _first(batches: Iterable[Any], images: int) -> list[Tensor]:
    """The inputs of the first so many images, a few at a time, on the CPU."""
    found: list[Tensor] = []
    left = images
    for batch in batches:
        inputs, _ = inputs_and_labels(batch, "a batch of the calibration data")
        some = inputs[:left].detach().cpu().contiguous()
        found += list(some.split(AT_A_TIME))
        left -= len(some)
        if left <= 0:
            break
    return found


def _accuracy(run: Callable[[Tensor], Tensor], batches: Iterable[Any]) -> float:
    right = images = 0
    for batch in batches:
        inputs, labels = pair_of(batch, "a batch of the data to be scored")
        for x, y in zip(inputs.cpu().split(AT_A_TIME), labels.cpu().split(AT_A_TIME), strict=True):
            right += int((run(x.contiguous()).argmax(1) == y).sum())
            images += len(x)
    return right / max(1, images)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer's advice goes to the root logger; what it has to say of a failure it raises."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
