"""The paper's main tables: accuracy, cost and speed of a pruned network beside random channels at the same widths.

    python experiments/headline.py --model resnet56 --weights FILE --data cifar10:DIR --out headline-resnet56/ --seeds 5

The rows: the published protocol (`paper`) and random channels with it; our recipe (`default`) and random channels with
it. All have the widths that the first run of the first row chose.
"""

from __future__ import annotations

import cells as kept_cells
import paper
from trials import Bench, parser, shown


def main() -> None:
    made = parser(__doc__, seeds=5)
    made.add_argument("--rows", default="paper,paper random,default,default random", help="which, and in which order")
    args = made.parse_args()
    bench = Bench(args, "headline")
    rows = [row.strip() for row in args.rows.split(",")]
    widths: dict[str, int] = {}
    for seed in bench.seeds:
        for row in rows:
            preset, _, random = row.partition(" ")
            cell = bench.trial(row, seed, preset=preset, widths=widths, method="random" if random else "cosep")
            widths = widths or cell["widths"]
    print(table(bench, rows))


def table(bench: Bench, rows: list[str]) -> str:
    """A row a protocol; the paper's figures are of its own protocol."""
    reported = paper.headline(bench.args.model, bench.args.data) or {}
    columns = ("", "accuracy", "the paper's", "MACs left", "the paper's", "updates", "speed-up, one image, CPU")
    lines = [("unpruned", f"{100 * bench.cells['base']['accuracy']:.2f}", shown(reported.get("base")), *[""] * 4)]
    for row in rows:
        published = reported.get({"paper": "cosep", "paper random": "random"}.get(row, ""))
        lines.append(
            (
                row,
                bench.over_seeds(row),
                shown(published),
                bench.over_seeds(row, "macs"),
                shown(reported.get("flops_left")) if row == "paper" else "",
                bench.over_seeds(row, "updates", 1.0),
                bench.over_seeds(row, "speedup", 1.0),
            )
        )
    return kept_cells.markdown(columns, lines)


if __name__ == "__main__":
    main()
