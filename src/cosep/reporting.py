"""Run folder -> records -> page: where the stages and the report meet.

evidence/0.safetensors, 1 ...   what the page shows of each group beyond its plan; written before its checkpoint
report.html                     the page; drawn from the folder's files alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cosep.config import Metric
from cosep.errors import ArtifactError, RunError
from cosep.profile import profiles
from cosep.records import ClassHistograms, ClassMoments, Selection, Space
from cosep.report.evidence import MOST_CLASSES, Evidence, collect_evidence, evidence_from_bytes, evidence_to_bytes
from cosep.report.run import RunRecord
from cosep.runs import read_description, write_atomically
from cosep.saving import read_documents

EVIDENCE, PAGE = "evidence", "report.html"


def write_evidence(
    folder: Path,
    index: int,
    group: str,
    moments: Sequence[ClassMoments],
    histograms: Sequence[ClassHistograms] | None,
    space: Space,
    weights: Tensor,
    selection: Selection,
) -> None:
    """Keep what the page shows of a group, whose place in the plan is `index`, in a run folder."""
    evidence = evidence_of(group, moments, histograms, space, weights, selection)
    (folder / EVIDENCE).mkdir(exist_ok=True)
    write_atomically(folder / EVIDENCE / f"{index}.safetensors", evidence_to_bytes(evidence))


def evidence_of(
    group: str,
    moments: Sequence[ClassMoments],
    histograms: Sequence[ClassHistograms] | None,
    space: Space,
    weights: Tensor,
    selection: Selection,
) -> Evidence:
    """The evidence of a group; channels with several producers show the mean of their profiles."""
    classes = space.classes[:MOST_CLASSES]
    metric: Metric = space.metric  # type: ignore[assignment]
    binned: Sequence[ClassHistograms | None] = histograms or [None] * len(moments)

    def profile_of(part: Tensor) -> Tensor:
        found = [
            profiles(
                m.of_channels(part), classes, metric, histograms=None if bins is None else bins.of_channels(part)
            ).cpu()
            for m, bins in zip(moments, binned, strict=True)
        ]
        return torch.stack(found).mean(dim=0)

    return collect_evidence(group, space, weights, selection.kept, classes, profile_of)


def read_run(folder: str | Path) -> RunRecord:
    """The records of a finished run, or of a saved result without a run around it."""
    folder = Path(folder)
    if (folder / "checkpoint.safetensors").exists() and not (folder / "manifest.json").exists():
        raise RunError(f"the run in {folder} is not finished. Give the command that began it again; it goes on.")
    plan, report = read_documents(folder)
    about = read_description(folder).get("about", {}) if (folder / "config.toml").exists() else {}
    evidence = {}
    for index in range(len(plan.groups)):
        path = folder / EVIDENCE / f"{index}.safetensors"
        if path.is_file():
            found = evidence_from_bytes(path.read_bytes(), str(path))
            if found.group != plan.groups[index].group or len(found.weights) != plan.groups[index].width:
                raise ArtifactError(
                    f"{path} is of {found.group}, and group {index} of the plan is {plan.groups[index].group}. "
                    f"Remove {path.parent} to draw the page without it."
                )
            evidence[index] = found
    return RunRecord(folder.resolve().name, plan, report, about, evidence)


def draw_page(folder: str | Path) -> Path:
    """Draw a run's report.html from its saved records, and return its path."""
    from cosep.report.page import run_page

    folder = Path(folder)
    write_atomically(folder / PAGE, run_page(read_run(folder)).encode())
    return folder / PAGE


def draw_comparison(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Draw a page that compares finished runs, and return its path."""
    from cosep.report.comparison import comparison_page

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, comparison_page(read_runs(folders)).encode())
    return path


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """The records of several runs; folders of the same name are told apart by those around them."""
    paths = [Path(folder).resolve() for folder in folders]
    runs = [read_run(path) for path in paths]
    names = [path.name for path in paths]
    return [
        replace(run, name=f"{path.parent.name}/{path.name}") if names.count(path.name) > 1 else run
        for run, path in zip(runs, paths, strict=True)
    ]
