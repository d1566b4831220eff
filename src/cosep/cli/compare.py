"""cosep compare: the criterion of the settings beside others, at the same widths, recoveries and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cosep.cli.common import (
    SPEAKS,
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
from cosep.comparison.naming import named_method
from cosep.config import batch_and_holdout


def compare_command(
    model: ModelArgument,
    data: DataOption,
    rivals: Annotated[
        str,
        typer.Option(
            "--with",
            help="Criteria, separated by commas: cosep, random, l1, l2, fpgm, bn-scale, taylor, hrank, chip, medoid, "
            "random-in-cluster, cosep-magnitude, cosep-mass, or path/to/file.py:factory.",
        ),
    ] = "cosep,random,l2,fpgm",
    out: Annotated[
        Path, typer.Option(help="A folder for all runs; a comparison that was stopped goes on there.")
    ] = Path("compare-run"),
    seeds: Annotated[int, typer.Option(help="How many times each method runs, with seeds 0, 1, ...", min=1)] = 3,
    weights: WeightsOption = None,
    preset: Annotated[str, typer.Option(help="default or paper: the settings that all methods share.")] = "default",
    config: ConfigOption = None,
    widths: Annotated[
        Path | None, typer.Option(help="A run whose widths all methods get, instead of those that the first one finds.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Batch size for fine-tuning.", min=1, show_default="128; with paper on image folders 256"),
    ] = None,
    image_size: ImageSizeOption = 224,
    mean: MeanOption = None,
    std: StdOption = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="The share of the training set that nobody trains on.", show_default="0.1; with paper 0"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the trials as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the table.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Compare the criterion of the settings with others: same widths, same cuts, same recovery, same seeds.

    Without training (--schedule none) a comparison takes a small part of the time.

    Examples:

      cosep compare resnet20 --weights r20.pt --data cifar10:~/data --with random,l2,fpgm --seeds 5 --out compare/

      cosep compare resnet20 --weights r20.pt --data cifar10:~/data --schedule none --seeds 10 --out untrained/
    """
    if not quiet:
        console.print(f"loading {model} and {data}", highlight=False, markup=False, soft_wrap=True)
    from cosep.cli.probe import check_trained
    from cosep.comparison.trials import compare, differing, read_trials, standings
    from cosep.data import load_data
    from cosep.reporting.folders import draw_comparison
    from cosep.storage.artifacts import read_documents

    settings = configured(preset, config, changes, model=model, data=data)
    batch_size, holdout = batch_and_holdout(preset, data, settings, batch_size, holdout)
    load = partial(
        load_data,
        data,
        holdout=holdout,
        batch_size=batch_size,
        image_size=image_size,
        mean=numbers_of(mean, "--mean"),
        std=numbers_of(std, "--std"),
    )
    first = load(seed=settings.seed)
    classes = len(first.class_names) or None
    net = trained_model(model, weights, classes)
    check_trained(model, net, first, quiet=quiet)
    given = {plan.group: len(plan.kept) for plan in read_documents(widths)[0].groups} if widths else None
    say = (lambda text: None) if quiet else (lambda text: console.print(text, highlight=False))
    with shown(quiet=quiet, run=out) as callbacks:
        trials = compare(
            net,
            lambda seed: load(seed=seed),
            [name.strip() for name in rivals.split(",") if name.strip()],
            seeds=range(settings.seed, settings.seed + seeds),
            out=out,
            config=settings,
            widths=given,
            about={
                "model": model,
                "data": data,
                "classes": classes or 0,
                "input": list(first.input_shape),
                "batch_size": batch_size,
                "holdout": holdout,
                "mean": list(first.mean or ()),
                "std": list(first.std or ()),
            },
            callbacks=callbacks,
            on_trial=lambda trial: say(f"{trial.method} with seed {trial.seed}: {percent(trial.accuracy)}"),
        )
    console.print(comparison_table(standings(trials)))
    remarks = [f"{trial.method} with seed {trial.seed}: {remark}" for trial in trials for remark in trial.remarks]
    for line in (*remarks, *differing(trials)):
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    unpruned = read_trials(out)[1]
    console.print(
        f"unpruned {percent(unpruned)}; MACs left {percent(trials[0].macs)}; "
        f"{trials[0].updates} updates; "
        f"{out / 'compare.json'}",
        highlight=False,
        soft_wrap=True,
    )
    page = draw_comparison(out) if SPEAKS else out
    console.print(str(page), highlight=False, markup=False, soft_wrap=True)
    if json:
        print_json({"trials": [asdict(trial) for trial in trials]})


def comparison_table(found: Sequence[Any]) -> Table:
    """Each method's accuracy over its seeds, and how far the first is ahead of it."""
    first = found[0].method
    table = Table(title="Test accuracy in %, mean ± standard deviation; differences are paired by seed")
    for column in ("method", "seeds", "accuracy", f"{first} is ahead by", "95 % interval", "beyond noise"):
        table.add_column(column)
    for row in found:
        one = row.seeds == 1
        spread = "" if one else f" ± {row.std:.2f}"
        cells = [escape(named_method(row.method)), str(row.seeds), f"{row.mean:.2f}{spread}"]
        if row.method == first:
            table.add_row(*cells, "", "", "")
            continue
        interval = "" if one else f"{row.low:+.2f} to {row.high:+.2f}"
        verdict = {None: "one seed: unknown", True: "yes", False: "no"}[row.beyond_noise]
        table.add_row(*cells, f"{row.difference:+.2f}", interval, verdict)
    return table
