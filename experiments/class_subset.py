"""M, the number of classes that span the space: how much of the full selection survives, and what is saved.

    python experiments/class_subset.py --model resnet50 --weights FILE --data imagefolder:DIR --out FILE [--runs DIR]

For every M, the groups of the unpruned network are selected from the M classes that are best separated from the rest,
and compared with the selection from all classes: Spearman of the distances, Jaccard of the kept channels at the same
k, and the seconds of profiling and selecting. With --runs, each M is also pruned to the end, with the paper's preset,
and its test accuracy noted: that is the paper's figure (ResNet-50, ImageNet; it adopts M = 100), which `cosep report`
draws from the runs. Each M finds its own widths, as there; with --same-widths all have those of the full selection.
`--set recover.schedule='"none"' --set rebuild.solve=true` rebuilds the network in place of training it.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import cells as kept_cells
import torch
from common import arguments, data_of, loaded, papers_batch, parts_of, run
from paper import figures, headline
from trials import QUICK, add_settings, knees, merged, settings_of, spread

import cosep
from cosep.config import paper_recovery
from cosep.errors import ConfigError
from cosep.groups import groups_in_scope
from cosep.groups.numbering import channel_norms
from cosep.plugins import without_folder
from cosep.records import ClassMoments, Group
from cosep.reporting.agreement import jaccard, overlap, spearman
from cosep.selection import with_width

COUNTS = (2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000)


def main() -> None:
    parser = arguments(__doc__, model="resnet50", out="a JSON file", quick="10 images a class, the first four groups")
    parser.add_argument("--counts", type=numbers, default=COUNTS, help="M; those above the classes are left out")
    parser.add_argument("--images", type=int, help="by default 5,000, or 20 a class if that is more")
    parser.add_argument("--runs", type=Path, help="prune with each M in a folder of its own here")
    parser.add_argument("--seeds", type=int, default=1, help="of the runs")
    parser.add_argument("--same-widths", action="store_true", help="prune to the widths that all classes find")
    add_settings(parser)
    args = parser.parse_args()
    config = settings(args)  # refuses a wrong --set before anything is run
    data, model, about = loaded(args, "class subset", batch_size=papers_batch(args.data))
    classes = len(data.class_names)
    if not classes:
        raise ConfigError(f"{args.data} does not name its classes, so they cannot be counted. Add `class_names` to it.")
    images = 10 * classes if args.quick else args.images or max(5000, 20 * classes)
    about["images"] = images
    about |= {name: value for name, value in (("set", sorted(args.set)), ("same_widths", args.same_widths)) if value}
    cells = kept_cells.read(args.out, about)
    counts = sorted({count for count in args.counts if count < classes} | {classes})
    missing = [count for count in counts if str(count) not in cells]
    if missing:
        groups = groups_in_scope(cosep.find_groups(model, torch.randn(1, *data.input_shape)))
        groups = groups[:4] if args.quick else groups
        producers = [name for group in groups for name in group.producers]
        moments = cosep.observe(model, data.calibration, producers, classes=classes, max_images=images)
        reference = [chosen(model, group, moments, classes) for group in groups]
        for count in missing:
            cells[str(count)] = compared(model, groups, moments, count, reference)
            kept_cells.write(args.out, about, cells)
            print(count, cells[str(count)], flush=True)
    if args.runs:
        for seed in range(1 if args.quick else args.seeds):
            widths: dict[str, int] = {}
            for count in reversed(counts):  # all classes first: they find the widths
                trials = cells[str(count)].setdefault("runs", {})
                if str(seed) not in trials:
                    trials[str(seed)] = pruned(args, config, model, count, seed, widths)
                    kept_cells.write(args.out, about, cells)
                    print(f"M = {count}, seed {seed}: {trials[str(seed)]}", flush=True)
                if args.same_widths:
                    widths = widths or trials[str(seed)]["widths"]
    print(table(cells, args))


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def chosen(
    model: torch.nn.Module, group: Group, moments: dict[str, ClassMoments], count: int
) -> tuple[cosep.Selection, cosep.Space, float]:
    """The selection of a group from so many classes, its space, and the seconds of both."""
    began = time.perf_counter()
    space = cosep.separability_space(parts_of(group, moments), cosep.ProfileConfig(max_classes=count))
    selection = cosep.select(space, weights=channel_norms(model, group, {}), config=cosep.preset("paper").select)
    return selection, space, time.perf_counter() - began


def compared(
    model: torch.nn.Module,
    groups: tuple[Group, ...],
    moments: dict[str, ClassMoments],
    count: int,
    reference: list[tuple[cosep.Selection, cosep.Space, float]],
) -> dict:
    """The means over the groups of what the selection from `count` classes has in common with the full one."""
    rows = []
    for group, (full, full_space, _) in zip(groups, reference, strict=True):
        selection, space, seconds = chosen(model, group, moments, count)
        k = full.k or group.width // 2
        weights = channel_norms(model, group, {})
        one, other = (with_width(s, at, k, weights=weights).kept for s, at in ((full, full_space), (selection, space)))
        first, second = torch.triu_indices(group.width, group.width, offset=1)
        distances = [at.distances[first, second].tolist() for at in (full_space, space)]
        rows.append((jaccard([overlap(one, other)]), spearman(*distances), len(selection.kept) / group.width, seconds))
    shared, rank, share, seconds = (list(column) for column in zip(*rows, strict=True))
    mean = 1 / len(rows)
    return {
        "pairs": math.comb(count, 2),
        "jaccard_same_k": sum(shared) * mean,
        "spearman_distances": sum(rank) * mean,
        "kept": sum(share) * mean,
        "seconds": sum(seconds),
        "groups": len(rows),
    }


def settings(args: argparse.Namespace) -> cosep.PruneConfig:
    """The paper's preset for this network and data, with what --set changes."""
    given = settings_of(args.set)
    if "max_classes" in given.get("profile", {}):
        raise ConfigError("--set profile.max_classes: the rows of this table differ in it. Give --counts.")
    papers = merged({"recover": paper_recovery(args.model, args.data)}, QUICK if args.quick else {})
    return cosep.replace_settings(cosep.preset("paper"), merged(papers, given))


def pruned(
    args: argparse.Namespace,
    config: cosep.PruneConfig,
    model: torch.nn.Module,
    count: int,
    seed: int,
    widths: dict[str, int],
) -> dict:
    """Accuracy, MACs and widths of a whole run with this M; it goes on where it was stopped."""
    data = data_of(args, seed=seed, batch_size=papers_batch(args.data))
    result = cosep.prune(
        model,
        data.calibration,
        data.test,
        config=cosep.replace_settings(config, {"profile": {"max_classes": count}, "seed": seed}),
        train=data.train,
        holdout=data.holdout,
        run=args.runs / f"{without_folder(args.model).replace(':', '-')}-{count}-{seed}",
        about={"model": args.model, "data": args.data, "classes": len(data.class_names)},
        widths=widths or None,
    )
    return {
        "accuracy": result.report.after.accuracy,
        "macs": result.report.change.macs,
        "widths": {plan.group: len(plan.kept) for plan in result.plan.groups},
        "knees": knees(result.plan),
    }


def over_runs(found: dict, key: str) -> str:
    """Mean ± standard deviation of a figure over the seeds, in percent."""
    trials = found.get("runs", {})
    return spread(100 * trial[key] for trial in trials.values()) if trials else "not run"


def table(cells: dict[str, dict], args: argparse.Namespace) -> str:
    columns = (
        "M",
        "class pairs",
        "Spearman of distances",
        "Jaccard, same k, mean of layers",
        "kept",
        "seconds",
        "test accuracy, %",
        "MACs left, %",
    )
    rows = [
        (
            count,
            f"{found['pairs']:,}",
            f"{found['spearman_distances']:.3f}",
            f"{100 * found['jaccard_same_k']:.1f} %",
            f"{100 * found['kept']:.1f} %",
            f"{found['seconds']:.1f}",
            *(over_runs(found, key) for key in ("accuracy", "macs")),
        )
        for count, found in sorted(cells.items(), key=lambda item: int(item[0]))
    ]
    reported, row = figures("class_count"), headline(args.model, args.data)
    said = f"\nThe paper (ResNet-50, ImageNet): {reported['finding']}; the accuracies are only in a picture."
    return (
        kept_cells.markdown(columns, rows)
        + "\n"
        + said
        + (f" Its headline for this network is {row['cosep']} %." if row else "")
    )


if __name__ == "__main__":
    run(main)
