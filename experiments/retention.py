"""Channels kept per layer, by depth, of finished runs.

    cosep prune vgg16 --weights FILE --data cifar10:DIR --out run/ --preset paper
    python experiments/retention.py run/ [more runs] --out retention.json

The paper shows it for VGG-16, VGG-19 and DenseNet-40, in pictures only, and says that retention generally decreases
with depth: a negative rank correlation with the position of the layer. Its shares of FLOPs stand beside ours. Runs are
read anew each time, and the file holds those that were named last.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import cells as kept_cells
from common import run, short_names
from paper import figures, headline

from cosep.plugins import without_folder
from cosep.reporting import Report
from cosep.reporting.agreement import spearman
from cosep.runs.folder import read_description
from cosep.storage.artifacts import read_documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", action="store_true", help="print every layer, too")
    parser.add_argument("--model", default="", help="of runs that were started from Python and do not name it")
    parser.add_argument("--data", default="", help="of such runs")
    parser.add_argument("--quick", action="store_true", help="the first run only: does it run?")
    args = parser.parse_args()
    about = {"experiment": "retention"}
    kept_cells.read(args.out, about)  # refuses a file of another experiment
    runs = short_names(args.runs[:1] if args.quick else args.runs)
    cells = {name: retention(folder, args.model, args.data) for name, folder in runs.items()}
    kept_cells.write(args.out, about, cells)
    if args.layers:
        for name, cell in cells.items():
            print(f"{name}: " + ", ".join(f"{r['layer']} {r['kept']}/{r['width']}" for r in cell["layers"]))
    print(table(cells))


def retention(folder: Path, model: str, data: str) -> dict:
    """What a run kept of each layer, in order of execution, and of the network's MACs."""
    plan, document = read_documents(folder)
    named = read_description(folder).get("about", {})
    return {
        "model": without_folder(named.get("model", model)),
        "data": without_folder(named.get("data", data)),
        "macs": Report.from_document(document).change.macs,
        "layers": [
            {"layer": group.group, "width": group.width, "kept": len(group.kept), "reason": group.reason}
            for group in plan.groups
        ],
    }


def table(cells: dict[str, dict]) -> str:
    """A row a run: the mean share kept of each third, the correlation with depth, MACs left here and in the paper."""
    columns = ("run", "layers", "early", "middle", "late", "rank correlation with depth", "kept whole", "MACs left")
    rows = []
    for name, cell in cells.items():
        shares = [row["kept"] / row["width"] for row in cell["layers"]]
        cuts = [round(len(shares) * third / 3) for third in range(4)]
        thirds = [shares[a:b] for a, b in pairwise(cuts)]
        means = [f"{sum(part) / len(part):.2f}" if part else "–" for part in thirds]
        whole = sum(row["kept"] == row["width"] for row in cell["layers"])
        reported = headline(cell["model"], cell["data"])
        rows.append(
            (
                name,
                str(len(shares)),
                *means,
                f"{spearman(range(len(shares)), shares):+.2f}",
                str(whole),
                f"{100 * cell['macs']:.1f} %",
                f"{reported['flops_left']} %" if reported else "–",
            )
        )
    finding = figures("retention", "finding")
    return kept_cells.markdown((*columns, "FLOPs left, the paper"), rows) + f"\n\nThe paper: {finding}."


if __name__ == "__main__":
    run(main)
