"""cosep report: what a run did, from its saved records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cosep.cli.common import console, print_json
from cosep.cli.progress import group_line
from cosep.cli.summary import summary_table


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder of `cosep prune`.")],
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
) -> None:
    """Show what a run cut and why, and its figures before and after.

    Example: cosep report run/
    """
    from cosep.saving import read_documents

    _plan, report = read_documents(run)
    if json:
        print_json(report)
        return
    for entry in report["groups"]:
        console.print(group_line(entry, report["before"]["macs"]), highlight=False, markup=False, soft_wrap=True)
    for note in report["limits"]:
        console.print(note, highlight=False)
    console.print(summary_table(report))
