"""Run folder -> records -> page: where the stages and the report meet.

evidence/0.safetensors, 1 ...   what the page shows of each group beyond its plan; written before its checkpoint
report.html                     the page; drawn from the folder's files alone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.config import Metric, PruneConfig
from cosep.data.batches import inputs_and_labels
from cosep.errors import ArtifactError, RunError
from cosep.groups import find_groups
from cosep.groups.numbering import channel_norms, output_columns
from cosep.observation import observe, observe_histograms
from cosep.profiles import profiles, separability_space
from cosep.records import ClassHistograms, ClassMoments, Group, Selection, Space
from cosep.reporting.agreement import Agreement, Density
from cosep.reporting.evidence import MOST_CLASSES, Evidence, collect_evidence, evidence_from_bytes, evidence_to_bytes
from cosep.reporting.records import Report
from cosep.reporting.run import RunRecord, check_groups
from cosep.runs.folder import EVIDENCE, PAGE, Run, failing_as_ours, read_description, refuse_links, write_atomically
from cosep.selection import select
from cosep.storage.artifacts import is_saved, read_documents
from cosep.surgery import copied

HISTOGRAM_BYTES = 2**28  # that are in memory at once
EVIDENCE_LIMIT = 2**28  # bytes; that of the widest layer we know has two million


def write_evidence(
    run: Run,
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
    run.write(f"{EVIDENCE}/{index}.safetensors", evidence_to_bytes(evidence))


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
    if (folder / "checkpoint.safetensors").exists() and not is_saved(folder):
        raise RunError(f"the run in {folder} is not finished. Give the command that began it again; it goes on.")
    refuse_links(folder)
    plan, document = read_documents(folder)
    report = Report.from_document(document, str(folder / "report.json"))
    if wrong := check_groups(report, plan):
        raise ArtifactError(f"{folder / 'report.json'} is no report of a run: {wrong}. Was it saved without one?")
    about = read_description(folder).get("about", {}) if (folder / "config.toml").exists() else {}
    evidence = {}
    for index in range(len(plan.groups)):
        path = folder / EVIDENCE / f"{index}.safetensors"
        if path.is_file():
            if path.stat().st_size > EVIDENCE_LIMIT:
                raise ArtifactError(f"{path} has more than {EVIDENCE_LIMIT:,} bytes; it is no evidence of ours.")
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
    return write_page([read_run(folder)], Path(folder) / PAGE)


def write_page(runs: Sequence[RunRecord], path: Path) -> Path:
    """Write the page of one run, or one that compares several."""
    from cosep.reporting.comparison import comparison_page
    from cosep.reporting.page import run_page

    page = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Choose another place for the page.") from error
    return path


def draw_comparison(folder: str | Path) -> Path:
    """Draw the page of a folder of `cosep compare` from its trials and runs, and return its path."""
    from cosep.comparison.trials import folder_of, read_trials
    from cosep.reporting.comparison import trials_page

    folder = Path(folder)
    trials, unpruned = read_trials(folder)
    runs = [read_run(folder / f"{folder_of(trial.method)}-{trial.seed}") for trial in trials]
    path = folder / PAGE
    with failing_as_ours(path):
        write_atomically(path, trials_page(runs, trials, unpruned).encode())
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


def agreements_of(
    model: nn.Module, calibration: Iterable[Any], config: PruneConfig, groups: Sequence[str], *, device: str = "cpu"
) -> list[Agreement]:
    """The named groups of an unpruned network under Gaussian and histogram JM, all other settings those of `config`.

    Needs two passes over `observe.images` calibration images; with many classes, two for every few groups.
    """
    inputs, _ = inputs_and_labels(next(iter(calibration)), "the first batch of the calibration loader")
    model = copied(model).to(device).eval()
    example = inputs[:1].to(device)
    with torch.no_grad():
        classes = model(example).shape[1]
    wanted = set(groups)
    found = [group for group in find_groups(model, example) if group.name in wanted]
    result: list[Agreement] = []
    for part in _affordable(found, classes, config.observe.bins):
        layers = [producer for group in part for producer in group.producers]
        images = config.observe.images_for(classes) or None
        seen: dict[str, Any] = {"config": config.observe, "device": device, "max_images": images}
        moments = observe(model, calibration, layers, classes=classes, **seen)
        histograms = observe_histograms(model, calibration, layers, moments, **seen)
        result += [_agreement(model, group, moments, histograms, config) for group in part]
    return result


def _agreement(
    model: nn.Module,
    group: Group,
    moments: Mapping[str, ClassMoments],
    histograms: Mapping[str, ClassHistograms],
    config: PruneConfig,
) -> Agreement:
    columns = [(p, column) for p in group.producers for column in output_columns(group, p, {})]
    parts = [moments[p].of_channels(column) for p, column in columns]
    binned = [histograms[p].of_channels(column) for p, column in columns]
    weights = channel_norms(model, group, {})
    spaces = {
        metric: separability_space(parts, replace(config.profile, metric=metric), histograms=binned)
        for metric in ("jm", "jm-histogram")
    }
    kept = {
        metric: select(space, weights=weights, config=config.select, seed=config.seed).kept
        for metric, space in spaces.items()
    }
    return Agreement(
        group=group.name,
        gaussian=tuple(spaces["jm"].separability.tolist()),
        histogram=tuple(spaces["jm-histogram"].separability.tolist()),
        kept_gaussian=kept["jm"],
        kept_histogram=kept["jm-histogram"],
        density=_density(spaces["jm"], parts[0], binned[0]),
        unit=group.unit,
    )


def _density(space: Space, moments: ClassMoments, histograms: ClassHistograms) -> Density:
    """The channel of the highest mean separability, in the pair of classes that it separates about as well as that."""
    channel = int(space.separability.argmax())
    index = torch.tensor([channel])
    own, counted = moments.of_channels(index), histograms.of_channels(index)
    scores = profiles(own, space.classes)[0]
    pair = int((scores - scores.mean()).abs().argmin())
    binned = profiles(own, space.classes, "jm-histogram", histograms=counted)[0]
    first, second = torch.triu_indices(len(space.classes), len(space.classes), offset=1)[:, pair].tolist()
    a, b = space.classes[first], space.classes[second]
    return Density(
        channel=channel,
        classes=(a, b),
        low=float(counted.low),
        high=float(counted.high),
        counts=(tuple(counted.count[a, 0].tolist()), tuple(counted.count[b, 0].tolist())),
        mean=(float(own.mean[a, 0]), float(own.mean[b, 0])),
        deviation=(float(own.variance[a, 0].sqrt()), float(own.variance[b, 0].sqrt())),
        gaussian=float(scores[pair]),
        histogram=float(binned[pair]),
    )


def _affordable(groups: Sequence[Group], classes: int, bins: int) -> Iterator[list[Group]]:
    """Groups in their order, together while their histograms need less than a quarter of a gigabyte."""
    part: list[Group] = []
    size = 0
    for group in groups:
        need = 8 * classes * bins * group.width * len(group.producers)
        if part and size + need > HISTOGRAM_BYTES:
            yield part
            part, size = [], 0
        part.append(group)
        size += need
    if part:
        yield part
