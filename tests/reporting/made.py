"""Runs made by hand: what their pages must say is known beforehand."""

import math
from dataclasses import replace

import torch

from cosep.records import GroupPlan, LayerFigures, LayerRebuild, Plan, RebuildRecord, Selection, Tried
from cosep.reporting import Evidence, Report, RunRecord


def record(groups=3, channels=8, classes=4, name="run", class_names=None, group_names=None, **report):
    """A run made by hand: every group keeps half of its channels, channel 2c and 2c + 1 being cluster c."""
    plans, entries, evidence = [], [], {}
    half = channels // 2
    pairs = classes * (classes - 1) // 2
    generator = torch.Generator().manual_seed(0)
    candidates = tuple(range(2, channels))
    for index in range(groups):
        group = (group_names or {}).get(index, f"layer{index}.conv1")
        kept = tuple(range(0, channels, 2))
        selection = Selection(
            channels, kept, "knee", half, candidates, tuple(1 - 1 / k for k in candidates),
            tuple(0.9 - 1 / k for k in candidates), tuple(1 / k for k in candidates),
            tuple(c // 2 for c in range(channels)), tuple(range(1, channels, 2)), kept,
        )  # fmt: skip
        plans.append(GroupPlan(group, channels, kept, "knee", selection))
        entries.append({
            "group": group, "width": channels, "kept": half, "reason": "knee", "notes": [], "masked_difference": 0.0,
            "accuracy": 0.9 - index / 1000, "macs": 1000 - index, "parameters": 900 - index,
        })  # fmt: skip
        shown = min(pairs, 300)
        profiles = 2 * torch.rand(channels, shown, generator=generator)
        evidence[index] = Evidence(
            group, "jm", tuple(range(classes)), classes, (0.5, 0.25), torch.rand(channels, generator=generator),
            profiles.mean(dim=1), torch.randn(channels, 2, generator=generator), torch.arange(shown).int(),
            profiles.half(), torch.ones(pairs).int(), torch.full((pairs,), 1.5),
            torch.zeros(pairs).int(), torch.full((pairs,), 1.25),
        )  # fmt: skip
    latency = {
        "median_ms": 2.0, "p10_ms": 1.9, "p90_ms": 2.2, "batch": 1, "threads": 1, "repeats": 30, "device": "cpu",
        "throughput": 500.0, "speedup": 1.0, "speedup_p10": 0.9, "speedup_p90": 1.1, "memory_format": "contiguous",
        "runtime": "torch",
    }  # fmt: skip
    facts = {
        "format": 2,
        "settings": {"seed": 0, "select": {"degree": 3, "representative": "weighted"}, "profile": {"max_classes": 100}},
        "before": {"accuracy": 0.92, "macs": 2000, "parameters": 1000, "bytes": 4000, "latency": latency},
        "after": {"accuracy": 0.91, "macs": 1000, "parameters": 500, "bytes": 2000, "latency": latency},
        "holdout_accuracy": {"before": 0.93, "after": 0.9},
        "groups": entries,
        "not_pruned": [{"group": "fc", "width": 10, "why": "the classifier"}],
        "recovery": {"updates": 400, "outcome": "done", "losses": [1.0, 0.5, 0.25], "accuracy": 0.9},
        "limits": [],
        "seconds": {"observe": 1.0, "recover": 3.0},
    }
    about = {"model": "net", "data": "data", "classes": classes, "class_names": list(class_names or ())}
    return RunRecord(name, Plan(tuple(plans)), Report.from_document({**facts, **report}), about, evidence)


def without_evidence(run):
    return replace(run, evidence={})


def rebuilt_run():
    """A run that was rebuilt after a search for the amount."""
    layers = (
        LayerRebuild("conv2", "sum", True, "re-solved", 0.5, 0.125, rows=640, columns=9),
        LayerRebuild("fc", "output", True, "re-solved", 0.25, 0.125, rows=640, columns=4),
        LayerRebuild("up", "output", False, "it is a ConvTranspose2d", math.nan, math.nan),
    )
    run = record(groups=2)
    report = replace(
        run.report,
        rebuild=RebuildRecord(layers, divergence=0.25, divergence_cut=2.0, notes=("a note",)),
        damage={"layer0.conv1": 0.1, "layer1.conv1": 0.75, "elsewhere": 1.0},
        tried=(Tried(0.575, 0.5), Tried(0.3625, 4.0), Tried(0.46875, 1.5)),
    )
    return replace(run, report=report)


def networked_run():
    """A run of a stem, a residual block whose first layer was halved, and a classifier."""
    tied, own = "tied by an addition", ("layer0.conv1",)
    layers = (
        LayerFigures("stem", "Conv2d", (-1,), (3, 3), (8, 8), (300, 300), (0.25, 0.25), ("stem",), tied),
        LayerFigures(own[0], "Conv2d", (0,), (8, 8), (8, 4), (800, 400), (0.5, 0.25), own, "knee"),
        LayerFigures("conv2", "Conv2d", (1,), (8, 4), (8, 8), (800, 400), (0.5, 0.375), ("stem",), tied),
        LayerFigures("", "sum", (0, 2)),
        LayerFigures("fc", "Linear", (3,), (8, 8), (4, 4), (32, 32), (0.125, 0.125), (), "the classifier"),
    )  # fmt: skip
    run = record(groups=2)
    return replace(run, plan=replace(run.plan, input=(3, 8, 8)), report=replace(run.report, layers=layers))
