"""cosep export: the pruned network as a file for another runtime, checked, with sizes and latency before and after."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

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
from cosep.cli.common import TrustOption, check_example, console, print_json
from cosep.errors import ConfigError
from cosep.records import Latency
from cosep.storage.export import ExportCheck


def export_command(
    run: Annotated[Path, typer.Argument(help="A run folder of `cosep prune`.")],
    onnx: Annotated[Path | None, typer.Option("--onnx", help="Write an ONNX file with a free batch size.")] = None,
    torch: Annotated[Path | None, typer.Option("--torch", help="Write a torch.export file (.pt2).")] = None,
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

    Example: cosep export run/ --onnx model.onnx
    """
    from cosep.measurement import latency, onnx_latency
    from cosep.storage import export_onnx, export_torch
    from cosep.storage.artifacts import load

    if onnx is None and torch is None:
        raise ConfigError("nothing to export: give --onnx FILE, --torch FILE or both.")
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
        if torch is not None:
            check = export_torch(after, torch, source.example(), tolerance=tolerance)
            whole = export_torch(before, Path(scratch) / "before.pt2", source.example(), tolerance=tolerance)
            models = {"before": before, "after": after}
            times = latency(models, source.example(), repeats=repeats, threads=threads)
            found["torch"] = _told(check, whole, {1: times}, quiet=json)
    if json:
        print_json(found)


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
