"""How heads of attention are best described for CoSeP: a weak Vision Transformer on digits, half of its heads cut.

    python experiments/heads.py --out heads.json [--seeds 5] [--kept 4] [--rows "mean, places;l2"]

Trains a small Vision Transformer with a class token on three quarters of the digits' training images (a minute for each
seed on one core), cuts its heads alone to `--kept` of 8 in each layer, without training afterwards, with and without
the rebuild, and measures on the fourth quarter. Test images have no part in it: this is what defaults are chosen by.
Rows: the number of a token feature (mean over the tokens, first token) and a head's profile (its values together, or
one by one), beside L2 norms and random heads.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cosep
from cosep.config import preset, replace_settings
from cosep.data.digits import read_digits
from cosep.zoo.vit import Block

HEADS, WIDTH, LAYERS = 8, 64, 4
ROWS = {
    "mean, places": {"select": {"criterion": "cosep"}, "observe": {"tokens": "mean"}, "profile": {"heads": "places"}},
    "mean, multivariate": {
        "select": {"criterion": "cosep"},
        "observe": {"tokens": "mean"},
        "profile": {"heads": "multivariate"},
    },
    "first, places": {"select": {"criterion": "cosep"}, "observe": {"tokens": "first"}, "profile": {"heads": "places"}},
    "first, multivariate": {
        "select": {"criterion": "cosep"},
        "observe": {"tokens": "first"},
        "profile": {"heads": "multivariate"},
    },
    "elimination": {"select": {"criterion": "elimination"}},
    "l2": {"select": {"criterion": "l2"}},
    "random": {"select": {"criterion": "random"}},
}


class ClassTokenViT(nn.Module):
    """Tokens of 2 x 2 pixels behind a class token, which is classified: (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, 2 * WIDTH) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def trained(images: Tensor, labels: Tensor, seed: int, epochs: int = 30) -> nn.Module:
    torch.manual_seed(seed)
    model = ClassTokenViT()
    batches = len(labels) // 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels))[: batches * 64].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return 100 * float((model.eval()(images).argmax(1) == labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kept", type=int, default=4)
    parser.add_argument("--rows", default=";".join(ROWS), help="some of the rows, with ; between them")
    args = parser.parse_args()
    split = read_digits()[0]
    images = (split.images.float() / 255 - 0.2876) / 0.3541
    cells = []
    for seed in range(args.seeds):
        order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(seed))
        fit, held = order[: len(order) * 3 // 4], order[len(order) * 3 // 4 :]
        model = trained(images[fit], split.labels[fit], seed)
        base = accuracy(model, images[held], split.labels[held])
        print(f"seed {seed}: {base:.2f} % uncut", flush=True)
        loader = [(images[part], split.labels[part]) for part in fit.split(128)]
        widths = {f"blocks.{n}.attention.query": args.kept for n in range(LAYERS)}
        for row in args.rows.split(";"):
            for solve in (True, False):
                settings = {
                    "seed": seed,
                    "device": {"accelerator": "cpu"},
                    "recover": {"schedule": "none"},
                    "surgery": {"protect": "*.linear1"},
                    "rebuild": {"solve": solve},
                    **ROWS[row],
                }
                config = replace_settings(preset(), settings)
                start = time.process_time()
                result = cosep.prune(model, loader, config=config, widths=widths)
                found = accuracy(result.model, images[held], split.labels[held])
                kept = {each.group: list(each.kept) for each in result.plan.groups}
                assert all(len(kept[name]) == args.kept for name in widths), kept
                cell = {"row": row, "seed": seed, "rebuilt": solve, "base": base, "accuracy": found, "kept": kept}
                cells.append({**cell, "seconds": round(time.process_time() - start, 1)})
                args.out.write_text(json.dumps(cells, indent=1))
    print(f"| {args.kept} of {HEADS} heads kept in each layer | rebuilt | only cut |\n|---|---|---|")
    for row in args.rows.split(";"):
        shown = []
        for solve in (True, False):
            values = torch.tensor([c["accuracy"] for c in cells if c["row"] == row and c["rebuilt"] == solve])
            shown.append(f"{values.mean():.2f} ± {values.std():.2f}" if len(values) > 1 else f"{values.mean():.2f}")
        print(f"| {row} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
