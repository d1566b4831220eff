"""cosep bench: latency and throughput of a run's network before and after, measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from cosep.cli.common import RunModel, TrustOption, check_example, console, print_json, run_model, shape_of
from cosep.config import check_at_least, check_choice
from cosep.measurement.latency import MemoryFormat
from cosep.records import Latency

ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="The uncut model, where the run does not name it or named a file that moved."),
]
ClassesOption = Annotated[int | None, typer.Option("--classes", help="Its number of classes, with --model.")]
InputOption = Annotated[str | None, typer.Option("--input", help="The shape of one input, such as 3,224,224.")]


def bench_command(
    run: Annotated[Path, typer.Argument(help="A run folder of `cosep prune`.")],
    model: ModelOption = None,
    classes: ClassesOption = None,
    input_shape: InputOption = None,
    trust: TrustOption = False,
    batch: Annotated[int, typer.Option(help="The batch size, beside single inputs.")] = 32,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, both networks take a turn.")] = 50,
    warmup: Annotated[int, typer.Option(help="Untimed calls before the first round.")] = 5,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with.", show_default="torch's own")] = None,
    memory_format: Annotated[str, typer.Option(help="contiguous or channels_last.")] = "contiguous",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Time the network of a run before and after pruning, for single inputs and for batches.

    Example: cosep bench run/ --threads 1 --memory-format channels_last
    """
    from cosep.measurement import latency
    from cosep.storage.artifacts import load

    check_at_least("--batch", batch, 1)
    check_choice("--memory-format", memory_format, MemoryFormat)
    source = source_of(run, model, classes, input_shape, trusted=trust)
    before = source.uncut()
    check_example(before, source.example())
    models = {"before": before, "after": load(run, before)}
    times = {
        size: latency(
            models,
            source.example(size),
            repeats=repeats,
            warmup=warmup,
            threads=threads,
            memory_format=cast(MemoryFormat, memory_format),
        )
        for size in sorted({1, batch})
    }
    if json:
        print_json({"latency": documents(times)})
        return
    console.print(latency_table(times))
    console.print(conditions(times), highlight=False)


def source_of(
    run: Path, model: str | None, classes: int | None, shape: str | None, *, trusted: bool = False
) -> RunModel:
    """The uncut model that a run folder names, or the one that the user names instead."""
    if model is not None:
        return RunModel(model, None, classes, shape_of(shape, model))
    named = run_model(run, trusted=trusted)
    return RunModel(
        named.spec,
        named.weights,
        classes or named.classes,
        named.shape if shape is None else shape_of(shape, named.spec),
        named.fingerprint if classes is None else "",
        named.parameters,
    )


def documents(times: Mapping[int, Mapping[str, Latency]]) -> list[dict[str, Any]]:
    """The latencies of every batch size and network as plain values."""
    return [{"model": name, **asdict(found)} for both in times.values() for name, found in both.items()]


def latency_table(times: Mapping[int, Mapping[str, Latency]]) -> Table:
    """One row a network and batch size: median and spread of the time, throughput, speed-up within the rounds."""
    table = Table()
    for column in ("batch", "network", "median", "10 to 90 %", "inputs/s", "speed-up", "10 to 90 %"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for size, both in times.items():
        for index, (name, found) in enumerate(both.items()):
            speedup = (f"{found.speedup:.2f}x", f"{found.speedup_p10:.2f} to {found.speedup_p90:.2f}")
            table.add_row(
                str(size),
                name,
                f"{found.median_ms:.3f} ms",
                f"{found.p10_ms:.3f} to {found.p90_ms:.3f}",
                f"{found.throughput:,.0f}",
                *(speedup if index else ("", "")),
            )
    return table


def conditions(times: Mapping[int, Mapping[str, Latency]]) -> str:
    """Under which conditions the times were taken, in a line."""
    found = next(iter(next(iter(times.values())).values()))
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    return f"{found.runtime} on {found.device}, {threads}, {found.memory_format}, {found.repeats} rounds in turn"
