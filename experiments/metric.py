"""The paper's ablation of the separability metric, and the two readings of its silhouette.

    python experiments/metric.py --model resnet20 --weights FILE --data cifar10:DIR --out metric/

Every row finds its own widths; `--preset default` is its recovery with the paper's selection. `jm-histogram` and the
silhouettes have no row in the paper's table. The paper's accuracies are of its own recipe and stand beside
`--preset paper` only.
"""

from __future__ import annotations

import cells as kept_cells
import paper
from common import run
from trials import Bench, parser, shown

ROWS = {
    "jm": {"profile": {"metric": "jm"}},
    "hellinger": {"profile": {"metric": "hellinger"}},
    "wasserstein": {"profile": {"metric": "wasserstein"}},
    "jm-histogram": {"profile": {"metric": "jm-histogram"}},
    "jm, silhouette of the equation": {"profile": {"metric": "jm"}, "select": {"silhouette": "nearest"}},
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--preset", default="default", choices=("default", "paper"))
    args = made.parse_args()
    bench = Bench(args, "metric")
    for seed in bench.seeds:
        for row, changes in ROWS.items():
            bench.trial(row, seed, preset=args.preset, changes=changes, ablation=True)
    print(table(bench))


def table(bench: Bench) -> str:
    """A row a metric."""
    columns = ("metric", "layers with a knee", "MACs left", "the paper's", "accuracy", "the paper's")
    rows = []
    for row in ROWS:
        accuracy, _, left = paper.figures("metric", paper.key(bench.args.model, bench.args.data), row) or (None,) * 3
        rows.append(
            (
                row,
                bench.over_seeds(row, "knees", 1.0),
                bench.over_seeds(row, "macs"),
                shown(left),
                bench.over_seeds(row),
                shown(accuracy if bench.args.preset == "paper" else None),
            )
        )
    return kept_cells.markdown(columns, rows)


if __name__ == "__main__":
    run(main)
