"""What the settings of the training after the rebuild change: one cut network, trained on from there in several ways.

    python experiments/recovery.py --model resnet20 --weights FILE --data cifar10:DIR --out recovery-resnet20.json

A row is a list of settings of `recover`, such as "lr=0.05 ema=0.99"; an empty one is the default. Beside these it may
say batch=256 (images an update; there are as many fewer updates, so that the images are as many), cutmix=0.5 (the share
of the batches that CutMix mixes), pad=2 (by how many pixels the augmentation moves images at most), steps=2 (in how
many steps down to the share, each with its part of the updates) and batchnorm=true (its statistics measured anew at the
end). Rows start from the same cut and rebuilt network and, as far as their batches allow, see the same images. The
figure is the accuracy on held-out training images, never on the test set: settings are chosen by it. Take a base
network that was trained without these images (`cosep train` holds them out): one that has learnt them looks the worse,
the more a training makes it forget.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import cells as kept_cells
from common import arguments, data_of, loaded, run
from torch import Tensor, nn

import cosep
from cosep.config import RecoverConfig
from cosep.data import Data
from cosep.data.tensors import TensorSplit
from cosep.errors import ConfigError
from cosep.groups import find_groups, groups_in_scope
from cosep.measurement import accuracy, macs
from cosep.models.formats import in_fast_format
from cosep.recovery import RecoveryHooks, batch_count, recover
from cosep.recovery.inputs import Mixed
from cosep.runs.fabric import launched
from cosep.runs.preflight import blocks_around
from cosep.surgery import copied

ROWS = ("", "lr=0.01", "lr=0.05", "lr=0.1", "nesterov=true", "ema=0.99", "features=10", "distill=1.0")
QUICK = {"observe": {"images": 200}, "rebuild": {"images": 100}}
BATCH = 128  # images an update, where a row says nothing


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train: settings of `recover`, and what has no setting or is not the training's alone."""

    recover: RecoverConfig
    batch: int = BATCH
    cutmix: float = 0.0
    pad: int | None = None
    steps: int = 1
    batchnorm: bool = False


def main() -> None:
    made = arguments(__doc__, model="resnet20", out="a JSON file", quick="few images, two updates a row")
    made.add_argument("--rows", default=",".join(ROWS), help="which, with commas between them")
    made.add_argument("--updates", default="352", help="lengths in updates of 128 images, with commas between them")
    made.add_argument("--share", default="50", help="of the MACs, in percent")
    made.add_argument("--precision", default="32-true", help="of the training, such as bf16-mixed")
    made.add_argument("--seed", type=int, default=0)
    made.set_defaults(holdout=0.1)
    args = made.parse_args()
    rows = {row: row_of(row) for row in (each.strip() for each in args.rows.split(","))}  # refuses mistakes at once
    lengths = [2] if args.quick else [int(length) for length in args.updates.split(",")]
    if not args.holdout:
        raise ConfigError("--holdout is 0, and what is held out decides here. Give a share, such as 0.1.")
    data, model, about = loaded(args, "recovery", seed=args.seed, batch_size=BATCH)
    about |= {"share": args.share, "precision": args.precision}
    cells = kept_cells.read(args.out, about)
    bench = Bench(args, data, model)
    for name, row, length in [(name, row, length) for length in lengths for name, row in rows.items()]:
        if f"{name}/{length}" not in cells:
            cells.setdefault("untrained", accuracy(bench.cut(1), data.holdout))
            cells[f"{name}/{length}"] = cell = bench.trained(row, length)
            kept_cells.write(args.out, about, cells)
            print(f"{name or 'default'}, {length} updates: {100 * cell['accuracy']:.2f} %", flush=True)
    print(table(cells, list(rows), lengths))


def row_of(text: str) -> Row:
    """What a row says."""
    changes: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            changes[name] = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"--rows: {part!r} is no setting with a value, such as lr=0.05.") from error
    own = {field.name: changes.pop(field.name) for field in fields(Row) if field.name in changes}
    return Row(recover=cosep.replace_settings(cosep.preset(), {"recover": changes}).recover, **own)


class Bench:
    """The cut networks that rows start from, and what trains them."""

    def __init__(self, args: Any, data: Data, model: nn.Module, refine: int | None = None) -> None:
        self.args, self.data, self.model = args, data, model
        self.rebuild = {} if refine is None else {"refine": refine}
        self.fabric = launched(cosep.DeviceConfig(precision=args.precision))
        self.example = next(iter(data.calibration))[0][:1]
        self.teacher, _ = in_fast_format(model, self.example)
        self.blocks = blocks_around(groups_in_scope(find_groups(model, self.example)))
        self.whole = macs(model, self.example)
        self.cut = cache(lambda steps: self.smaller(model, 1, steps))  # the first cut of rows in as many steps

    def smaller(self, network: nn.Module, step: int, steps: int) -> nn.Module:
        """A network cut to where this of so many equal steps ends, and rebuilt beside itself; nothing trained."""
        left = 1 - (1 - float(self.args.share) / 100) * step / steps
        changes = {"limits": {"max_macs": str(left * self.whole)}, "recover": {"epochs": 0}, "seed": self.args.seed}
        usual = cosep.replace_settings(cosep.preset(), {**(QUICK if self.args.quick else {}), **changes})
        config = cosep.replace_settings(usual, {"rebuild": self.rebuild})
        made, _ = in_fast_format(cosep.prune(network, self.data.calibration, config=config).model, self.example)
        return made

    def trained(self, row: Row, length: int) -> dict[str, Any]:
        """The accuracy of a network that was trained as a row says, and how its training ended."""
        network, outcomes = copied(self.cut(row.steps)), []
        data = self.data if row.batch == BATCH else data_of(self.args, seed=self.args.seed, batch_size=row.batch)
        train: Any = data.train
        if row.pad is not None:
            if not isinstance(getattr(train, "split", None), TensorSplit):
                raise ConfigError("pad is for images in memory, such as CIFAR's. Leave it out of --rows.")
            train = replace(train, split=replace(train.split, pad=row.pad))
        updates = max(row.steps, round(length * BATCH / row.batch))
        for step in range(1, row.steps + 1):
            if step > 1:
                network = self.smaller(network, step, row.steps)
            done = recover(
                network,
                train,
                updates // row.steps,
                row.recover,
                fabric=self.fabric,
                batches_a_pass=batch_count(train),
                seed=self.args.seed,
                first_batch=(step - 1) * (updates // row.steps),
                teacher=self.teacher,
                blocks=self.blocks,
                hooks=mixing(row.cutmix, len(self.data.class_names)),
            )
            outcomes.append(done.outcome)
        if row.batchnorm:
            cosep.reestimate_batchnorm(network, self.data.calibration, max_batches=2 if self.args.quick else 32)
        return {"accuracy": accuracy(network, self.data.holdout), "outcome": ", ".join(dict.fromkeys(outcomes))}


def mixing(share: float, classes: int) -> RecoveryHooks | None:
    """CutMix in this share of the batches."""
    if not share:
        return None

    def mixed(images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return next(iter(Mixed([(images, labels)], share, classes)))

    return RecoveryHooks(augment=mixed)


def table(cells: dict[str, Any], rows: list[str], lengths: list[int]) -> str:
    """A row of settings a line, a column a length."""
    lines = [("untrained", *[f"{100 * cells['untrained']:.2f}"] * len(lengths))]
    for row in rows:
        lines.append((row or "the default", *[f"{100 * cells[f'{row}/{n}']['accuracy']:.2f}" for n in lengths]))
    return kept_cells.markdown(("settings", *[f"held-out %, {n} updates" for n in lengths]), lines)


if __name__ == "__main__":
    run(main)
