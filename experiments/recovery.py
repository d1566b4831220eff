"""What the settings of the training after the rebuild change: one cut network, trained on from there in several ways.

    python experiments/recovery.py --model resnet20 --weights FILE --data cifar10:DIR --out recovery-resnet20.json

A row is a list of settings of `recover`, such as "lr=0.05 ema=0.99"; an empty one is the default. Every row starts from
the same cut and rebuilt network and sees the same batches. The figure is the accuracy on held-out training images,
never on the test set: settings are chosen by it. Take a base network that was trained without these images (`cosep
train` holds them out): one that has learnt them looks the worse, the more a training makes it forget.
"""

from __future__ import annotations

import json
from typing import Any

import cells as kept_cells
from common import arguments, loaded, run
from torch import nn

import cosep
from cosep.config import RecoverConfig
from cosep.errors import ConfigError
from cosep.groups import find_groups, groups_in_scope
from cosep.measurement import accuracy
from cosep.models.formats import in_fast_format
from cosep.recovery import batch_count, recover
from cosep.runs.fabric import launched
from cosep.runs.preflight import blocks_around
from cosep.surgery import copied

ROWS = ("", "lr=0.01", "lr=0.05", "lr=0.1", "nesterov=true", "ema=0.99", "features=10", "distill=1.0")
QUICK = {"observe": {"images": 200}, "rebuild": {"images": 100}}


def main() -> None:
    made = arguments(__doc__, model="resnet20", out="a JSON file", quick="few images, two updates a row")
    made.add_argument("--rows", default=",".join(ROWS), help="which, with commas between them")
    made.add_argument("--updates", default="352", help="lengths, with commas between them")
    made.add_argument("--share", default="50", help="of the MACs, in percent")
    made.add_argument("--precision", default="32-true", help="of the training, such as bf16-mixed")
    made.add_argument("--seed", type=int, default=0)
    made.set_defaults(holdout=0.1)
    args = made.parse_args()
    rows = [row.strip() for row in args.rows.split(",")]
    configs = {row: config_of(row) for row in rows}  # refuses a mistake before anything is run
    lengths = [2] if args.quick else [int(length) for length in args.updates.split(",")]
    if not args.holdout:
        raise ConfigError("--holdout is 0, and what is held out decides here. Give a share, such as 0.1.")
    data, model, about = loaded(args, "recovery", seed=args.seed, batch_size=128)
    about |= {"share": args.share, "precision": args.precision}
    cells = kept_cells.read(args.out, about)
    wanted = [(row, length) for length in lengths for row in rows if f"{row}/{length}" not in cells]
    if wanted:
        fabric = launched(cosep.DeviceConfig(precision=args.precision))
        example = next(iter(data.calibration))[0][:1]
        start, _ = in_fast_format(cut(args, model, data), example)
        teacher, _ = in_fast_format(model, example)
        blocks = blocks_around(groups_in_scope(find_groups(model, example)))
        cells.setdefault("untrained", accuracy(start, data.holdout))
        for row, length in wanted:
            network = copied(start)
            done = recover(
                network,
                data.train,
                length,
                configs[row],
                fabric=fabric,
                batches_a_pass=batch_count(data.train),
                seed=args.seed,
                teacher=teacher,
                blocks=blocks,
            )
            found = accuracy(network, data.holdout)
            cells[f"{row}/{length}"] = {"accuracy": found, "outcome": done.outcome}
            kept_cells.write(args.out, about, cells)
            print(
                f"{row or 'default'}, {length} updates: {100 * cells[f'{row}/{length}']['accuracy']:.2f} %", flush=True
            )
    print(table(cells, rows, lengths))


def config_of(row: str) -> RecoverConfig:
    """The settings of a row."""
    changes: dict[str, Any] = {}
    for part in row.split():
        name, _, value = part.partition("=")
        try:
            changes[name] = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"--rows: {part!r} is no setting with a value, such as lr=0.05.") from error
    return cosep.replace_settings(cosep.preset(), {"recover": changes}).recover


def cut(args: Any, model: nn.Module, data: Any) -> nn.Module:
    """The network cut to the share and rebuilt, nothing trained."""
    changes: dict[str, Any] = {"limits": {"max_macs": f"{args.share}%"}, "recover": {"epochs": 0}, "seed": args.seed}
    config = cosep.replace_settings(cosep.preset(), {**(QUICK if args.quick else {}), **changes})
    return cosep.prune(model, data.calibration, config=config).model


def table(cells: dict[str, Any], rows: list[str], lengths: list[int]) -> str:
    """A row of settings a line, a column a length."""
    lines = [("untrained", *[f"{100 * cells['untrained']:.2f}"] * len(lengths))]
    for row in rows:
        lines.append((row or "the default", *[f"{100 * cells[f'{row}/{n}']['accuracy']:.2f}" for n in lengths]))
    return kept_cells.markdown(("settings", *[f"held-out %, {n} updates" for n in lengths]), lines)


if __name__ == "__main__":
    run(main)
