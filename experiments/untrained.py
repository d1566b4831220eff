"""Without any training: criteria and width rules under the rebuild, at given shares of the MACs.

    python experiments/untrained.py --model resnet20 --weights FILE --data cifar10:DIR --out untrained-resnet20/

A row is a criterion and a width rule, such as "elimination damage" (the default), "l2 uniform" or "cosep knee". A row
that ends in "only cut" has no weights re-solved, only BatchNorm measured again: what tools without a rebuild leave.
"magnitude torch-pruning" (also taylor, fpgm) has the channels that Torch-Pruning keeps by one threshold for the whole
network, "... torch-pruning-uniform" by the same share of every layer. "l2 half" keeps half of every group whatever the
share: half of all heads and half of all neurons of a Transformer. Training may be added with --epochs, in passes over
the training data.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import cells as kept_cells
from common import data_of, run
from trials import Bench, parser

from cosep.comparison.trials import Trial, standings
from cosep.data import Data
from cosep.errors import ConfigError
from cosep.groups import find_groups, groups_in_scope

HALF = "half"
PEERS = ("torch-pruning", "torch-pruning-uniform")

ROWS = (
    "elimination damage",
    "elimination uniform",
    "l2 damage",
    "l2 uniform",
    "fpgm uniform",
    "taylor uniform",
    "cosep knee",
    "random uniform",
    "l2 uniform only cut",
)


def main() -> None:
    made = parser(__doc__, model="resnet20", seeds=3)
    made.add_argument("--rows", default=",".join(ROWS), help="which, and in which order")
    made.add_argument("--shares", default="50", help="of the MACs, in percent, with commas between them")
    made.add_argument("--epochs", type=float, default=0.0, help="passes over the training data after the rebuild")
    args = made.parse_args()
    rows = [row.strip() for row in args.rows.split(",")]
    shares = [part.strip() for part in args.shares.split(",")]
    if wrong := [row for row in rows if len(row.removesuffix(" only cut").split()) != 2]:
        raise ConfigError(f"--rows: {wrong[0]!r} is no criterion and width rule, such as 'l2 uniform'.")
    bench = Bench(args, "untrained")
    for seed in bench.seeds:
        for share in shares:
            for row in rows:
                bench.trial(
                    f"{row} {share}",
                    seed,
                    changes=changes(row, share, args.epochs),
                    chosen=peer(bench, row, share),
                    widths=halves(bench) if row.split()[1] == HALF else None,
                )
    print(table(bench, rows, shares))


def changes(row: str, share: str, epochs: float) -> dict[str, dict[str, object]]:
    """The settings of a row."""
    criterion, rule = row.removesuffix(" only cut").split()
    made: dict[str, dict[str, object]] = {
        "recover": {"epochs": epochs},
        "rebuild": {"solve": not row.endswith("only cut")},
    }
    if rule == HALF:
        made |= {"select": {"criterion": criterion}}
    elif rule not in PEERS:
        made |= {"select": {"criterion": criterion, "width_rule": rule}, "limits": {"max_macs": f"{share}%"}}
    return made


def halves(bench: Bench) -> dict[str, int]:
    """Half of every group's channels or heads; of odd numbers, one more in every second such group."""
    example = next(iter(data_of(bench.args).calibration))[0][:1]
    found, odd = {}, 0
    for group in groups_in_scope(find_groups(bench.model, example)):
        odd += group.width % 2
        found[group.name] = (group.width + odd % 2) // 2
    return found


def peer(bench: Bench, row: str, share: str) -> Callable[[Data], dict[str, tuple[int, ...]]] | None:
    """What chooses the channels of a row that is Torch-Pruning's."""
    importance, rule = row.removesuffix(" only cut").split()
    if rule not in PEERS:
        return None

    def chosen(data: Data) -> dict[str, tuple[int, ...]]:
        from peers import kept_by_torch_pruning

        example = next(iter(data.calibration))[0][:1]
        groups = groups_in_scope(find_groups(bench.model, example))
        return kept_by_torch_pruning(
            importance, bench.model, groups, data.calibration, share=float(share) / 100, globally=rule == PEERS[0]
        )

    return chosen


def table(bench: Bench, rows: list[str], shares: list[str]) -> str:
    """A row a share, criterion and rule: accuracy, by how much the first row is ahead of it, and the MACs left."""
    lines = [("unpruned", "", f"{100 * bench.cells['base']['accuracy']:.2f}", "", "100")]
    for share in shares:
        trials = [
            Trial(f"{row} {share}", seed, cell["accuracy"], cell["macs"], cell["parameters"], 0, 0.0)
            for row in rows
            for seed in bench.seeds
            if (cell := bench.cells.get(f"{row} {share}/{seed}"))
        ]
        for row, found in zip(rows, standings(trials), strict=True):
            ahead = f"{found.difference:+.2f}" + (
                "" if isnan(found.low) else f" ({found.low:+.2f} to {found.high:+.2f})"
            )
            lines.append(
                (
                    row,
                    share,
                    bench.over_seeds(f"{row} {share}"),
                    "" if row == rows[0] else ahead,
                    bench.over_seeds(f"{row} {share}", "macs"),
                )
            )
    columns = ("", "limit, % of the MACs", "accuracy, %", "the first row is ahead by (95 %)", "MACs left, %")
    return kept_cells.markdown(columns, lines)


if __name__ == "__main__":
    run(main)
