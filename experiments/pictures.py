"""The figures of the README and of docs/results.md, drawn from the results that are committed here.

    python experiments/pictures.py --out docs/figures

Nothing is measured: the widths and accuracies are those in results/*.json, MACs are counted on the network itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from cosep.groups import find_groups
from cosep.measurement.cost import layer_macs
from cosep.surgery.cut import apply_layout, layout_of, merged_layout
from cosep.zoo import load_model

RESULTS = Path(__file__).parent / "results"
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #4d5868; }
.ground { fill: #ffffff; } .title { font-size: 17px; font-weight: 650; fill: #18202c; }
.big { font-size: 25px; font-weight: 650; fill: #18202c; } .strong { fill: #18202c; font-weight: 600; }
.after, .dot { fill: #2159b8; } .before { fill: #d5ddea; } .other { fill: #7c899c; } .ours { fill: #2159b8; }
.line { stroke: #d9dfe8; } .mean { stroke: #18202c; stroke-width: 2; } .mark { stroke: #b4470a; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
text { fill: #aab4c2; } .ground { fill: #191f28; } .title, .big, .strong { fill: #e9edf3; }
.after, .dot, .ours { fill: #77a9f7; } .before { fill: #3a4659; } .other { fill: #8a97aa; }
.line { stroke: #323c4a; } .mean { stroke: #e9edf3; } .mark { stroke: #ffa05c; } }
"""
COLOURS = ("#2159b8", "#b4470a", "#8a4fb0", "#2b8a9e", "#c98a1b", "#4a8a3c", "#7c899c")  # seen on white and on black
Row = tuple[str, Sequence[float], bool]  # name, values, whether it is the default


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="the folder for the SVG files")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        (out / name).write_text(picture, encoding="utf-8")
        print(out / name)


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    names = (
        "untrained-resnet20", "untrained-resnet56", "compare-resnet20", "inference-time", "class-subset-resnet32",
        "untrained-resnet20-shares", "untrained-resnet110",
    )  # fmt: skip
    small, large, trained, times, subsets, sizes, deep = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in names
    )
    return {
        "resnet56-half.svg": network("resnet56", "ResNet-56", large["cells"]),
        "untrained.svg": untrained({"ResNet-56": large["cells"], "ResNet-20": small["cells"]}),
        "accuracy-macs.svg": against_macs("ResNet-20", sizes["cells"]),
        "criteria-resnet20.svg": criteria(trained["trials"]),
        "inference-time.svg": inference(times["cells"]),
        "time-macs.svg": time_against_macs(times["cells"]),
        "retention.svg": retention(
            {
                "ResNet-20": ("resnet20", small["cells"]),
                "ResNet-56": ("resnet56", large["cells"]),
                "ResNet-110": ("resnet110_b", deep["cells"]),
            }
        ),
        "class-count.svg": class_count(subsets["cells"]),
    }


def network(model: str, title: str, cells: Mapping[str, Any]) -> str:
    """Every layer from input to output, as high as its MACs: before, and what is left of them."""
    cell, base = cells["elimination damage 50/0"], cells["base"]["accuracy"]
    torch.manual_seed(0)
    whole = load_model(model).eval()
    before, after = layer_macs(whole, IMAGE), layer_macs(narrowed(whole, cell["widths"]), IMAGE)
    names, most = list(before), max(cost.product for cost in before.values())
    left, top, bottom, step = 24, 150, 330, 840 / len(names)
    bars = []
    for place, name in enumerate(names):
        for kind, cost in (("before", before), ("after", after)):
            high = (bottom - top) * cost[name].product / most
            bars.append(_box(kind, left + place * step, bottom - high, step * 0.72, high))
    totals = [sum(cost.product for cost in costs.values()) for costs in (before, after)]
    figures = [
        ("multiplications", f"{totals[0] / 1e6:.0f} M → {totals[1] / 1e6:.0f} M"),
        ("test accuracy", f"{100 * base:.1f} % → {100 * cell['accuracy']:.1f} %"),
        ("training", "none"),
    ]
    columns = [
        _text(left + 285 * place, 72, label) + _text(left + 285 * place, 100, value, "big")
        for place, (label, value) in enumerate(figures)
    ]
    foot = [
        _text(left, bottom + 24, "input"),
        _text(left + 840 - 42, bottom + 24, "output"),
        _box("before", 250, bottom + 14, 11, 11) + _text(267, bottom + 24, "multiplications of each layer before"),
        _box("after", 510, bottom + 14, 11, 11) + _text(527, bottom + 24, "after"),
    ]
    head = f"{title} on CIFAR-10, cut to half and rebuilt"
    return _svg(888, 372, head, [_text(left, 36, head, "title"), *columns, *bars, *foot])


def untrained(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """The test accuracy of every seed at half of the MACs, without training."""
    names = {"elimination damage": "default", "l2 uniform": "L2 norm, equal shares"}
    rows: list[Row] = []
    for title, cells in networks.items():
        rows.append((f"{title}, unpruned", [100 * cells["base"]["accuracy"]], False))
        for key, name in names.items():
            found = [100 * cell["accuracy"] for cell_name, cell in cells.items() if cell_name.startswith(f"{key} 50/")]
            if found:
                rows.append((f"{title}, {name}", found, key == "elimination damage"))
    return strip("Test accuracy at half of the MACs, without training; a dot for each seed", rows, 82, 94)


def against_macs(title: str, cells: Mapping[str, Any]) -> str:
    """The test accuracy of every criterion and width rule against the MACs that are left, without training."""
    names = {
        "elimination damage": "elimination, damage (default)", "l2 damage": "L2 norm, damage",
        "cosep damage": "CoSeP, damage", "elimination uniform": "elimination, equal shares",
        "l2 uniform": "L2 norm, equal shares", "fpgm uniform": "FPGM, equal shares",
        "random uniform": "random, equal shares",
    }  # fmt: skip
    lines = {}
    for key, name in names.items():
        sizes = dict.fromkeys(label.rpartition("/")[0] for label in cells if label.startswith(f"{key} "))
        of_size = [[cell for label, cell in cells.items() if label.rpartition("/")[0] == size] for size in sizes]
        points = [(100.0, 100 * cells["base"]["accuracy"])]
        points += [
            (100 * fmean(c["macs"] for c in found), 100 * fmean(c["accuracy"] for c in found)) for found in of_size
        ]
        lines[name] = sorted(points, reverse=True)
    low = 5 * (min(point[1] for points in lines.values() for point in points) // 5)
    fewest = 5 * (min(point[0] for points in lines.values() for point in points) // 5)
    head = f"{title} on CIFAR-10: test accuracy without training, against the MACs left"
    return chart(head, lines, Axis(100, fewest, -10), Axis(low, 93, 5))


def time_against_macs(cells: Mapping[str, Any]) -> str:
    """The time for one image against the MACs, both as shares of the whole network's, in two runtimes."""
    lines, colours, dashed = {}, {}, []
    for colour, model in enumerate(dict.fromkeys(name.split("/")[0] for name in cells)):
        for runtime, said in (("torch", "PyTorch (dashed)"), ("onnxruntime", "ONNX Runtime")):
            cell = cells[f"{model}/{runtime}/1"]
            whole = cell["full"]["macs"]
            points = [(100 * kind["macs"] / whole, 100 / kind["speedup"]) for kind in (cell["full"], cell["rounded"])]
            lines[f"{model}, {said}"], colours[f"{model}, {said}"] = points, colour
            dashed += [f"{model}, {said}"] if runtime == "torch" else []
    head = "Time for one image against the MACs left, widths in multiples of 8"
    return chart(head, lines, Axis(100, 20, -10), Axis(0, 100, 20), colours, dashed)


def retention(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """The share of its channels that each layer keeps, from input to output, mean of the seeds."""
    lines = {}
    for title, (model, cells) in networks.items():
        torch.manual_seed(0)
        whole = {group.name: group.width for group in find_groups(load_model(model).eval(), IMAGE)}
        found = [cell["widths"] for name, cell in cells.items() if name.startswith("elimination damage 50")]
        layers = [name for name in whole if name in found[0]]
        lines[title] = [
            (100 * place / (len(layers) - 1), 100 * fmean(widths[name] / whole[name] for widths in found))
            for place, name in enumerate(layers)
        ]
    head = "Channels kept, from the first layer that is cut to the last, at half of the MACs"
    return chart(head, lines, Axis(0, 100, 20), Axis(0, 100, 20))


@dataclass(frozen=True)
class Axis:
    """Percentages from where to where, with a line every so often."""

    first: float
    last: float
    step: int

    def ticks(self) -> list[int]:
        return list(range(round(self.first), round(self.last) + (1 if self.step > 0 else -1), self.step))

    def share(self, value: float) -> float:
        return (value - self.first) / (self.last - self.first)


def chart(
    head: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    across: Axis,
    up: Axis,
    colours: Mapping[str, int] | None = None,
    dashed: Sequence[str] = (),
) -> str:
    """Lines with a dot at each of their points, and their names on the right, the highest end first."""
    colours = colours or {name: place for place, name in enumerate(lines)}
    left, right, top, bottom = 66, 640, 66, 420

    def place(x: float, y: float) -> tuple[float, float]:
        return left + across.share(x) * (right - left), bottom - up.share(y) * (bottom - top)

    kinds = [f".kind{kind} {{ stroke: {colour}; fill: {colour}; }}" for kind, colour in enumerate(COLOURS)]
    style = "\n".join(("<style>", *kinds, "polyline[class] { fill: none; stroke-width: 2; }", "</style>"))
    parts = [style, _text(24, 34, head, "title")]
    for tick in up.ticks():
        _, y = place(across.first, tick)
        parts += [_line("line", left, y, right, y), _text(left - 10, y + 4, f"{tick} %", anchor="end")]
    for tick in across.ticks():
        x, _ = place(tick, up.first)
        parts += [_line("line", x, top, x, bottom), _text(x, bottom + 20, f"{tick} %", anchor="middle")]
    lowest = top - 12.0
    for name, points in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        kind = f"kind{colours[name]}"
        drawn = [place(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        dashes = ' stroke-dasharray="6 4"' if name in dashed else ""
        parts.append(f'<polyline class="{kind}" points="{path}"{dashes}/>')
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in drawn]
        lowest = max(drawn[-1][1], lowest + 17)  # names that would lie on one another go down
        parts.append(_box(kind, right + 12, lowest - 5, 11, 11))
        parts.append(_text(right + 29, lowest + 5, name, "strong" if "default" in name else ""))
    return _svg(888, bottom + 36, head, parts)


def criteria(trials: Sequence[Mapping[str, Any]]) -> str:
    """The test accuracy of every method and seed at the same widths."""
    names = {
        "l2": "L2 norm", "fpgm": "FPGM", "cosep-mass": "CoSeP, large filters count more", "cosep": "CoSeP",
        "taylor": "Taylor", "cosep-magnitude": "CoSeP, magnitude-aware space", "random": "random",
    }  # fmt: skip
    rows: list[Row] = [
        (name, [100 * t["accuracy"] for t in trials if t["method"] == method], False) for method, name in names.items()
    ]
    rows.sort(key=lambda row: -fmean(row[1]))
    return strip(
        "ResNet-20, the same widths and 352 updates with the former default; a dot for each seed", rows, 87, 90
    )


def class_count(cells: Mapping[str, Any]) -> str:
    """The test accuracy with each M, and the MACs that its widths leave."""
    rows: list[Row] = []
    for count, cell in sorted(cells.items(), key=lambda item: int(item[0])):
        left = 100 * fmean(trial["macs"] for trial in cell["runs"].values())
        found = [100 * trial["accuracy"] for trial in cell["runs"].values()]
        rows.append((f"M = {count}, {left:.1f} % of the MACs left", found, False))
    return strip("ResNet-32, CIFAR-100: test accuracy with M classes, rebuilt, without training", rows, 40, 50)


def inference(cells: Mapping[str, Any]) -> str:
    """The time of pruned networks as a share of the whole one's, one image, widths rounded to multiples of 8 or not."""
    rows = []
    for model in dict.fromkeys(name.split("/")[0] for name in cells):
        for runtime, said in (("torch", "PyTorch"), ("onnxruntime", "ONNX Runtime")):
            cell = cells[f"{model}/{runtime}/1"]
            shares = [100 / cell[kind]["speedup"] for kind in ("pruned", "rounded")]
            rows.append((f"{model}, {said}", *shares))
    left, top, step, width = 210, 84, 24, 600
    parts = [_text(24, 34, "Time for one image after pruning, % of the whole network's", "title")]
    parts += [_box("other", 210, 46, 11, 11) + _text(227, 56, "widths as they come")]
    parts += [_box("after", 372, 46, 11, 11) + _text(389, 56, "widths rounded up to multiples of 8")]
    scale = width / 120
    for tick in range(0, 121, 20):
        parts.append(_line("line", left + tick * scale, top - 6, left + tick * scale, top + len(rows) * step))
        parts.append(_text(left + tick * scale, top + len(rows) * step + 18, f"{tick} %", anchor="middle"))
    for place, (name, plain, rounded) in enumerate(rows):
        y = top + place * step
        parts.append(_text(left - 10, y + 14, name, anchor="end"))
        parts.append(_box("other", left, y + 2, plain * scale, 8) + _box("after", left, y + 11, rounded * scale, 8))
    parts.append(_line("mark", left + 100 * scale, top - 6, left + 100 * scale, top + len(rows) * step))
    return _svg(860, top + len(rows) * step + 32, "Time for one image after pruning", parts)


def strip(title: str, rows: Sequence[Row], low: float, high: float) -> str:
    """A line of dots for each row, with their mean."""
    left, right, top, step = 300, 830, 66, 30
    scale = (right - left) / (high - low)
    parts = [_text(24, 34, title, "title")]
    bottom = top + len(rows) * step
    for tick in range(round(low), round(high) + 1, 2 if high - low > 6 else 1):
        x = left + (tick - low) * scale
        parts += [_line("line", x, top - 8, x, bottom), _text(x, bottom + 18, f"{tick} %", anchor="middle")]
    for place, (name, values, ours) in enumerate(rows):
        y = top + (place + 0.5) * step
        mean = left + (fmean(values) - low) * scale
        parts.append(_text(left - 14, y + 4, name, "strong" if ours else "", "end"))
        if len(values) > 1:
            parts.append(_line("mean", mean, y - 10, mean, y + 10))
        for value in values:
            kind = "ours" if ours else "other"
            parts.append(f'<circle class="{kind}" cx="{left + (value - low) * scale:.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(_text(right + 14, y + 4, f"{fmean(values):.2f}", "strong" if ours else ""))
    return _svg(900, bottom + 32, title, parts)


IMAGE = torch.zeros(1, 3, 32, 32)


def narrowed(model: nn.Module, widths: Mapping[str, int]) -> nn.Module:
    """The network with so many channels in each group; which ones makes no difference to what it costs."""
    groups = [group for group in find_groups(model, IMAGE) if group.name in widths]
    cuts = [layout_of(model, group, tuple(range(widths[group.name])), {}) for group in groups]
    return apply_layout(model, merged_layout(*cuts))


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{width:g}" height="{height:g}" rx="10"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 1):.1f}"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


if __name__ == "__main__":
    main()
