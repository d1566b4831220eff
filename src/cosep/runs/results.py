"""The end of a run: the figures of both networks, the plan, the report, and the artifact in a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cosep.config import settings
from cosep.errors import ExportError
from cosep.measurement import layer_figures, made_now, measure, score
from cosep.models.modes import laid_out_like
from cosep.records import Cost, Group, LayerFigures, Measurement, Outcome, Plan, Selection
from cosep.reporting.folders import draw_page
from cosep.reporting.records import HeldOut, NotPruned, Report, Step
from cosep.reporting.summary import html_summary, short_summary, whole_summary
from cosep.reporting.words import steps_in_words
from cosep.runs.folder import Run, weights_digest
from cosep.runs.later import present_report
from cosep.runs.opening import Opening
from cosep.runs.probing import timed_anyhow
from cosep.runs.recovering import accuracy_after, length_in_words
from cosep.runs.state import Batches, Job, State
from cosep.storage.artifacts import is_saved, load, read_documents, save
from cosep.storage.export import ExportCheck, export_onnx
from cosep.storage.folder import settle
from cosep.surgery import MaskedCheck, fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class PruneResult:
    """A smaller network, what was cut and why, and the figures."""

    model: nn.Module
    plan: Plan
    report: Report

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | Callable[[], nn.Module]) -> PruneResult:
        """A result that was saved, from the uncut model or its constructor, as `cosep.load`; it can be pruned again."""
        plan, document = read_documents(folder)
        return cls(load(folder, model), plan, Report.from_document(document, f"{folder}/report.json"))

    def summary(self) -> str:
        """The figures, what became of every group, how the limits fare, and what must not be overlooked."""
        return whole_summary(self.report)

    def __repr__(self) -> str:
        return short_summary(self.report)

    def _repr_html_(self) -> str:
        return html_summary(self.report)

    def export_onnx(
        self, path: str | Path, example_input: Tensor | None = None, *, opset: int | None = None
    ) -> ExportCheck:
        """Write the network as an ONNX file whose numbers are checked; by default for inputs as it was pruned with."""
        if example_input is None:
            if not self.plan.input:
                raise ExportError("the plan does not say what shape an input has. Give example_input.")
            example_input = torch.zeros(1, *self.plan.input)
        return export_onnx(self.model, path, example_input, opset=opset)

    def save(self, folder: str | Path, *, evaluate: Batches | None = None) -> Path:
        """Write the network, the plan and the report; `cosep.load` reads them back.

        Where the network was changed since, by training it on, the report says that its accuracies are older ones; the
        test accuracy is measured again on `evaluate`, if given.
        """
        return save(folder, self.model, self.plan, present_report(self.model, self.report, evaluate))


def outcome_of(group: Group, selection: Selection, check: MaskedCheck | None) -> Outcome:
    """What became of a group, before the network's figures are measured."""
    return Outcome(
        group=group.name,
        width=group.width,
        kept=len(selection.kept),
        reason=selection.reason,
        notes=selection.notes,
        masked_difference=check.max_difference if check else None,
        unit=group.unit,
    )


def report_of(job: Job, state: State, before: Measurement, after: Measurement) -> Report:
    """The report of a finished run."""
    return Report(
        settings=settings(job.config),
        before=before,
        after=after,
        holdout_accuracy=HeldOut(job.before["holdout_accuracy"], accuracy_after(job, state)),
        groups=state.outcomes,
        not_pruned=tuple(NotPruned(g.name, g.width, g.why_not, g.unit) for g in job.skipped),
        recovery=state.final,
        limits=state.limit_notes,
        seconds={stage: round(seconds, 3) for stage, seconds in job.clock.seconds.items()},
        made=made_now(job.fabric.device),
        notes=(*job.notes, *length_in_words(job, state)),
        rebuild=state.rebuild,
        damage=dict(state.damage),
        tried=state.tried,
    )


def layers_of(job: Job, state: State) -> tuple[LayerFigures, ...]:
    """What each layer costs before and after, and why its outputs are as many as they are."""
    reasons = {outcome.group: outcome.why for outcome in state.outcomes}
    reasons |= {group.name: group.why_not for group in job.skipped}
    holding: dict[str, list[str]] = {}
    for group in (*job.groups, *job.skipped):
        for name in dict.fromkeys(piece.module for piece in group.slices if piece.side == "out"):
            holding.setdefault(name, []).append(group.name)
    found = []
    for each in layer_figures(job.original, state.model, job.example):
        groups = tuple(holding.get(each.layer, ()))
        why = "; ".join(dict.fromkeys(reasons[name] for name in groups if reasons.get(name)))
        found.append(replace(each, groups=groups, why=why))
    return tuple(found)


def finished_run(job: Job, state: State, opening: Opening) -> PruneResult:
    """The figures of both networks, the plan and, in a run folder, the artifact."""
    model, evaluate, earlier = opening.model, opening.request.evaluate, opening.request.earlier
    known = {key: value for key, value in job.before.items() if key != "holdout_accuracy"}
    with job.stage("measure"):
        if evaluate is not None:
            scored = score(job.original, evaluate)
            known |= {"accuracy": scored.accuracy, "by_class": scored.by_class}
        after = measure(state.model, job.example, evaluate)
        models = {"before": job.original, "after": state.model}
        times, untimed = timed_anyhow(models, job.example, job.config.limits.runtime)
        layers = layers_of(job, state)
    before = replace(Measurement.from_document(known), latency=times["before"])
    after = replace(after, latency=times["after"])
    report = report_of(job, state, before, after)
    report = replace(report, layers=layers, notes=(*report.notes, *untimed))
    if earlier is not None:
        steps = (*earlier.report.earlier, Step.of(earlier.report))
        report = replace(report, earlier=steps, notes=(*report.notes, *steps_in_words(steps, after)))
    plan = Plan(
        state.plans,
        state.layout,
        fingerprint(model),
        input=tuple(job.example.shape[1:]),
        cost=Cost(before.macs, after.macs, before.parameters, after.parameters),
        notes=state.limit_notes,
        earlier=() if earlier is None else tuple(replace(step, candidates={}) for step in earlier.plan.steps),
    )
    pruned = laid_out_like(state.model.to(next(model.parameters()).device), model)
    report = replace(report, weights_sha256=weights_digest(pruned))
    result = PruneResult(pruned, plan, report)
    if job.run:
        # Logged before, so that the manifest can vouch for the log; if saving fails, the next start takes it back.
        # Overwriting, for a run that was killed while it saved may have left a part of the same artifact.
        job.run.log("finished", seconds=dict(report.seconds))
        save(job.run.folder, result.model, plan, report, beside=job.run.seals(), overwrite=True)
        tidied(job.run)
    job.fabric.barrier()
    return result


def result_there(opening: Opening) -> PruneResult | None:
    """The result of a run that finished before, read from its folder; None where there is none."""
    folder = opening.folder
    if not opening.fabric.broadcast(folder is not None and is_saved(folder.folder)):
        return None
    run = opening.request.run
    assert run is not None
    plan, document = read_documents(run)
    report = Report.from_document(document, f"{run}/report.json")
    result = PruneResult(load(run, opening.model), plan, report)
    opening.fabric.barrier()  # tidying moves files, so every process must have read them
    if folder:
        tidied(folder)  # it may have been killed before it did
    return result


def tidied(run: Run) -> None:
    """Leave a run folder whose result is saved as every finished one: with its page, and nothing else left over."""
    settle(run.folder)
    draw_page(run.folder)
    run.drop_checkpoint()
