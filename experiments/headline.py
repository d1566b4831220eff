"""The paper's main tables: accuracy and cost of a pruned network beside random channels at the same widths.

    python experiments/headline.py --model resnet56 --weights FILE --data cifar10:DIR --out headline-resnet56/ --seeds 5

The rows: the published protocol (`paper`) and random channels with it; our recipe (`default`) and random channels with
it. All have the widths of the run that was finished first, whichever row it is of: with the same --out, a later start
with other --rows goes on with these widths.
"""

from __future__ import annotations

import cells as kept_cells
import paper
from common import run
from trials import Bench, parser, shown

from cosep.errors import ConfigError

ROWS = ("paper", "paper random", "default", "default random")


def main() -> None:
    made = parser(__doc__, seeds=5)
    made.add_argument("--rows", default=",".join(ROWS), help="which, and in which order")
    args = made.parse_args()
    rows = [row.strip() for row in args.rows.split(",")]
    for row in rows:
        if row not in ROWS:
            raise ConfigError(f"--rows: there is no row {row!r}; there are {', '.join(ROWS)}.")
    bench = Bench(args, "headline")
    for seed in bench.seeds:
        for row in rows:
            preset, _, random = row.partition(" ")
            widths = bench.first_widths()
            if random and not widths:
                raise ConfigError(f"--rows: {row!r} finds no widths by itself. Put paper or default before it.")
            bench.trial(row, seed, preset=preset, widths=widths, method="random" if random else None)
    print(table(bench, rows))


def table(bench: Bench, rows: list[str]) -> str:
    """A row a protocol; the paper's figures are of its own protocol."""
    reported = paper.headline(bench.args.model, bench.args.data) or {}
    columns = ("", "accuracy", "the paper's", "MACs left", "the paper's", "updates")
    lines = [("unpruned", f"{100 * bench.cells['base']['accuracy']:.2f}", shown(reported.get("base")), *[""] * 3)]
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
            )
        )
    return kept_cells.markdown(columns, lines)


if __name__ == "__main__":
    run(main)
