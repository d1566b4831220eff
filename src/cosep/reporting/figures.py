"""The paper's figures of a run as files, PNG and SVG; the only home of matplotlib."""

from __future__ import annotations

import html
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cosep.errors import ConfigError
from cosep.records import GroupPlan, counted, in_all
from cosep.reporting.agreement import Agreement, Density, jaccard, spearman, thirds
from cosep.reporting.comparison import comparison_document
from cosep.reporting.evidence import Evidence
from cosep.reporting.literature import published
from cosep.reporting.page import METRICS, amounts, row_order
from cosep.reporting.run import RunRecord
from cosep.reporting.words import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, LIGHT, ORANGE, GREY = "#2159b8", "#c3d4ee", "#b4470a", "#6b7686"
PARTS = {"early": "#2159b8", "middle": "#b4470a", "late": "#1a7042"}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "cosep",  # the same records give the same file
    "svg.fonttype": "none",
}

Projection = Literal["pca", "tsne"]
Drawn = tuple[str, "Figure", str]  # name of the file, figure, its numbers in words


def write_figures(
    runs: Sequence[RunRecord],
    folder: Path,
    *,
    agreements: Sequence[Agreement] = (),
    group: str | None = None,
    projection: Projection = "pca",
) -> list[Path]:
    """Draw what the runs have records for into a folder, with `figures.md` that says each figure's numbers in words."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    lines = ["# Figures", ""]
    with _styled():
        for name, figure, words in _all_figures(runs, agreements, group, projection):
            for kind in ("png", "svg"):
                path = folder / f"{name}.{kind}"
                # No date inside: the same records give the same bytes.
                metadata = {"Date": None} if kind == "svg" else None
                figure.savefig(path, bbox_inches="tight", metadata=metadata)
                paths.append(path)
            lines += [f"## {name}", "", f"![{name}]({name}.png)", "", _escaped(words), ""]
    (folder / "figures.md").write_text("\n".join(lines), encoding="utf-8")
    return [*paths, folder / "figures.md"]


def _escaped(words: str) -> str:
    """A sentence in which names of groups and classes stay text, whatever Markdown or HTML they would be."""
    # Entities and not backslashes for what HTML is made of: not every Markdown takes a backslash there.
    return re.sub(r"([\\`*_\[\]!#])", r"\\\1", html.escape(" ".join(words.split()), quote=False))


def _all_figures(
    runs: Sequence[RunRecord], agreements: Sequence[Agreement], group: str | None, projection: Projection
) -> Iterator[Drawn]:
    if among := among_published(runs):
        yield among
    if len(runs) > 1:
        yield from (drawn for drawn in (accuracy_against_m(runs), accuracy_against_macs(runs)) if drawn)
        return
    run = runs[0]
    if run.plan.groups:
        yield retention(run)
    chosen = _chosen(run, group)
    if chosen:
        yield separability_matrix(run, *chosen)
        yield projection_map(run, *chosen, projection)
    if agreements:
        yield gaussian_histogram(run, agreements)
        yield densities(run, agreements)


def _chosen(run: RunRecord, group: str | None) -> tuple[GroupPlan, Evidence] | None:
    """The group to show: the one asked for, else the one that lost most channels."""
    known = {plan.group: (plan, evidence) for _, plan, evidence in run.groups() if evidence}
    if group is not None:
        if group not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"the run has no evidence of a group {group!r}. Groups with evidence: {there}.")
        return known[group]
    return max(known.values(), key=lambda found: found[0].width - len(found[0].kept), default=None)


def retention(run: RunRecord) -> Drawn:
    """Kept and original channels of every group, and the rate."""
    plans = run.plan.groups
    figure, axes = _figure(max(4.5, 0.32 * len(plans) + 1.5), 3.4)
    places = np.arange(len(plans))
    found = amounts(plans)
    # Three heads beside hundreds of channels would not be seen: where there are both, shares are drawn.
    mixed = len(found) > 1
    full = [100.0 if mixed else p.width for p in plans]
    axes.bar(places, full, color=LIGHT, edgecolor=GREY, linewidth=0.5, label="original")
    axes.bar(
        places, [top * len(p.kept) / p.width for top, p in zip(full, plans, strict=True)], color=BLUE, label="kept"
    )
    if len(plans) <= 24:
        for place, plan, top in zip(places, plans, full, strict=True):
            text = f"{len(plan.kept)}/{plan.width}"
            axes.annotate(text, (place, top), ha="center", va="bottom", fontsize=7, xytext=(0, 1), **_offset())
    labels = [_text(p.group, 28) + " (heads)" * (p.unit == "head") for p in plans]
    axes.set_xticks(places, labels, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("kept, %" if mixed else f"{found[0][0]}s")
    if not mixed:
        rate = axes.twinx()
        rate.plot(places, [100 * len(p.kept) / p.width for p in plans], "o--", color=ORANGE, ms=3, lw=1)
        rate.set_ylim(0, 105)
        rate.set_ylabel("kept, %", color=ORANGE)
        rate.spines["right"].set_visible(True)
    words = f"{run.title}: " + ", ".join(
        f"{kept} of {total} {unit}s kept ({percent(kept / total)})" for unit, total, kept in found
    )
    words += ". " + "; ".join(f"{p.group} {len(p.kept)}/{p.width}" + " heads" * (p.unit == "head") for p in plans)
    axes.set_ylim(0, 1.18 * max(full))
    said = ", ".join(f"{kept} of {total} {unit}s" for unit, total, kept in found)
    axes.set_title(_text(f"{run.title}: {said} kept", 90), fontsize=9)
    axes.legend(frameon=False, fontsize=7, loc="upper left", ncols=2)
    return "retention", figure, words + "."


def separability_matrix(run: RunRecord, plan: GroupPlan, evidence: Evidence) -> Drawn:
    """Channels by class pairs, ordered by cluster, with the channels that stay marked."""
    figure, axes = _figure(6.4, 4.2)
    rows = row_order(plan, evidence)
    values = evidence.profiles.float()[rows].numpy()
    name, bound = METRICS.get(evidence.metric, (evidence.metric, None))
    image = axes.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=bound, interpolation="nearest")
    kept = set(plan.kept)
    marked = [place for place, channel in enumerate(rows.tolist()) if channel in kept]
    axes.plot([-0.012] * len(marked), marked, ">", color=ORANGE, ms=3, clip_on=False, transform=_beside(axes))
    axes.set_ylabel(f"{plan.unit}s, by cluster", labelpad=12)
    axes.set_xlabel(f"{values.shape[1]} of {len(evidence.pairs)} class pairs")
    axes.set_yticks([])
    _label_pairs(run, axes, evidence)
    figure.colorbar(image, ax=axes, label=name)
    axes.set_title(_text(f"{plan.group}: {len(plan.kept)} of {plan.width} {plan.unit}s kept (marked)", 80), fontsize=9)
    words = (
        f"{plan.group}: {values.shape[0]} {plan.unit}s by {values.shape[1]} of {len(evidence.pairs)} class pairs; "
        f"{name}, mean {values.mean():.3f}, largest {values.max():.3f}. {counted(len(plan.kept), plan.unit)} kept."
    )
    return "separability-matrix", figure, words


def projection_map(run: RunRecord, plan: GroupPlan, evidence: Evidence, projection: Projection = "pca") -> Drawn:
    """The space in two dimensions, coloured by weight, with clusters, medoids and representatives.

    Principal components by default: distances on the page are then (parts of) those that the clustering went by, the
    axes have a share of the spread, and nothing has to be tuned. t-SNE, as in the paper, shows who is near whom and
    nothing else: how far apart groups are, and how large, is an effect of the method.
    """
    figure, axes = _figure(5.2, 4.4)
    x, y = (evidence.coordinates.numpy() if projection == "pca" else _neighbour_map(evidence)).T
    weights = evidence.weights.numpy()
    chosen = plan.selection
    clusters, medoids = (chosen.clusters, chosen.medoids) if chosen else ((), ())
    for channel, cluster in enumerate(clusters):
        medoid = medoids[cluster]
        axes.plot([x[channel], x[medoid]], [y[channel], y[medoid]], color=GREY, lw=0.5, alpha=0.6, zorder=1)
    dots = axes.scatter(x, y, c=weights, cmap="viridis", s=22, edgecolors=GREY, linewidths=0.4, zorder=2)
    if medoids:
        inner = list(medoids)
        axes.scatter(x[inner], y[inner], marker="^", s=90, facecolors="none", edgecolors="black", lw=0.9, zorder=3)
        axes.scatter([], [], marker="^", facecolors="none", edgecolors="black", label="medoid")
    stays = list(plan.kept)
    axes.scatter(
        x[stays], y[stays], c=weights[stays], cmap="viridis", vmin=weights.min(), vmax=weights.max(), marker="D", s=34,
        edgecolors=ORANGE, linewidths=1.2, zorder=4,
    )  # fmt: skip
    axes.scatter([], [], marker="D", facecolors="none", edgecolors=ORANGE, label="kept")
    axes.set_aspect("equal", adjustable="datalim")
    if projection == "pca":
        axes.set_xlabel(f"first axis, {percent(evidence.shares[0], 0)} of the spread")
        axes.set_ylabel(f"second axis, {percent(evidence.shares[1], 0)}")
    else:
        axes.set_xlabel("t-SNE, without a unit")
    figure.colorbar(dots, ax=axes, label="weight (filter norm)")
    axes.legend(frameon=False, fontsize=7)
    axes.set_title(_text(f"{plan.group}: {len(medoids) or 'no'} clusters", 80), fontsize=9)
    how = (
        f"the two axes hold {percent(sum(evidence.shares))} of the spread"
        if projection == "pca"
        else "placed by t-SNE: neighbours are near one another, distances and axes have no meaning"
    )
    words = (
        f"{plan.group}: {plan.width} {plan.unit}s in {len(medoids) or 'no'} clusters; {how}. "
        f"Weights from {weights.min():.3g} to {weights.max():.3g}; "
        f"{sum(a in set(medoids) for a in stays)} of {len(stays)} kept {plan.unit}s are medoids."
    )
    return "projection", figure, words


def _neighbour_map(evidence: Evidence) -> np.ndarray:
    """t-SNE of the recorded profiles, (channels, 2), the same every time; what is left to do without scikit-learn."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ConfigError('the projection "tsne" needs scikit-learn: pip install "cosep[figures]".') from error
    profiles = evidence.profiles.double().numpy()
    if len(profiles) < 4:
        raise ConfigError(f"t-SNE needs four channels or more; {evidence.group} has {len(profiles)}. Use pca.")
    perplexity = min(30.0, (len(profiles) - 1) / 3)  # its default, and as many neighbours as a small layer has
    spread = float(profiles.std())
    if spread == 0:
        return np.zeros((len(profiles), 2))
    found = TSNE(perplexity=perplexity, init="pca", method="exact", random_state=0).fit_transform(profiles / spread)
    return np.asarray(found)


def gaussian_histogram(run: RunRecord, agreements: Sequence[Agreement]) -> Drawn:
    """Scores of every channel under both readings, and the overlap of what is kept."""
    figure = _blank(7.4, 3.4)
    left, right = figure.subplots(1, 2)
    parts = thirds(agreements)
    both = ([v for a in agreements for v in a.gaussian], [v for a in agreements for v in a.histogram])
    rho = spearman(*both)
    for name, part in parts.items():
        xs, ys = [v for a in part for v in a.gaussian], [v for a in part for v in a.histogram]
        left.plot(xs, ys, ".", ms=4, color=PARTS[name], alpha=0.7, label=f"{name} (ρ = {spearman(xs, ys):.2f})")
    top = max(max(both[0]), max(both[1]))
    left.plot([0, top], [0, top], "--", color=GREY, lw=1)
    left.set_xlabel("mean JM, Gaussian")
    left.set_ylabel("mean JM, histogram")
    left.set_title(f"Spearman ρ = {rho:.3f}", fontsize=9)
    left.legend(frameon=False, fontsize=7)
    overlaps = {name: jaccard(a.overlap for a in part) for name, part in {**parts, "all": agreements}.items()}
    bars = right.bar(
        list(overlaps), [100 * v for v in overlaps.values()], color=[PARTS.get(name, GREY) for name in overlaps]
    )
    right.bar_label(bars, fmt="%.1f", fontsize=8)
    right.set_ylim(0, 110)
    right.set_ylabel("kept by both, % of kept by either")
    right.set_title("Jaccard overlap of what is kept", fontsize=9)
    figure.tight_layout()
    of = in_all([(a.unit, len(a.gaussian)) for a in agreements])
    words = f"{run.title}, unpruned network: Spearman {rho:.3f} over {of}; Jaccard " + ", ".join(
        f"{name} {percent(value)}" for name, value in overlaps.items()
    )
    return "gaussian-histogram", figure, words + "."


def densities(run: RunRecord, agreements: Sequence[Agreement]) -> Drawn:
    """Two classes of an early, a middle and a late channel: what was counted, and the Gaussians."""
    last = len(agreements) - 1
    shown = [agreements[place] for place in dict.fromkeys((0, last // 2, last))]
    figure = _blank(3.1 * len(shown) + 0.4, 3.1)
    said = []
    for panel, agreement in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        density = agreement.density
        names = [run.class_name(label) for label in density.classes]
        _draw_density(panel, density, names)
        what = "first value of head" if agreement.unit == "head" else "channel"
        panel.set_title(_text(f"{agreement.group}, {what} {density.channel}", 40), fontsize=8)
        said.append(
            f"{agreement.group}, {what} {density.channel}, {names[0]} against {names[1]}: JM {density.gaussian:.3f} "
            f"from Gaussians, {density.histogram:.3f} from histograms"
        )
    figure.tight_layout()
    return "densities", figure, "; ".join(said) + "."


def _draw_density(panel: Axes, density: Density, names: Sequence[str]) -> None:
    edges = np.linspace(density.low, density.high, len(density.counts[0]) + 1)
    width = edges[1] - edges[0]
    grid = np.linspace(density.low, density.high, 300)
    for side, color in enumerate((BLUE, ORANGE)):
        counts = np.asarray(density.counts[side], dtype=float)
        panel.bar(edges[:-1], counts / max(counts.sum() * width, 1e-300), width, align="edge", color=color, alpha=0.3)
        mean, deviation = density.mean[side], density.deviation[side]
        if deviation > 0:
            bell = np.exp(-(((grid - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
            panel.plot(grid, bell, color=color, lw=1.4, label=_text(names[side], 20))
    panel.set_ylim(0, 1.3 * panel.get_ylim()[1])  # room for the words
    panel.set_xlabel("activation")
    panel.set_ylabel("density")
    panel.annotate(
        f"JM {density.gaussian:.2f} Gaussian\nJM {density.histogram:.2f} histogram",
        (0.02, 0.98), xycoords="axes fraction", va="top", fontsize=7,
    )  # fmt: skip
    panel.legend(frameon=False, fontsize=7, loc="upper right")


def accuracy_against_m(runs: Sequence[RunRecord]) -> Drawn | None:
    """Accuracy and the number of class pairs against M, from runs that differ in it."""
    document = comparison_document(runs)
    found = [(c["max_classes"], c["spread"]["after"]) for c in document["configurations"] if c["max_classes"]]
    found = sorted(((m, s) for m, s in found if s["mean"] is not None), key=lambda each: each[0])
    if len({m for m, _ in found}) < 2:
        return None
    figure, axes = _figure(4.8, 3.4)
    ms = [m for m, _ in found]
    axes.errorbar(
        ms, [100 * s["mean"] for _, s in found], [100 * (s["sd"] or 0) for _, s in found], fmt="o", color=BLUE,
        capsize=3, lw=1.2, ms=4,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(ms, [str(m) for m in ms], minor=False)
    axes.set_xlabel("M, classes that span the space")
    axes.set_ylabel(f"{document['accuracy']}, %", color=BLUE)
    pairs = axes.twinx()
    pairs.plot(ms, [m * (m - 1) // 2 for m in ms], "s--", color=ORANGE, ms=3, lw=1)
    pairs.set_yscale("log")
    pairs.set_ylabel("class pairs", color=ORANGE)
    pairs.spines["right"].set_visible(True)
    words = "; ".join(
        f"M = {m}: {percent(s['mean'], 2)}" + (f" ± {percent(s['sd'], 2)}" if s["sd"] else "") + f" ({s['n']} runs)"
        for m, s in found
    )
    return "accuracy-against-m", figure, words + "."


def accuracy_against_macs(runs: Sequence[RunRecord]) -> Drawn | None:
    """Accuracy against the share of the multiply-accumulates that is left."""
    document = comparison_document(runs)
    rows = [row for row in document["runs"] if row["after"] is not None and row["macs"] is not None]
    if not rows:
        return None
    figure, axes = _figure(5.2, 3.6)
    for number, configuration in enumerate(document["configurations"]):
        mine = [row for row in rows if row["configuration"] == number]
        label = _text(configuration["label"], 30)
        axes.plot([100 * r["macs"] for r in mine], [100 * r["after"] for r in mine], "os^D"[number % 4], label=label)
    axes.set_xlabel("MACs left, %")
    axes.set_ylabel(f"{document['accuracy']}, %")
    axes.legend(frameon=False, fontsize=7)
    words = "; ".join(
        f"{row['name']}: {percent(row['after'], 2)} with {percent(row['macs'])} of the MACs" for row in rows
    )
    return "accuracy-against-macs", figure, words + "."


def among_published(runs: Sequence[RunRecord]) -> Drawn | None:
    """Runs among the methods that the paper's tables list for the same network; None where there are none."""
    tables = {published(str(run.about.get("model") or ""), str(run.about.get("data") or "")) for run in runs}
    if len(tables) != 1 or not (rows := tables.pop()):
        return None
    ours = [
        (run.name, 100 * run.report.change.macs, 100 * run.report.change.accuracy)
        for run in runs
        if run.report.change.accuracy is not None and run.report.change.macs is not None
    ]
    if not ours:
        return None
    figure, axes = _figure(6.2, 4.2)
    for row in rows:
        own = row.method == "CoSeP"
        axes.plot(
            100 / row.speedup, row.pruned - row.base, "s" if own else "o" if row.automatic else "x", ms=5,
            color=ORANGE if own else GREY,
        )  # fmt: skip
        name = f"{row.method} (the paper)" if own else row.method
        place = (100 / row.speedup, row.pruned - row.base)
        axes.annotate(_text(name, 24), place, fontsize=6, xytext=(3, 2), **_offset())
    for name, left, gain in ours:
        axes.plot(left, gain, "*", color=BLUE, ms=11)
        axes.annotate(_text(name, 24), (left, gain), fontsize=7, color=BLUE, xytext=(4, 3), **_offset())
    for mark, label in (("*", "these runs"), ("o", "published, ratios found by the method"), ("x", "published, given")):
        axes.plot([], [], mark, color=BLUE if mark == "*" else GREY, label=label)
    axes.axhline(0, color=LIGHT, lw=1, zorder=0)
    axes.set_xlabel("MACs (FLOPs) left, %")
    axes.set_ylabel("change of the top-1 accuracy, points")
    axes.legend(frameon=False, fontsize=7)
    axes.set_title(_text(f"{runs[0].title}, and what others published", 80), fontsize=9)
    said = [f"{name}: {gain:+.2f} points at {left:.1f} % of the MACs" for name, left, gain in ours]
    said += [f"{r.method}: {r.pruned - r.base:+.2f} at {100 / r.speedup:.1f} %" for r in rows]
    words = "; ".join(said) + ". The published figures stand in the paper's tables; base networks and training differ."
    return "among-published", figure, words


def _label_pairs(run: RunRecord, axes: Axes, evidence: Evidence) -> None:
    if len(evidence.columns) > 60:
        axes.set_xticks([])
        return
    pairs = [evidence.pairs[column] for column in evidence.columns.tolist()]
    names = [_text(f"{run.class_name(a)}–{run.class_name(b)}", 18) for a, b in pairs]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=5)


def _text(text: str, most: int) -> str:
    """A user's words for matplotlib: cut to a length, one line, and no formula where a `$` occurs."""
    line = " ".join(text.split())
    return (line if len(line) <= most else line[: most - 1] + "…").replace("$", r"\$")


def _blank(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _blank(width, height)
    return figure, figure.subplots()


def _offset() -> dict[str, Any]:
    return {"textcoords": "offset points"}


def _beside(axes: Axes) -> Any:
    from matplotlib.transforms import blended_transform_factory

    return blended_transform_factory(axes.transAxes, axes.transData)


@contextmanager
def _styled() -> Iterator[None]:
    """Our style, for our figures only; without matplotlib, what to do."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError('figures need matplotlib: pip install "cosep[figures]".') from error
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script that the font lacks
        yield
