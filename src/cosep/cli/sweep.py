"""cosep sweep: how much can be cut? One network at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cosep.cli.common import (
    ConfigOption,
    DataOption,
    ImageSizeOption,
    MeanOption,
    ModelArgument,
    StdOption,
    WeightsOption,
    console,
    numbers_of,
    percent,
    print_json,
    trained_model,
)
from cosep.cli.options import configured
from cosep.cli.progress import shown
from cosep.errors import ConfigError
from cosep.reporting.words import printable

if TYPE_CHECKING:
    from cosep.runs.sweeping import Size, Sweep


def sweep_command(
    model: ModelArgument,
    data: DataOption,
    weights: WeightsOption = None,
    out: Annotated[Path, typer.Option(help="A folder for the figures and the page; a stopped sweep goes on.")] = Path(
        "sweep-run"
    ),
    targets: Annotated[
        str | None,
        typer.Option(help="Shares of the MACs, separated by commas.", show_default="eight from 90% to 20%"),
    ] = None,
    latency_ms: Annotated[
        str | None, typer.Option("--latency-ms", help="Measured milliseconds for one input, separated by commas.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Batch size for training, with --epochs.", min=1)] = 128,
    config: ConfigOption = None,
    image_size: ImageSizeOption = 224,
    mean: MeanOption = None,
    std: StdOption = None,
    holdout: Annotated[float, typer.Option(help="The share of the training set that is held out.")] = 0.1,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the table.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """How much can be cut? The network at several sizes, each cut and rebuilt from one look at it.

    With --epochs each of them is also trained for so many passes over the training data.

    Examples:

      cosep sweep resnet56 --weights resnet56.safetensors --data cifar10:~/data --out sweep/

      cosep sweep resnet20 --weights r20.pt --data cifar10:~/data --targets 75%,50%,25% --epochs 1
    """
    if not quiet:
        console.print(f"loading {model} and {data}", highlight=False, markup=False, soft_wrap=True)
    from cosep.cli.probe import check_trained
    from cosep.data import load_data
    from cosep.runs.sweeping import FILE, sweep

    settings = configured("default", config, changes, model=model, data=data)
    shares = None if targets is None else shares_of(targets)
    times = () if latency_ms is None else milliseconds_of(latency_ms)
    source = load_data(
        data,
        holdout=holdout,
        seed=settings.seed,
        batch_size=batch_size,
        image_size=image_size,
        mean=numbers_of(mean, "--mean"),
        std=numbers_of(std, "--std"),
    )
    net = trained_model(model, weights, len(source.class_names) or None)
    check_trained(model, net, source, quiet=quiet)
    about = {"model": model, "data": data, "holdout": holdout, "image_size": image_size}
    about |= {"mean": list(source.mean or ()), "std": list(source.std or ())}
    with shown(quiet=quiet, run=out) as callbacks:
        found = sweep(
            net,
            source.calibration,
            source.test,
            targets=shares,
            latencies=times,
            train=source.train,
            holdout=source.holdout,
            config=settings,
            out=out,
            about=about,
            callbacks=callbacks,
        )
    console.print(sweep_table(found))
    for size in found.sizes:
        if size.note:
            words = printable(f"{asked_for(size)}: {size.note}")
            console.print(words, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if json:
        print_json(found.to_document())
    console.print(str((out / FILE).with_suffix(".html")), highlight=False, markup=False, soft_wrap=True)


def shares_of(text: str) -> Sequence[float]:
    """Shares such as "75%,50%"."""
    try:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not all(part.endswith("%") for part in parts):
            raise ValueError
        return [float(part[:-1]) / 100 for part in parts]
    except ValueError:
        raise ConfigError(f"--targets is {text!r}; give shares of the MACs such as 75%,50%,25%.") from None


def milliseconds_of(text: str) -> Sequence[float]:
    """Times such as "3,2,1.5"."""
    try:
        return [float(part.strip().removesuffix("ms")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--latency-ms is {text!r}; give milliseconds such as 3,2,1.5.") from None


def asked_for(size: Size) -> str:
    """What a size was to be, in words."""
    return f"{size.target_ms:g} ms" if size.target is None else f"{100 * size.target:g} %"


def sweep_table(found: Sweep) -> Table:
    """A row for each size, the uncut network first."""
    trained = any(size.untrained is not None for size in found.sizes)
    how = "Trained afterwards" if trained else "Without training"
    table = Table(title=f"{how}; shares are of the uncut network's")
    columns = ["asked for", "MACs", "parameters", "test accuracy", "held-out accuracy", "ms", "as fast"]
    for column in [*columns, *(["before training"] if trained else [])]:
        table.add_column(column, justify="right")
    table.add_row("", "100.00 %", "100.00 %", percent(found.accuracy), percent(found.holdout_accuracy), "", "")
    for size in found.sizes:
        table.add_row(
            asked_for(size),
            percent(size.macs),
            percent(size.parameters),
            percent(size.accuracy),
            percent(size.holdout_accuracy),
            f"{size.milliseconds:.2f}",
            f"{size.speedup:.2f}x",
            *([percent(size.untrained)] if trained else []),
        )
    return table
