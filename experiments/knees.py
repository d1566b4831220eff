"""How often a layer has a knee, and how much of it stays, for both silhouettes, degrees 2 to 5 and both knee rules.

    python experiments/knees.py --model resnet56 --weights FILE --data cifar10:DIR --out knees.json

Statistics of the uncut network over 5,000 training images; nothing is cut. The paper does not say how many layers have
a knee; the FLOPs that its networks keep with each degree stand beside its rule.
"""

from __future__ import annotations

import cells as kept_cells
import torch
from common import arguments, loaded, parts_of, run
from paper import figures, key

import cosep
from cosep.groups import groups_in_scope
from cosep.records import Space

RULES = {"paper (S = 1)": (False, 1.0), "ours (S = 0, weighted fit)": (True, 0.0)}
READINGS = (("nearest", 2), ("mean", 2), ("mean", 3), ("mean", 4), ("mean", 5))  # silhouette, degree


def main() -> None:
    parser = arguments(__doc__, model="resnet56", out="a JSON file", quick="300 images, the first four groups")
    parser.add_argument("--images", type=int, default=5000)
    args = parser.parse_args()
    data, model, about = loaded(args, "knees")
    about["images"] = images = 300 if args.quick else args.images
    cells = kept_cells.read(args.out, about)
    wanted = {f"{s}/{degree}/{rule}": (s, degree, rule) for s, degree in READINGS for rule in RULES}
    if missing := [name for name in wanted if name not in cells]:
        groups = groups_in_scope(cosep.find_groups(model, torch.randn(1, *data.input_shape)))
        groups = groups[:4] if args.quick else groups
        producers = [name for group in groups for name in group.producers]
        moments = cosep.observe(model, data.calibration, producers, max_images=images)
        spaces = [cosep.separability_space(parts_of(group, moments)) for group in groups]
        for name in missing:
            cells[name] = knees(spaces, *wanted[name])
            kept_cells.write(args.out, about, cells)
            print(f"{name}: {cells[name]['knees']} of {len(spaces)} layers", flush=True)
    print(table([cells[name] for name in wanted], key(args.model, args.data)))


def knees(spaces: list[Space], silhouette: str, degree: int, rule: str) -> dict:
    """How many layers have a knee, and the mean share of channels that stays."""
    weighted, sensitivity = RULES[rule]
    config = cosep.SelectConfig(
        silhouette=silhouette,  # type: ignore[arg-type]
        degree=degree,
        weighted_fit=weighted,
        sensitivity=sensitivity,
        representative="medoid",
    )
    chosen = [cosep.select(space, config=config) for space in spaces]
    kept = [len(s.kept) / s.channels for s in chosen]
    with_knee = [share for share, s in zip(kept, chosen, strict=True) if s.k is not None]
    return {
        "silhouette": silhouette,
        "degree": degree,
        "rule": rule,
        "layers": len(chosen),
        "knees": len(with_knee),
        "kept_with_knee": sum(with_knee) / len(with_knee) if with_knee else None,
        "kept": sum(kept) / len(kept),
        "unstable": sum(any(note.startswith("unstable") for note in s.notes) for s in chosen),
        "reasons": sorted({s.reason for s in chosen}),
    }


def table(rows: list[dict], network: str) -> str:
    """A row a silhouette, degree and rule."""
    columns = ("silhouette", "degree", "rule", "layers with a knee", "unstable", "kept, those layers")
    columns += ("kept, all layers",)
    reported = figures("degree_and_representative", network, "flops_left")

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    lines = [
        (
            f"`{row['silhouette']}`",
            str(row["degree"]),
            row["rule"],
            f"{row['knees']} of {row['layers']}",
            str(row["unstable"]),
            share(row["kept_with_knee"]),
            share(row["kept"]),
            f"{reported[row['degree'] - 2]} %" if reported and row["rule"].startswith("paper") else "–",
        )
        for row in rows
    ]
    return kept_cells.markdown((*columns, "FLOPs left, the paper"), lines)


if __name__ == "__main__":
    run(main)
