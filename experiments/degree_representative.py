"""The paper's ablation of the polynomial's degree and of who represents a cluster.

    python experiments/degree_representative.py --model resnet20 --weights FILE --data cifar10:DIR --out degrees/

Each degree finds its own widths; the three kinds of representatives of one degree have the same. With
`--set 'recover.schedule="none"'` nothing is trained, which takes a small part of the time. `--preset default`
is its recovery with the paper's selection. The paper's accuracies are of its own recipe and stand beside
`--preset paper` only.
"""

from __future__ import annotations

import cells as kept_cells
import paper
from common import run
from trials import Bench, parser, shown

DEGREES = (2, 3, 4, 5)
REPRESENTATIVES = ("weighted", "medoid", "random")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--preset", default="default", choices=("default", "paper"))
    args = made.parse_args()
    bench = Bench(args, "degree_representative")
    for seed in bench.seeds:
        for degree in DEGREES[:2] if args.quick else DEGREES:
            widths: dict[str, int] = {}
            for kind in REPRESENTATIVES:
                changes = {"select": {"degree": degree, "representative": kind}}
                cell = bench.trial(
                    f"{degree} {kind}", seed, preset=args.preset, changes=changes, widths=widths, ablation=True
                )
                widths = widths or cell["widths"]
    print(table(bench))


def table(bench: Bench) -> str:
    """A row a degree."""
    reported = paper.figures("degree_and_representative", paper.key(bench.args.model, bench.args.data)) or {}
    accuracies = reported if bench.args.preset == "paper" else {}
    columns = ["degree", "layers with a knee", "MACs left", "the paper's"]
    for kind in REPRESENTATIVES:
        columns += [kind, "the paper's"]
    rows = []
    for place, degree in enumerate(DEGREES):
        first = f"{degree} {REPRESENTATIVES[0]}"
        cells = [f"{degree}", bench.over_seeds(first, "knees", 1.0), bench.over_seeds(first, "macs")]
        cells.append(shown(reported.get("flops_left", {place: None})[place]))
        for kind in REPRESENTATIVES:
            cells += [bench.over_seeds(f"{degree} {kind}"), shown(accuracies.get(kind, {place: None})[place])]
        rows.append(cells)
    return kept_cells.markdown(columns, rows)


if __name__ == "__main__":
    run(main)
