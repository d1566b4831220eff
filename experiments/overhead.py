"""What deciding costs: the share of a run's time that goes into deciding which channels stay, and how many.

    cosep prune resnet56 --weights FILE --data cifar10:DIR --out run/
    python experiments/overhead.py run/ [more runs] --out overhead.json

The times are those that the run recorded of itself. They are read anew each time, and the file holds the runs that were
named last. The paper has minutes of "profile and cluster" and of fine-tuning, and their sum as a share of the time that
training the uncut network took: `cosep train` writes that time beside the weights, and --training-seconds gives it for
weights that came from elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cells as kept_cells
from common import run, short_names
from paper import figures, key

from cosep.plugins import without_folder
from cosep.reporting import Report
from cosep.runs.folder import read_description
from cosep.storage.artifacts import read_documents

DECIDING = ("observe", "profile", "select", "look", "damage", "search")
REBUILDING = ("rebuild", "batchnorm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="", help="of runs that were started from Python and do not name it")
    parser.add_argument("--data", default="", help="of such runs")
    parser.add_argument("--training-seconds", type=float, help="of the uncut network, where its weights do not say it")
    parser.add_argument("--quick", action="store_true", help="the first run only: does it run?")
    args = parser.parse_args()
    about = {"experiment": "overhead"}
    kept_cells.read(args.out, about)  # refuses a file of another experiment
    runs = short_names(args.runs[:1] if args.quick else args.runs)
    cells = {name: times(folder, args) for name, folder in runs.items()}
    kept_cells.write(args.out, about, cells)
    print(table(cells))


def times(folder: Path, args: argparse.Namespace) -> dict:
    """The seconds of each stage of a run, and of the training before it."""
    named = read_description(folder).get("about", {})
    return {
        "model": without_folder(named.get("model", args.model)),
        "data": without_folder(named.get("data", args.data)),
        "seconds": dict(Report.from_document(read_documents(folder)[1]).seconds),
        "training_seconds": named.get("training_seconds", args.training_seconds),
    }


def table(cells: dict[str, dict]) -> str:
    head = ("run", "minutes", "deciding", *DECIDING, "rebuild, BatchNorm", "recover", "other", "deciding, the paper")
    head += ("of the training time", "of the training time, the paper")
    rows = []
    for name, cell in cells.items():
        seconds = cell["seconds"]
        total = sum(seconds.values())

        def share(*stages: str, seconds: dict = seconds, total: float = total) -> str:
            return f"{100 * sum(seconds.get(stage, 0.0) for stage in stages) / total:.1f} %"

        known = {*DECIDING, *REBUILDING, "recover"}
        reported = figures("overhead_minutes", key(cell["model"], cell["data"]))
        columns = [
            name,
            f"{total / 60:.1f}",
            share(*DECIDING),
            *(share(stage) for stage in DECIDING),
            share(*REBUILDING),
            share("recover"),
            share(*(stage for stage in seconds if stage not in known)),
            f"{100 * reported[0] / reported[2]:.1f} %" if reported else "–",
            f"{100 * total / cell['training_seconds']:.1f} %" if cell.get("training_seconds") else "–",
            f"{reported[3]} %" if reported else "–",
        ]
        rows.append(columns)
    return kept_cells.markdown(head, rows)


if __name__ == "__main__":
    run(main)
