"""cosep bench: latency and throughput of a run's network before and after, measured on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.markup import escape
from rich.table import Table

from cosep.cli.common import RunModel, TrustOption, check_example, console, print_json, run_model, shape_of
from cosep.config import check_at_least, check_choice
from cosep.errors import ConfigError
from cosep.measurement.latency import MemoryFormat
from cosep.records import Latency

Times = Mapping[int, Mapping[str, Latency]]  # batch size, network

ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="The uncut model, where the run does not name it or named a file that moved."),
]
ClassesOption = Annotated[int | None, typer.Option("--classes", help="Its number of classes, with --model.")]
InputOption = Annotated[str | None, typer.Option("--input", help="The shape of one input, such as 3,224,224.")]


def bench_command(
    run: Annotated[Path, typer.Argument(help="A run folder of `cosep prune`.")],
    more: Annotated[list[Path] | None, typer.Argument(help="Further run folders, for an average over all.")] = None,
    model: ModelOption = None,
    classes: ClassesOption = None,
    input_shape: InputOption = None,
    trust: TrustOption = False,
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,32",
    repeats: Annotated[int, typer.Option(help="Rounds; in each, both networks take a turn.")] = 50,
    seeds: Annotated[int, typer.Option(help="Random inputs, with so many rounds each.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    warmup: Annotated[int, typer.Option(help="Untimed calls before the first round.")] = 5,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with.", show_default="torch's own")] = None,
    memory_format: Annotated[str, typer.Option(help="contiguous or channels_last.")] = "contiguous",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Time the network of a run before and after pruning, for single inputs and for batches.

    Examples:

      cosep bench run/ --threads 1 --memory-format channels_last

      cosep bench run/ --device cuda --batch 1,32 --repeats 100 --seeds 5
    """
    from cosep.measurement import latency
    from cosep.storage.artifacts import load

    sizes = _sizes(batch)
    check_choice("--memory-format", memory_format, MemoryFormat)
    place = _present(device)
    found: dict[str, Times] = {}
    for folder in [run, *(more or [])]:
        source = source_of(folder, model, classes, input_shape, trusted=trust)
        before = source.uncut()
        check_example(before, source.example())
        models = {"before": before.to(place), "after": load(folder, before).to(place)}
        found[str(folder)] = {
            size: latency(
                models,
                source.example(size),
                repeats=repeats,
                warmup=warmup,
                threads=threads,
                memory_format=cast(MemoryFormat, memory_format),
                seeds=seeds,
            )
            for size in sizes
        }
    if json:
        print_json(_as_json(found))
        return
    for name, times in found.items():
        console.print(latency_table(times, name if more else None))
    if more:
        console.print(average_table(found))
    console.print(conditions(next(iter(found.values()))), highlight=False)


def _sizes(text: str) -> list[int]:
    """Batch sizes such as "1,32", each once, ascending."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--batch is {text!r}; give batch sizes with commas between them, such as 1,32.") from None
    check_at_least("--batch", sizes[0], 1)
    return sizes


def _present(name: str) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device is {name!r}, which cannot be used here ({reason}). Use cpu.") from error
    return device


def _as_json(found: Mapping[str, Times]) -> dict[str, Any]:
    """The latencies of one run, or of several with their averages."""
    if len(found) == 1:
        return {"latency": documents(next(iter(found.values())))}
    return {
        "latency": [{"run": run, **entry} for run, times in found.items() for entry in documents(times)],
        "average": [{"batch": size, "change": mean} for size, mean in averages(found).items()],
    }


def change(both: Mapping[str, Latency]) -> float:
    """The change of the mean time from the first network to the last in %, as the paper counts it."""
    first, *_, last = both.values()
    assert first.mean_ms is not None
    assert last.mean_ms is not None
    return 100 * (last.mean_ms / first.mean_ms - 1)


def averages(found: Mapping[str, Times]) -> dict[int, float]:
    """The mean change over all runs, of every batch size."""
    sizes = next(iter(found.values()))
    return {size: statistics.mean(change(times[size]) for times in found.values()) for size in sizes}


def average_table(found: Mapping[str, Times]) -> Table:
    """One row a run and, in the last, the average: the change of the mean time for every batch size."""
    sizes = next(iter(found.values()))
    table = Table(title="Change of the mean time")
    table.add_column("run")
    for size in sizes:
        table.add_column(f"batch {size}", justify="right")
    for name, times in found.items():
        table.add_row(escape(name), *(f"{change(times[size]):+.2f} %" for size in sizes))
    table.add_section()
    table.add_row("average", *(f"{mean:+.2f} %" for mean in averages(found).values()))
    return table


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


def documents(times: Times) -> list[dict[str, Any]]:
    """The latencies of every batch size and network as plain values."""
    return [{"model": name, **asdict(found)} for both in times.values() for name, found in both.items()]


def latency_table(times: Times, title: str | None = None) -> Table:
    """One row a network and batch size: median, spread and mean of the time, throughput, speed-up within the rounds."""
    table = Table(title=None if title is None else escape(title))
    for column in ("batch", "network", "median", "10 to 90 %", "mean ± sd", "inputs/s", "as fast", "10 to 90 %"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for size, both in times.items():
        for index, (name, found) in enumerate(both.items()):
            speedup = (f"{found.speedup:.2f}x", f"{found.speedup_p10:.2f} to {found.speedup_p90:.2f}")
            table.add_row(
                str(size),
                name,
                f"{found.median_ms:.3f} ms",
                f"{found.p10_ms:.3f} to {found.p90_ms:.3f}",
                f"{found.mean_ms:.3f} ± {found.sd_ms:.3f}",
                f"{found.throughput:,.0f}",
                *(speedup if index else ("", "")),
            )
    return table


def conditions(times: Times) -> str:
    """Under which conditions the times were taken, in a line."""
    found = next(iter(next(iter(times.values())).values()))
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    seeds = f" with each of {found.seeds} seeds" if found.seeds > 1 else ""
    return f"{found.runtime} on {found.device}, {threads}, {found.memory_format}, {found.repeats} rounds in turn{seeds}"
