"""Gradient steps after the rebuild, on its own images and without labels: block by block, or through the whole network.

    python experiments/block_by_block.py --model resnet20 --weights FILE --data cifar10:DIR --out block-by-block.json

Both start from the same cut and rebuilt network and see the same calibration images as often. Block by block: each
block in turn, the first one first, is trained (Adam) to give what the uncut network's block gives, from what the blocks
before it give now. End to end: the default training, with the uncut network's outputs and block outputs as its targets.
The figure is the accuracy on held-out training images; take a base network that was trained without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import cells as kept_cells
import torch
from common import arguments, loaded, run
from recovery import BATCH, Bench, table
from torch import Tensor, nn

import cosep
from cosep.measurement import accuracy
from cosep.recovery import recover
from cosep.recovery.losses import relative_error
from cosep.surgery import copied

IMAGES, QUICK_IMAGES = 4000, 128
WAYS = ("block by block", "end to end")


def main() -> None:
    made = arguments(__doc__, model="resnet20", out="a JSON file", quick="few images, two updates")
    made.add_argument("--updates", default="50,100,200", help="of 128 images for each block, or for the whole network")
    made.add_argument("--share", default="50", help="of the MACs, in percent")
    made.add_argument("--lr", type=float, default=1e-3, help="Adam's peak rate for a block")
    made.add_argument("--seed", type=int, default=0)
    made.set_defaults(holdout=0.1, precision="32-true")
    args = made.parse_args()
    lengths = [2] if args.quick else [int(length) for length in args.updates.split(",")]
    data, model, about = loaded(args, "block_by_block", seed=args.seed, batch_size=BATCH)
    about |= {"share": args.share, "lr": args.lr}
    cells = kept_cells.read(args.out, about)
    bench = Bench(args, data, model, refine=0)  # what the rebuild does by itself since is what is compared here
    images = some_of(data.calibration, QUICK_IMAGES if args.quick else IMAGES)
    for way, length in [(way, length) for length in lengths for way in WAYS]:
        if f"{way}/{length}" not in cells:
            network = copied(bench.cut(1))
            cells.setdefault("untrained", accuracy(network, data.holdout))
            if way == WAYS[0]:
                block_by_block(bench.teacher, network, bench.blocks, images, length, args.lr, args.seed)
            else:
                recover(
                    network,
                    [(x, None) for x in shuffled(images, length, args.seed)],
                    length,
                    cosep.replace_settings(cosep.preset(), {"recover": {"distill": 1.0}}).recover,
                    fabric=bench.fabric,
                    batches_a_pass=length,
                    seed=args.seed,
                    teacher=bench.teacher,
                    blocks=bench.blocks,
                )
            cells[f"{way}/{length}"] = cell = {"accuracy": accuracy(network, data.holdout)}
            kept_cells.write(args.out, about, cells)
            print(f"{way}, {length} updates: {100 * cell['accuracy']:.2f} %", flush=True)
    print(table(cells, list(WAYS), lengths))


def some_of(batches: Any, count: int) -> Tensor:
    """The first so many images."""
    found: list[Tensor] = []
    for x, _ in batches:
        found.append(x)
        if sum(map(len, found)) >= count:
            break
    return torch.cat(found)[:count]


def shuffled(images: Tensor, updates: int, seed: int) -> Iterator[Tensor]:
    """So many batches, drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        yield images[torch.randint(0, len(images), (BATCH,), generator=generator)]


def block_by_block(
    teacher: nn.Module, network: nn.Module, blocks: tuple[str, ...], images: Tensor, updates: int, lr: float, seed: int
) -> None:
    """Train each block of a network in place, the rest as it is, towards the teacher's block."""
    teacher.eval()
    network.eval()  # BatchNorms keep the statistics that the rebuild gave them
    for name in blocks:
        goals, inputs = seen(teacher, name, images)[1], seen(network, name, images)[0]
        block = network.get_submodule(name)
        optimizer = torch.optim.Adam(block.parameters(), lr=lr)
        for update, chosen in enumerate(shuffled(torch.arange(len(images)), updates, seed)):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * update / updates)) / 2
            loss = relative_error(block(inputs[chosen]), goals[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def seen(network: nn.Module, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into a block and what comes out, for all images."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pairs.append((inputs[0], output))

    handle = network.get_submodule(name).register_forward_hook(note)
    try:
        with torch.no_grad():
            for x in images.split(500):
                network(x)
    finally:
        handle.remove()
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


if __name__ == "__main__":
    run(main)
