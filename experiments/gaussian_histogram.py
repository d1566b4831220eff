"""Gaussian against histogram JM: do they rank channels alike (Spearman), and keep the same ones (Jaccard)?

    python experiments/gaussian_histogram.py --model resnet56 --weights FILE --data cifar10:DIR --out FILE

The unpruned network, all groups of the scope `interior`, the paper's selection (p = 2). The score of a channel is its
mean JM over all class pairs; Spearman is over all channels, as in the paper, and within each layer. Jaccard is over
all the channels of the layers named, as in the paper, and taken twice: each reading at its own knee, layers without one
kept whole, and both at the same k, the Gaussian knee or half of a layer without one.
Coarser histograms are sums of the finest one's bins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import cells as kept_cells
import torch
from common import arguments, loaded, parts_of, run
from paper import figures, key

import cosep
from cosep.data import Data
from cosep.groups import groups_in_scope
from cosep.groups.numbering import channel_norms
from cosep.records import ClassHistograms, Space
from cosep.reporting.agreement import jaccard, overlap, spearman
from cosep.selection import with_width

BINS = (64, 32, 16)
PAPER = cosep.preset("paper").select
THIRDS = ("early", "middle", "late")


def main() -> None:
    parser = arguments(__doc__, model="resnet56", out="a JSON file", quick="300 images")
    parser.add_argument("--images", type=int, default=5000)
    args = parser.parse_args()
    images = 300 if args.quick else args.images
    data, model, about = loaded(args, "Gaussian against histogram")
    about["images"] = images
    cells = kept_cells.read(args.out, about)
    if not cells:  # two passes over the images are all the work: there is nothing between them to go on from
        cells = {"layers": layers(model, data, images)}
        kept_cells.write(args.out, about, cells)
    print(table(cells["layers"], key(args.model, args.data)))


def layers(model: torch.nn.Module, data: Data, images: int) -> list[dict]:
    """Both readings of every layer: the scores of its channels, and what is kept."""
    groups = groups_in_scope(cosep.find_groups(model, torch.randn(1, *data.input_shape)))
    names = [name for group in groups for name in group.producers]
    config = cosep.ObserveConfig(bins=BINS[0])
    moments = cosep.observe(model, data.calibration, names, config=config, max_images=images)
    counted = cosep.observe_histograms(model, data.calibration, names, moments, config=config, max_images=images)
    found = []
    for position, group in enumerate(groups):
        began = time.perf_counter()
        weights = channel_norms(model, group, {})
        parts, binned = parts_of(group, moments), parts_of(group, counted)
        gaussian = cosep.separability_space(parts)
        chosen = cosep.select(gaussian, weights=weights, config=PAPER)
        k = chosen.k or group.width // 2
        row = {
            "layer": group.name,
            "third": THIRDS[3 * position // len(groups)],
            "width": group.width,
            "k": chosen.k,
            "gaussian": scores(gaussian),
        }
        same_k = with_width(chosen, gaussian, k, weights=weights).kept
        for bins in BINS:
            space = cosep.separability_space(
                parts,
                cosep.ProfileConfig(metric="jm-histogram"),
                histograms=[coarser(part, bins) for part in binned],
            )
            own = cosep.select(space, weights=weights, config=PAPER)
            row[str(bins)] = {
                "scores": scores(space),
                "k": own.k,
                "overlap_own_k": overlap(chosen.kept, own.kept),
                "overlap_same_k": overlap(same_k, with_width(own, space, k, weights=weights).kept),
                "spearman_distances": spearman(pairs(gaussian), pairs(space)),
            }
        # Two random sets of k of n channels share k²/n of them on average.
        row["overlap_by_chance"] = (k * k / group.width, 2 * k - k * k / group.width)
        found.append(row)
        print(f"{group.name}: {time.perf_counter() - began:.1f} s", flush=True)
    return found


def coarser(histograms: ClassHistograms, bins: int) -> ClassHistograms:
    """The same counts in fewer bins."""
    classes, channels, finest = histograms.count.shape
    count = histograms.count.reshape(classes, channels, bins, finest // bins).sum(-1)
    return ClassHistograms(count, histograms.low, histograms.high)


def scores(space: Space) -> list[float]:
    return [round(value, 6) for value in space.separability.tolist()]


def pairs(space: Space) -> list[float]:
    """The distances between any two channels."""
    first, second = torch.triu_indices(space.channels, space.channels, offset=1)
    return space.distances[first, second].tolist()


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def table(rows: list[dict], paper: str) -> str:
    """Agreement by depth and number of bins, and the paper's figures."""
    columns = ["layers", "bins", "Spearman, all channels", "Spearman, mean of layers", "Spearman of distances"]
    columns += ["Jaccard of what is kept", "Jaccard at the same k", "by chance"]
    lines = []
    for part in ("all", *THIRDS):
        mine = [row for row in rows if part in ("all", row["third"])]
        if not mine:  # a network of one or two layers
            continue
        for bins in map(str, BINS if part == "all" else BINS[:1]):
            pooled = spearman([s for r in mine for s in r["gaussian"]], [s for r in mine for s in r[bins]["scores"]])
            lines.append(
                (
                    f"{part} ({len(mine)})",
                    bins,
                    f"{pooled:.3f}",
                    f"{mean([spearman(r['gaussian'], r[bins]['scores']) for r in mine]):.3f}",
                    f"{mean([r[bins]['spearman_distances'] for r in mine]):.3f}",
                    f"{100 * jaccard(r[bins]['overlap_own_k'] for r in mine):.1f} %",
                    f"{100 * jaccard(r[bins]['overlap_same_k'] for r in mine):.1f} %",
                    f"{100 * jaccard(r['overlap_by_chance'] for r in mine):.1f} %",
                )
            )
    reported = figures("gaussian_vs_histogram", paper)
    said = f"Spearman {reported['spearman']}, Jaccard {reported['jaccard']} %" if reported else "no such network"
    return kept_cells.markdown(columns, lines) + f"\n\nThe paper, {paper}: {said}."


if __name__ == "__main__":
    run(main)
