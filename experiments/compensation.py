"""Accuracy without training after half of the interior channels went: cut only, compensated, BatchNorm re-estimated.

    python experiments/compensation.py --model resnet20 --weights FILE --data cifar10:DIR --out FILE

Channels are chosen once, on the uncut network, by `weighted` (k-medoids on Jeffries-Matusita profiles with k half of
the width, the largest filter norm of each cluster), so that every row cuts the same ones. Calibration images are
training images as they are; the test images are only counted. The paper compensates nothing and has no such figures.
"""

from __future__ import annotations

import time
from typing import Any

import cells as kept_cells
from common import arguments, loaded, parts_of, run
from torch import Tensor, nn

from cosep.comparison.trials import accuracy_there
from cosep.config import SurgeryConfig
from cosep.groups import find_groups, groups_in_scope
from cosep.groups.numbering import channel_norms
from cosep.observation import observe
from cosep.profiles import separability_space
from cosep.rebuilding import compensate, reestimate_batchnorm
from cosep.rebuilding.sweep import PrefixCache
from cosep.records import Compensation, Group, Layout, Selection
from cosep.runs.state import first_images
from cosep.selection import with_width
from cosep.surgery import cut_group

Batches = list[tuple[Tensor, Tensor]]
UNCUT, CUT, COMPENSATED = "uncut", "cut only", "compensated"
NORM_EACH = "compensated, BatchNorm re-estimated after every cut"
AFTERWARDS = {CUT: "cut, BatchNorm re-estimated", COMPENSATED: "compensated, BatchNorm re-estimated"}


def main() -> None:
    parser = arguments(__doc__, model="resnet20", out="a JSON file", quick="few images")
    parser.add_argument("--images", type=int, default=3000, help="for compensation and BatchNorm; observing uses 5,000")
    parser.add_argument("--seed", type=int, default=0, help="chooses the calibration images")
    parser.add_argument("--norm-each", action="store_true", help="also re-estimate BatchNorm after every cut")
    args = parser.parse_args()
    data, model, about = loaded(args, "compensation", seed=args.seed)
    about["images"] = images = 200 if args.quick else args.images
    cells: dict[str, Any] = kept_cells.read(args.out, about)
    rows = [UNCUT, *(row for pair in AFTERWARDS.items() for row in pair), *([NORM_EACH] if args.norm_each else [])]

    def note(name: str, network: nn.Module, **more: Any) -> None:
        cells[name] = {"accuracy": accuracy_there(network, data.test), "parameters": size(network), **more}
        kept_cells.write(args.out, about, cells)
        print(f"{name}: {100 * cells[name]['accuracy']:.2f} %", flush=True)

    if any(row not in cells for row in rows):
        observed = list(first_images(data.calibration, 500 if args.quick else 5000, seed=0))
        calibration = list(first_images(observed, images, seed=0))
        groups = groups_in_scope(find_groups(model.eval(), observed[0][0][:2]))
        kept = half_of(model, groups, observed)
        if UNCUT not in cells:
            note(UNCUT, model)
        for row, afterwards in AFTERWARDS.items():
            if row in cells and afterwards in cells:
                continue
            begin = time.perf_counter()
            pruned, records = prune(model, groups, kept, calibration if row == COMPENSATED else None)
            seconds = time.perf_counter() - begin
            note(row, pruned, seconds=seconds, consumers=[vars(record) for record in records])
            reestimate_batchnorm(pruned, calibration)
            note(afterwards, pruned)
        if args.norm_each and NORM_EACH not in cells:
            note(NORM_EACH, prune(model, groups, kept, calibration, norm_each=True)[0])
    print(table(cells))


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def table(cells: dict[str, Any]) -> str:
    """A row a network, and the errors of the layers that were solved again."""
    lines = [(row, f"{100 * cell['accuracy']:.2f} %", f"{cell['parameters']:,}") for row, cell in cells.items()]
    consumers = cells[COMPENSATED]["consumers"]
    before, after = (sum(c[f"error_{when}"] for c in consumers) / len(consumers) for when in ("before", "after"))
    return (
        kept_cells.markdown(("", "test accuracy", "parameters"), lines)
        + f"\n\nMean relative error of a layer behind a cut: {before:.3f} cut only, {after:.3f} compensated; "
        + f"{sum(c['applied'] for c in consumers)} of {len(consumers)} solved again."
    )


def half_of(model: nn.Module, groups: tuple[Group, ...], batches: Batches) -> dict[str, tuple[int, ...]]:
    """Half of each group's channels, by `weighted`."""
    moments = observe(model, batches, [name for group in groups for name in group.producers])
    kept = {}
    for group in groups:
        space = separability_space(parts_of(group, moments))
        whole = Selection(group.width, tuple(range(group.width)), "whole")
        half = with_width(whole, space, group.width // 2, weights=channel_norms(model, group, {}))
        kept[group.name] = half.kept
    return kept


def prune(
    model: nn.Module,
    groups: tuple[Group, ...],
    kept: dict[str, tuple[int, ...]],
    calibration: Batches | None,
    *,
    norm_each: bool = False,
) -> tuple[nn.Module, list[Compensation]]:
    """Cut every group, in order of execution, with compensation if there is calibration data."""
    layout: Layout = {}
    records: list[Compensation] = []
    cache = PrefixCache()
    for group in groups:
        if calibration is not None:
            arguments = (group, kept[group.name], layout, calibration, SurgeryConfig())
            model, found = compensate(model, *arguments, cache=cache)
            records += found
        model, layout = cut_group(model, group, kept[group.name], layout)
        if norm_each and calibration is not None:
            reestimate_batchnorm(model, calibration)
    return model, records


if __name__ == "__main__":
    run(main)
