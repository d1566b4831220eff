"""A cut model kept in a folder, and made again from the constructor of the uncut one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from cosep.errors import ArtifactError, ModelError, PlanError
from cosep.models.acceptance import unwrapped
from cosep.records import Plan, Side
from cosep.storage.files import Seal
from cosep.storage.folder import MANIFEST, READY, Artifact, check_beside, read_artifact, write_artifact
from cosep.storage.tensors import load_weights


@runtime_checkable
class Documented(Protocol):
    """A record with a form of plain values."""

    def to_document(self) -> dict[str, Any]:
        """The plain values."""


SHOWN = 5  # differences that an error lists


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    plan: Plan,
    report: Documented | Mapping[str, Any] | None = None,
    *,
    beside: Mapping[str, Seal] | None = None,
    overwrite: bool = False,
) -> Path:
    """Keep a cut model, its plan and a report, `Report` or plain values, in a folder; all or nothing, no pickle.

    beside: the seals of other files in the folder, which `read_documents` will check too.
    """
    from cosep.surgery.plan import plan_to_document

    return write_artifact(
        folder,
        weights=model.state_dict(),
        plan=plan_to_document(plan),
        report=report.to_document() if isinstance(report, Documented) else report or {},
        beside=beside,
        overwrite=overwrite,
    )


def load(folder: str | os.PathLike[str], model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """The cut model that was saved, from the uncut model's constructor (called without arguments) or an instance of it.

    An instance is copied, not changed. Training mode, device and `requires_grad` are those of the uncut model.
    """
    artifact = read_artifact(folder)
    return rebuild(artifact, model)


def read_documents(folder: str | os.PathLike[str]) -> tuple[Plan, dict[str, Any]]:
    """The plan and the report that were saved, after checking every file of the artifact and those sealed beside it."""
    artifact = read_artifact(folder)
    check_beside(artifact)
    return _plan_of(artifact), artifact.report


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """Whether a whole artifact was written here, though a crash may have kept it from its final place; not checked."""
    return any((Path(folder) / place / MANIFEST).is_file() for place in ("", READY))


def rebuild(artifact: Artifact, model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """As `load`, from an artifact that was already read."""
    from cosep.surgery.cut import apply_layout
    from cosep.surgery.plan import steps_for

    plan = _plan_of(artifact)
    weights = artifact.weights()
    uncut = model if isinstance(model, nn.Module) else model()
    if not isinstance(uncut, nn.Module):
        raise ModelError(
            f"the factory returned a {type(uncut).__name__}; an nn.Module is needed. Pass the model's constructor, or "
            "a function without arguments that builds it."
        )
    uncut = unwrapped(uncut)
    steps = steps_for(plan, uncut)
    if steps is None:
        differences = _differences(uncut.state_dict(), weights, plan)
        raise ArtifactError(
            f"{artifact.folder} was made from another architecture than this {type(uncut).__name__}: "
            f"{_listed(differences) or 'cut layers have another width.'} Pass the constructor it was made with."
        )
    try:
        cut = uncut
        for step in steps:
            cut = apply_layout(cut, step.layout)  # a copy: an instance of the caller's stays as it is
    except PlanError as error:
        raise ArtifactError(f"the plan in {artifact.folder} does not fit its own model: {error}") from error
    differences = _differences(cut.state_dict(), weights, Plan())
    if differences:
        raise ArtifactError(f"the weights in {artifact.folder} do not fit its plan: {_listed(differences)}")
    return _filled(cut, weights)


def _plan_of(artifact: Artifact) -> Plan:
    from cosep.surgery.plan import plan_from_document

    try:
        return plan_from_document(artifact.plan)
    except PlanError as error:
        raise ArtifactError(f"the plan in {artifact.folder} cannot be used: {error}") from error


def _filled(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with these values, in their own precision, in its own tensors: shared ones stay shared."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.dtype != weights[name].dtype:
            tensor.data = tensor.data.to(weights[name].dtype)
    with torch.no_grad():
        load_weights(model, weights)
    return model


def _differences(state: Mapping[str, Any], weights: Mapping[str, Tensor], plan: Plan) -> list[str]:
    """Where a model's tensors and saved ones differ by name or shape, in words, but for what the plan cut."""
    found = [f"{name} {_shape(state[name])} is not in the artifact" for name in state if name not in weights]
    found += [
        f"the artifact's {name} {_shape(weights[name])} is not in the model" for name in weights if name not in state
    ]
    for name, tensor in state.items():
        if name in weights and isinstance(tensor, Tensor) and not _could_become(tensor, weights[name], name, plan):
            found.append(f"{name} is {_shape(tensor)} in the model and {_shape(weights[name])} in the artifact")
        elif (
            name in weights
            and isinstance(tensor, Tensor)
            and tensor.is_floating_point() != weights[name].is_floating_point()
        ):
            found.append(f"{name} is {tensor.dtype} in the model and {weights[name].dtype} in the artifact")
    return found


def _could_become(uncut: Tensor, saved: Tensor, name: str, plan: Plan) -> bool:
    """Whether a tensor of the uncut model can have the saved shape after the cut of its module."""
    owners = (name, name.rpartition(".")[0])  # a parameter of no layer stands in a layout by its own name
    if not any((owner, side) in plan.layout for owner in owners for side in get_args(Side)):
        return uncut.shape == saved.shape
    return uncut.ndim == saved.ndim and all(
        after <= before for before, after in zip(uncut.shape, saved.shape, strict=True)
    )


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"({type(value).__name__})"


def _listed(differences: list[str]) -> str:
    rest = len(differences) - SHOWN
    return "; ".join(differences[:SHOWN]) + (f"; and {rest} more" if rest > 0 else "") + ("." if differences else "")
