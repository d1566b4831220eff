"""The commands, in the order in which a newcomer needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from cosep import __version__
from cosep.cli.bench import bench_command
from cosep.cli.compare import compare_command
from cosep.cli.demo import demo_command
from cosep.cli.export import export_command
from cosep.cli.inspect import inspect_command
from cosep.cli.options import with_settings
from cosep.cli.plan import plan_command
from cosep.cli.prune import prune_command
from cosep.cli.report import report_command
from cosep.cli.sweep import sweep_command
from cosep.cli.train import train_command

app = typer.Typer(name="cosep", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cosep {__version__}")
        raise typer.Exit


@app.callback()
def cosep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make a trained image classifier smaller and faster, without choosing how much to remove.

    Begin with [bold]cosep demo[/bold]; then [bold]cosep inspect MODEL[/bold] and
    [bold]cosep prune MODEL --weights FILE --data DATA --out run/[/bold].
    """


app.command("demo")(demo_command)
app.command("inspect")(inspect_command)
app.command("plan")(with_settings(plan_command))
app.command("prune")(with_settings(prune_command))
app.command("sweep")(with_settings(sweep_command))
app.command("report")(report_command)
app.command("compare")(with_settings(compare_command))
app.command("export")(export_command)
app.command("bench")(bench_command)
app.command("train")(train_command)
