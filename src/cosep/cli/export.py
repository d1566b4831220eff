"""cosep export: the pruned network as a file for another runtime, checked, with sizes and latency before and after."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosep.cli.bench import (
    ClassesOption,
    InputOption,
    ModelOption,
    conditions,
    documents,
    latency_table,
    source_of,
)
from cosep.cli.common import TrustOption, check_example, console, percent, print_json
from cosep.errors import ConfigError, RunError
from cosep.plugins import is_file_factory
from cosep.records import Latency
from cosep.runs.folder import read_description
from cosep.storage.export import ExportCheck

if TYPE_CHECKING:
    from cosep.data import Data
    from cosep.storage.quantization import Quantized


def export_command(
    run: Annotated[Path, typer.Argument(help="A run folder of `cosep prune`.")],
    onnx: Annotated[Path | None, typer.Option("--onnx", help="Write an ONNX file with a free batch size.")] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="With --onnx: also a file NAME.int8.onnx in 8 bits, beside it, and its accuracy."),
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="The data for --int8.", show_default="those that the run names")
    ] = None,
    program: Annotated[
        Path | None, typer.Option("--program", "--torch", help="Write a torch.export program (.pt2).")
    ] = None,
    model: ModelOption = None,
    classes: ClassesOption = None,
    input_shape: InputOption = None,
    trust: TrustOption = False,
    opset: Annotated[int | None, typer.Option(help="ONNX operator set.", show_default="the exporter's")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference allowed, relative to the outputs.", show_default="1e-4")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of the latency measurement.")] = 30,
    threads: Annotated[int | None, typer.Option(help="Threads to time with.", show_default="torch's own")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Export the pruned network of a run, compare it with the original in the other runtime, and time both.

    Neither file needs cosep where it runs: a program is loaded by torch.export.load, an ONNX file by ONNX Runtime.

    Examples:

      cosep export run/ --onnx model.onnx --int8

      cosep export run/ --program model.pt2
    """
    from cosep.measurement import latency, onnx_latency
    from cosep.storage import export_onnx, export_torch
    from cosep.storage.artifacts import load
    from cosep.storage.quantization import quantize_onnx

    if onnx is None and program is None:
        raise ConfigError("nothing to export: give --onnx FILE, --program FILE or both.")
    if int8 and onnx is None:
        raise ConfigError("--int8 quantizes an ONNX file: give --onnx FILE too.")
    calibrated = data_of(run, data, trusted=trust) if int8 else None
    source = source_of(run, model, classes, input_shape, trusted=trust)
    before = source.uncut()
    check_example(before, source.example())
    after = load(run, before)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cosep-") as scratch:
        if onnx is not None:
            check = export_onnx(after, onnx, source.example(), opset=opset, tolerance=tolerance)
            whole = export_onnx(
                before, Path(scratch) / "before.onnx", source.example(), opset=opset, tolerance=tolerance
            )
            files = {"before": whole.path, "after": check.path}
            times = onnx_latency(files, source.example(), repeats=repeats, threads=threads)
            found["onnx"] = _told(check, whole, {1: times}, quiet=json)
            if calibrated is not None:
                small = onnx.with_suffix(f".int8{onnx.suffix}")
                made = quantize_onnx(onnx, small, calibrated.calibration, evaluate=calibrated.test)
                both = {"float": check.path, "int8": made.path}
                times = onnx_latency(both, source.example(), repeats=repeats, threads=threads)
                found["int8"] = _told_quantized(made, {1: times}, quiet=json)
        if program is not None:
            check = export_torch(after, program, source.example(), tolerance=tolerance)
            whole = export_torch(before, Path(scratch) / "before.pt2", source.example(), tolerance=tolerance)
            models = {"before": before, "after": after}
            times = latency(models, source.example(), repeats=repeats, threads=threads)
            found["program"] = _told(check, whole, {1: times}, quiet=json)
    if json:
        print_json(found)


LOST = 1.0  # points that a quantized network may lose without a warning


def _told_quantized(made: Quantized, times: dict[int, dict[str, Latency]], *, quiet: bool) -> dict[str, Any]:
    """Show what quantizing did unless `quiet`, and give it as plain values."""
    lost = None
    if made.accuracy is not None and made.float_accuracy is not None:
        lost = 100 * (made.float_accuracy - made.accuracy)
    if not quiet:
        console.print(latency_table(times, "in 8 bits"))
        accuracies = (
            "" if lost is None else f"test accuracy {percent(made.float_accuracy)} -> {percent(made.accuracy)}, "
        )
        console.print(
            f"{accuracies}the same class for {percent(made.agreement)} of {made.images} calibration images; size "
            f"{made.float_bytes:,} -> {made.size_bytes:,} bytes "
            f"({100 * made.size_bytes / made.float_bytes:.1f} %)",
            highlight=False,
            soft_wrap=True,
        )
    if lost is not None and lost > LOST:
        words = f"warning: in 8 bits the network loses {lost:.1f} points of test accuracy. Take the float file instead."
        console.print(words, style="yellow", highlight=False, soft_wrap=True)
    speed = times[1]["int8"].speedup
    if speed < 1:
        words = f"warning: in 8 bits the network is slower here ({speed:.2f}x as fast). Take the float file instead."
        console.print(words, style="yellow", highlight=False, soft_wrap=True)
    if not quiet:
        console.print(str(made.path), highlight=False, soft_wrap=True, markup=False)
    return {
        "file": str(made.path),
        "bytes": {"float": made.float_bytes, "int8": made.size_bytes},
        "accuracy": {"float": made.float_accuracy, "int8": made.accuracy},
        "agreement": made.agreement,
        "images": made.images,
        "latency": documents(times),
    }


def data_of(run: Path, named: str | None, *, trusted: bool) -> Data:
    """The data of a run, or those that the user names; prepared as the run's were."""
    from cosep.data import load_data

    described = read_description(run)
    about = described.get("about", {})
    name = named or about.get("data")
    if not name:
        raise RunError(f"{run}/config.toml names no data, as the run was started from Python. Give --data.")
    if named is None and is_file_factory(name) and not trusted:
        raise RunError(
            f"{run}/config.toml names the data {name!r}, and to open them would run that file. Nothing was run. Where "
            "you know the file, add --trust."
        )
    return load_data(
        name,
        holdout=float(about.get("holdout", 0.1)),
        seed=int(described.get("seed", 0)),
        image_size=int((about.get("input") or [224])[-1]),
        mean=tuple(about.get("mean") or ()) or None,
        std=tuple(about.get("std") or ()) or None,
    )


def _told(
    check: ExportCheck, whole: ExportCheck, times: dict[int, dict[str, Latency]], *, quiet: bool
) -> dict[str, Any]:
    """Show what was exported unless `quiet`, and give it as plain values."""
    if not quiet:
        console.print(latency_table(times))
        console.print(conditions(times), highlight=False)
        console.print(
            f"size {whole.size_bytes:,} -> {check.size_bytes:,} bytes "
            f"({100 * check.size_bytes / whole.size_bytes:.1f} %), largest difference from the pruned network "
            f"{check.max_difference:.3g} with outputs up to {check.max_output:.3g}"
            + (f", ONNX operator set {check.opset}" if check.opset else ""),
            highlight=False,
            soft_wrap=True,
        )
        console.print(str(check.path), highlight=False, soft_wrap=True, markup=False)
    return {
        "file": str(check.path),
        "max_difference": check.max_difference,
        "max_output": check.max_output,
        "batches": list(check.batches),
        "opset": check.opset,
        "bytes": {"before": whole.size_bytes, "after": check.size_bytes},
        "latency": documents(times),
    }
