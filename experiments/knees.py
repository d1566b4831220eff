"""How often a layer has a knee, and how much of it stays, for both silhouettes, degrees 2 to 5 and both knee rules.

    python experiments/knees.py --model resnet56 --weights FILE --data cifar10:DIR --out knees.json

Statistics of the uncut network over 5,000 training images; nothing is cut. The paper's FLOPs stand beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import cosep
from cosep.data import load_data
from cosep.groups import groups_in_scope

RULES = {"paper (S = 1)": (False, 1.0), "default (S = 0, weighted fit)": (True, 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data = load_data(args.data)
    model = cosep.load_model(args.model, weights=args.weights)
    groups = groups_in_scope(cosep.find_groups(model, torch.randn(1, *data.input_shape)))
    moments = cosep.observe(model, data.calibration, [g.name for g in groups], max_images=args.images)
    spaces = [cosep.separability_space(moments[g.name]) for g in groups]
    rows = []
    for silhouette in ("nearest", "mean"):
        for degree in (2, 3, 4, 5) if silhouette == "mean" else (2,):
            for rule, (weighted, sensitivity) in RULES.items():
                config = cosep.SelectConfig(
                    silhouette=silhouette,
                    degree=degree,
                    weighted_fit=weighted,
                    sensitivity=sensitivity,
                    representative="medoid",
                )
                chosen = [cosep.select(space, config=config) for space in spaces]
                kept = [len(s.kept) / s.channels for s in chosen]
                knees = [share for share, s in zip(kept, chosen, strict=True) if s.k is not None]
                rows.append(
                    {
                        "silhouette": silhouette,
                        "degree": degree,
                        "rule": rule,
                        "layers": len(chosen),
                        "knees": len(knees),
                        "kept_with_knee": sum(knees) / len(knees) if knees else None,
                        "kept": sum(kept) / len(kept),
                        "reasons": sorted({s.reason for s in chosen}),
                    }
                )
                print(table(rows[-1:]), flush=True)
    args.out.write_text(json.dumps({"model": args.model, "images": args.images, "rows": rows}, indent=1) + "\n")
    print("\n| silhouette | degree | rule | layers with a knee | kept, those layers | kept, all layers |")
    print("|---|---|---|---|---|---|")
    print(table(rows))


def table(rows: list[dict]) -> str:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    return "\n".join(
        f"| `{r['silhouette']}` | {r['degree']} | {r['rule']} | {r['knees']} of {r['layers']} "
        f"| {share(r['kept_with_knee'])} | {share(r['kept'])} |"
        for r in rows
    )


if __name__ == "__main__":
    main()
