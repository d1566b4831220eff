"""What deciding costs: the share of a run's time that goes into observing, profiling and selecting.

    cosep prune resnet56 --weights FILE --data cifar10:DIR --out run/
    python experiments/overhead.py run/ [more runs] --out overhead.json

The times are those that the run recorded of itself. The paper has minutes of "profile and cluster" and of fine-tuning.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cells as kept_cells
from paper import figures, key

from cosep.runs import read_description
from cosep.saving import read_documents

DECIDING = ("observe", "profile", "select")
REPAIRING = ("compensate", "batchnorm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="", help="of runs that were started from Python and do not name it")
    parser.add_argument("--data", default="", help="of such runs")
    parser.add_argument("--quick", action="store_true", help="the first run only: does it run?")
    args = parser.parse_args()
    about = {"experiment": "overhead"}
    cells = kept_cells.read(args.out, about)
    for run in args.runs[:1] if args.quick else args.runs:
        named = read_description(run).get("about", {})
        cells.setdefault(
            run.name,
            {
                "model": named.get("model", args.model),
                "data": named.get("data", args.data).partition(":")[0],
                "seconds": read_documents(run)[1]["seconds"],
            },
        )
        kept_cells.write(args.out, about, cells)
    print(table(cells))


def table(cells: dict[str, dict]) -> str:
    head = ("run", "minutes", "deciding", *DECIDING, "compensate, BatchNorm", "recover", "other", "deciding, the paper")
    rows = []
    for name, cell in cells.items():
        seconds = cell["seconds"]
        total = sum(seconds.values())

        def share(*stages: str, seconds: dict = seconds, total: float = total) -> str:
            return f"{100 * sum(seconds.get(stage, 0.0) for stage in stages) / total:.1f} %"

        known = {*DECIDING, *REPAIRING, "recover"}
        reported = figures("overhead_minutes", key(cell["model"], cell["data"]))
        columns = [
            name,
            f"{total / 60:.1f}",
            share(*DECIDING),
            *(share(stage) for stage in DECIDING),
            share(*REPAIRING),
            share("recover"),
            share(*(stage for stage in seconds if stage not in known)),
            f"{100 * reported[0] / reported[2]:.1f} %" if reported else "–",
        ]
        rows.append(columns)
    return kept_cells.markdown(head, rows)


if __name__ == "__main__":
    main()
