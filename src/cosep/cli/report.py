"""cosep report: what runs did, from their saved records: a page, figures, a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cosep.cli.common import TrustOption, console, percent, print_json, run_model
from cosep.cli.summary import summary_table
from cosep.config import check_choice
from cosep.errors import ConfigError, RunError
from cosep.reporting.progress import group_line
from cosep.reporting.words import printable

if TYPE_CHECKING:
    from cosep.reporting.agreement import Agreement
    from cosep.reporting.records import Report
    from cosep.reporting.run import RunRecord


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="A run folder of `cosep prune`; several are compared. Also that of a comparison or sweep."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; else report.html in the run folder, or comparison.html here.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also draw the paper's figures, PNG and SVG, into this.")] = None,
    group: Annotated[str | None, typer.Option(help="The group that the figures show; else the one cut most.")] = None,
    projection: Annotated[str, typer.Option(help="Of the figure of the space: pca or tsne, as in the paper.")] = "pca",
    data: Annotated[
        str | None, typer.Option(help="For the figures that need histograms: observe the unpruned network on this.")
    ] = None,
    trust: TrustOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
) -> None:
    """Draw the page of a run, or one that compares several, and show what was cut and why.

    Examples:

      cosep report run/

      cosep report run-a/ run-b/ --out comparison.html

      cosep report run/ --figures figures/ --data cifar10:~/data
    """
    from cosep.comparison.trials import FILE as COMPARISON
    from cosep.reporting.folders import draw_comparison, read_runs, write_page
    from cosep.runs.folder import PAGE, failing_as_ours
    from cosep.runs.sweeping import FILE as SWEEP
    from cosep.runs.sweeping import draw_sweep

    if data is not None and (figures is None or len(runs) > 1):
        raise ConfigError("--data is for the figures of one run. Give one run folder and --figures DIR with it.")
    for name, draw in ((COMPARISON, draw_comparison), (SWEEP, draw_sweep)):
        if len(runs) == 1 and (runs[0] / name).is_file():
            console.print(str(draw(runs[0])), highlight=False, markup=False, soft_wrap=True)
            return
    records = read_runs(runs)
    if json:
        print_json(_as_json(records))
        return
    path = out or (runs[0] / PAGE if len(runs) == 1 else Path("comparison.html"))
    if len(records) == 1:
        _summarise(records[0].report)
        _say_overhead(records[0])
    write_page(records, path)
    if figures is not None:
        from cosep.reporting.figures import Projection, write_figures

        check_choice("--projection", projection, Projection)

        agreements = _agreements(runs[0], records[0], data, trusted=trust) if data else []
        with failing_as_ours(figures):
            drawn = write_figures(
                records, figures, agreements=agreements, group=group, projection=cast(Any, projection)
            )
        console.print(f"{len(drawn) - 1} files and {drawn[-1]}", highlight=False, markup=False, soft_wrap=True)
        if len(runs) == 1 and data is None:
            console.print(
                "gaussian-histogram and densities need histograms of the unpruned network: add --data DATA",
                highlight=False,
                soft_wrap=True,
            )
    console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _as_json(records: list[RunRecord]) -> dict[str, Any]:
    """The report of one run, or what the comparison page shows of several."""
    if len(records) == 1:
        share = records[0].share_of_training
        return {**records[0].report.to_document(), **({} if share is None else {"share_of_training": share})}
    from cosep.reporting.comparison import comparison_document

    return comparison_document(records)


def _summarise(report: Report) -> None:
    from cosep.reporting.words import warnings_in_words

    for outcome in report.groups:
        console.print(group_line(outcome, report.before.macs), highlight=False, markup=False, soft_wrap=True)
    for note in report.limits:
        console.print(printable(note), highlight=False, markup=False)
    console.print(summary_table(report))
    for line in warnings_in_words(report):
        console.print(printable(f"warning: {line}"), style="yellow", highlight=False, markup=False, soft_wrap=True)


def _as_loaded(about: Mapping[str, Any]) -> dict[str, Any]:
    """How the run loaded its data, as far as its config.toml says: another share or size gives other images."""
    found = {
        name: about[name] for name in ("holdout", "batch_size", "mean", "std") if about.get(name) not in (None, [])
    }
    shape: list[int] = about.get("input") or []
    return found | ({"image_size": shape[-1]} if len(shape) == 3 else {})


def _say_overhead(record: RunRecord) -> None:
    """The time of the run against that of the training, as the paper states it."""
    if record.share_of_training is not None:
        console.print(
            f"pruning took {percent(record.share_of_training)} of the time that training the uncut network took",
            highlight=False,
        )


def _agreements(folder: Path, record: RunRecord, data: str, *, trusted: bool) -> list[Agreement]:
    """Gaussian against histogram JM on the network that the run started from, with the run's own settings."""
    from cosep.config import preset, replace_settings
    from cosep.data import load_data
    from cosep.reporting.folders import agreements_of

    config = replace_settings(preset(), record.report.settings)
    if not record.about.get("checkpoint"):
        raise RunError(
            f"{folder}/config.toml names no checkpoint, so the unpruned network cannot be observed again. "
            "Leave out --data, or use cosep.reporting.folders.agreements_of in Python."
        )
    named = run_model(folder, trusted=trusted)
    source = load_data(data, seed=config.seed, **_as_loaded(record.about))
    network = named.uncut()
    return agreements_of(network, source.calibration, config, [plan.group for plan in record.plan.groups])
