"""Accuracy without training after half of the interior channels went: cut only, compensated, BatchNorm re-estimated.

    python experiments/compensation.py --data DIR --weights DIR --model resnet20 [--out results.json]

Channels are chosen once, on the uncut network, by `weighted` (k-medoids on Jeffries-Matusita profiles with k half of
the width, the largest filter norm of each cluster), so that every row cuts the same ones. Calibration images are
training images as they are; the test images are only counted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.config import SurgeryConfig
from cosep.data import load_data
from cosep.groups import find_groups, groups_in_scope
from cosep.measure import accuracy
from cosep.observe import observe
from cosep.profile import separability_space
from cosep.records import Compensation, Group, Layout, Selection
from cosep.select import with_width
from cosep.surgery import channel_norms, compensate, cut_group, reestimate_batchnorm
from cosep.surgery.sweep import PrefixCache
from cosep.zoo import load_model

Batches = list[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="the folder of CIFAR-10's files")
    parser.add_argument("--weights", required=True, type=Path, help="the folder with MODEL_cifar10.safetensors")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--images", type=int, default=3000, help="for compensation and BatchNorm; observing uses 5,000")
    parser.add_argument("--seed", type=int, default=0, help="chooses the calibration images")
    parser.add_argument("--norm-each", action="store_true", help="also re-estimate BatchNorm after every cut")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    args = parser.parse_args()

    model = load_model(args.model, weights=args.weights / f"{args.model}_cifar10.safetensors").eval()
    data = load_data(f"cifar10:{args.data}", seed=args.seed)
    observed = some_batches(data.calibration, 5000)
    calibration = some_batches(observed, args.images)
    groups = groups_in_scope(find_groups(model, observed[0][0][:2]))
    kept = half_of(model, groups, observed)

    results: dict[str, Any] = {"model": args.model, "images": args.images, "seed": args.seed, "groups": len(groups)}
    rows: dict[str, float] = {"uncut": accuracy(model, data.test)}
    print(f"{args.model}: uncut {100 * rows['uncut']:.2f} %", flush=True)

    def note(name: str, pruned: nn.Module) -> None:
        rows[name] = accuracy(pruned, data.test)
        print(f"{args.model}: {name} {100 * rows[name]:.2f} %", flush=True)

    pruned, _, _ = prune(model, groups, kept, None)
    note("cut only", pruned)
    reestimate_batchnorm(pruned, calibration)
    note("cut, BatchNorm re-estimated", pruned)
    begin = time.perf_counter()
    pruned, records, layout = prune(model, groups, kept, calibration)
    results["seconds"] = time.perf_counter() - begin
    note("compensated", pruned)
    reestimate_batchnorm(pruned, calibration)
    note("compensated, BatchNorm re-estimated", pruned)
    if args.norm_each:
        pruned, _, _ = prune(model, groups, kept, calibration, norm_each=True)
        note("compensated, BatchNorm re-estimated after every cut", pruned)

    results["accuracy"] = rows
    results["parameters"] = [sum(p.numel() for p in m.parameters()) for m in (model, pruned)]
    results["consumers"] = [vars(record) for record in records]
    errors = torch.tensor([(r.error_before, r.error_after) for r in records]).mean(0).tolist()
    print(f"{args.model}: mean relative error {errors[0]:.3f} cut only, {errors[1]:.3f} compensated; ", end="")
    print(f"{sum(r.applied for r in records)} of {len(records)} consumers re-solved, {len(layout)} sides cut")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")
        print(args.out)


def some_batches(source: Any, images: int) -> Batches:
    """The first so many images: batches of (input, label)."""
    found: Batches = []
    for inputs, labels in source:
        left = images - sum(len(y) for _, y in found)
        if left <= 0:
            break
        found.append((inputs[:left], labels[:left]))
    return found


def half_of(model: nn.Module, groups: tuple[Group, ...], batches: Batches) -> dict[str, tuple[int, ...]]:
    """Half of each group's channels, by `weighted`."""
    moments = observe(model, batches, [name for group in groups for name in group.producers])
    kept = {}
    for group in groups:
        space = separability_space([moments[name] for name in group.producers])
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
) -> tuple[nn.Module, list[Compensation], Layout]:
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
    return model, records, layout


if __name__ == "__main__":
    main()
