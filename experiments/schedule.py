"""The paper's ablation of the recovery schedule: after each layer, or once at the end with as many updates.

    python experiments/schedule.py --model resnet20 --weights FILE --data cifar10:DIR --out schedule/

Both with the published recovery (plain cross-entropy at a constant rate) and with ours (the rebuild, distillation, a
cosine), on the paper's selection. All rows have the widths of the run that was finished first.
"""

from __future__ import annotations

import cells as kept_cells
import paper
from common import run
from trials import Bench, parser, shown

ROWS = {
    "paper, per-layer": ("paper", "per-layer", "cosep"),
    "paper, final": ("paper", "final", "cosep"),
    "paper, per-layer, random channels": ("paper", "per-layer", "random"),
    "default, per-layer": ("default", "per-layer", "cosep"),
    "default, final": ("default", "final", "cosep"),
}
PUBLISHED = {
    "paper, per-layer": "per_layer",
    "paper, final": "final_only",
    "paper, per-layer, random channels": "random",
}


def main() -> None:
    args = parser(__doc__).parse_args()
    bench = Bench(args, "schedule")
    for seed in bench.seeds:
        for row, (preset, schedule, method) in ROWS.items():
            changes = {"recover": {"schedule": schedule}}
            widths = bench.first_widths()
            bench.trial(row, seed, preset=preset, changes=changes, widths=widths, method=method, ablation=True)
    print(table(bench))


def table(bench: Bench) -> str:
    """A row a schedule."""
    dataset, _, network = paper.key(bench.args.model, bench.args.data).partition("/")
    # The paper has them for CIFAR-10 alone.
    reported = (paper.figures("recovery_schedule", network) if dataset == "CIFAR-10" else None) or {}
    rows = [
        (row, bench.over_seeds(row, "updates", 1.0), bench.over_seeds(row), shown(reported.get(PUBLISHED.get(row, ""))))
        for row in ROWS
    ]
    return kept_cells.markdown(("recovery", "updates", "accuracy", "the paper's"), rows)


if __name__ == "__main__":
    run(main)
