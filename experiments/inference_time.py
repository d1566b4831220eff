"""Inference time before and after pruning: single images and batches, PyTorch and ONNX Runtime, on the CPU.

    python experiments/inference_time.py --out inference-time.json [--plan resnet56=RUN ...] [--threads 2]

Each network is timed whole, at CoSeP's widths, and at those rounded up to multiples of 8. The widths are those of a
run (--plan), or 45 % of each group: half of a power of two is a multiple of 8 already, whereas CoSeP's own widths
are not, so "just under half" shows what rounding is worth. Weights are random, which times do not depend on. All three
take turns, and a change is the median of the ratios within a round. The paper's times are of GPUs; --models can name
each of its eight rows.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import cells as kept_cells
import torch
from common import run
from paper import figures
from torch import nn

import cosep
from cosep.errors import ConfigError
from cosep.groups import groups_in_scope
from cosep.measurement import Latency, latency, macs, onnx_latency
from cosep.records import Group, Layout
from cosep.runs.preflight import checked_widths
from cosep.storage.artifacts import read_documents
from cosep.storage.export import export_onnx
from cosep.surgery import cut_group
from cosep.zoo import input_shape

# Each row of the paper's table: the model, how the paper calls it, classes, a batch that two cores need a second for.
MODELS = {
    "resnet56": ("resnet56", "CIFAR-10/ResNet-56", 10, 32),
    "vgg16": ("vgg16", "CIFAR-10/VGG-16", 10, 32),
    "mobilenetv2": ("mobilenetv2", "CIFAR-10/MobileNet-V2", 10, 32),
    "vgg16-cifar100": ("vgg16", "CIFAR-100/VGG-16", 100, 32),
    "vgg19-cifar100": ("vgg19", "CIFAR-100/VGG-19", 100, 32),
    "densenet40": ("densenet40", "CIFAR-100/DenseNet-40", 100, 32),
    "resnet50": ("resnet50", "ImageNet-1K/ResNet-50", 1000, 8),
    "mobilenetv2_imagenet": ("mobilenetv2_imagenet", "ImageNet-1K/MobileNet-V2", 1000, 8),
}
# One of each kind: the others differ from them in depth, classes or pixels.
USUAL = ("resnet56", "vgg16", "mobilenetv2", "densenet40", "resnet50")
SHARE, MULTIPLE = 0.45, 8
Timer = Callable[..., dict[str, Latency]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(USUAL), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--plan", action="append", default=[], metavar="MODEL=RUN", help="take the widths of a run")
    parser.add_argument("--batch", type=int, help="of every model; by default 32, and 8 of 224 pixels")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0, help="for each model, batch and runtime")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="three rounds each: does it run?")
    args = parser.parse_args()
    names = [name.strip() for name in args.models.split(",")]
    plans = {name: Path(folder) for name, _, folder in (text.partition("=") for text in args.plan)}
    for name in (*names, *plans):
        if name not in MODELS:
            raise ConfigError(f"there is no model {name!r} here; there are {', '.join(MODELS)}.")
    torch.set_num_threads(args.threads)
    widths = {name: {plan.group: len(plan.kept) for plan in read_documents(plans[name])[0].groups} for name in plans}
    about = {
        "experiment": "inference time",
        "threads": args.threads,
        "seconds": args.seconds,
        "quick": args.quick,
        "machine": machine(),
        "widths": widths,
    }
    cells = kept_cells.read(args.out, about)
    for name in names:
        model, _, classes, batch = MODELS[name]
        sizes = (1, args.batch or batch)
        runtimes = ("torch", "onnxruntime")
        wanted = [f"{name}/{runtime}/{size}" for runtime in runtimes for size in sizes]
        if all(cell in cells for cell in wanted):
            continue
        networks = three_networks(model, classes, widths.get(name))
        example = torch.randn(max(sizes), *input_shape(model))
        cost = {which: macs(network, example[:1]) for which, network in networks.items()}
        with tempfile.TemporaryDirectory() as folder:
            files = {which: Path(folder) / f"{which}.onnx" for which in networks}
            for which, network in networks.items():
                export_onnx(network, files[which], example[:1])
            timers = {"torch": partial(latency, networks), "onnxruntime": partial(onnx_latency, files)}
            for runtime in runtimes:
                for size in sizes:
                    times = timed(timers[runtime], example[:size], args)
                    cells[f"{name}/{runtime}/{size}"] = {
                        which: {"macs": cost[which], **asdict(found)} for which, found in times.items()
                    }
                    kept_cells.write(args.out, about, cells)
                    print(*row(name, runtime, size, cells[f"{name}/{runtime}/{size}"]), sep=" | ", flush=True)
    print()
    print(table(cells))


def three_networks(name: str, classes: int, widths: dict[str, int] | None) -> dict[str, nn.Module]:
    """The whole network, it at the widths of a run or just under half, and at those rounded up."""
    torch.manual_seed(0)
    model = cosep.load_model(name, classes=classes).eval()
    groups = groups_in_scope(cosep.find_groups(model, torch.randn(1, *input_shape(name))))
    half = {group.name: max(1, round(SHARE * group.width)) for group in groups}
    widths = checked_widths(widths, groups) if widths else half
    rounded = {group: -(-width // MULTIPLE) * MULTIPLE for group, width in widths.items()}
    return {"full": model, "pruned": narrowed(model, groups, widths), "rounded": narrowed(model, groups, rounded)}


def narrowed(model: nn.Module, groups: tuple[Group, ...], widths: Mapping[str, int]) -> nn.Module:
    """The model with so many channels of each group, equally many of each of its blocks: which ones costs the same."""
    layout: Layout = {}
    for group in groups:
        size = group.width // group.blocks
        each = min(size, -(-widths.get(group.name, group.width) // group.blocks))
        kept = tuple(block * size + channel for block in range(group.blocks) for channel in range(each))
        model, layout = cut_group(model, group, kept, layout)
    return model


def timed(timer: Timer, example: torch.Tensor, args: argparse.Namespace) -> dict[str, Latency]:
    """As many rounds as the seconds allow, at least five and at most two hundred."""
    trial = timer(example, repeats=2, warmup=2, threads=args.threads)
    a_round = sum(found.median_ms for found in trial.values()) / 1e3
    rounds = 3 if args.quick else max(5, min(200, int(args.seconds / a_round)))
    return timer(example, repeats=rounds, warmup=0 if args.quick else 2, threads=args.threads)


def machine() -> str:
    return f"{platform.machine()}, torch {torch.__version__.split('+')[0]}"


def change(found: Mapping[str, float], which: str = "speedup") -> float:
    """The change of the time in %, as the paper counts it, from a speed-up."""
    return 100 * (1 / found[which] - 1)


def row(name: str, runtime: str, size: int, cell: Mapping[str, dict]) -> list[str]:
    """One row of the table."""
    paper = MODELS[name][1]
    reported = figures("inference_ms", paper, "single" if size == 1 else "batch")
    full = cell["full"]
    columns = [paper, runtime, str(size), f"{full['median_ms']:.2f}"]
    for which in ("pruned", "rounded"):
        found = cell[which]
        spread = f"{change(found, 'speedup_p90'):.0f} to {change(found, 'speedup_p10'):.0f}"
        columns.append(f"{100 * found['macs'] / full['macs']:.0f} %")
        columns.append(f"{change(found):+.0f} % ({spread})")
    columns.append(f"{reported[2]:+.1f} %" if reported else "–")
    return columns


def table(cells: Mapping[str, dict]) -> str:
    columns = ("model", "runtime", "batch", "whole, ms", "MACs left", "change (10 to 90 %)")
    columns += ("MACs left, rounded to 8", "change, rounded (10 to 90 %)", "the paper, GPU")
    return kept_cells.markdown(
        columns, [row(*cell.split("/")[:2], int(cell.split("/")[2]), found) for cell, found in cells.items()]
    )


if __name__ == "__main__":
    run(main)
