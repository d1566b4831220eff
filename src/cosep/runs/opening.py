"""From what a caller asks for to a job that can run: checks, the folder, the device, the criterion and the rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import PruneConfig, preset, replace_settings, settings
from cosep.criteria import Criterion, OwnCriterion, criterion
from cosep.errors import ConfigError, PlanError
from cosep.groups import find_groups
from cosep.models.formats import in_fast_format
from cosep.records import Group, Plan, Selection
from cosep.recovery import RecoveryHooks
from cosep.runs.events import mirrored
from cosep.runs.fabric import launched
from cosep.runs.folder import Run, opened, weights_digest
from cosep.runs.identity import code_digest, file_digest, name_of
from cosep.runs.preflight import (
    accepted_model,
    budget,
    check_data,
    check_loaders,
    check_training,
    checked_widths,
    chosen_groups,
    classes_of,
    first_input,
)
from cosep.runs.sameness import identity_of
from cosep.runs.state import Batches, Callbacks, Choose, Clock, Job, Recover
from cosep.selection.rules import OwnRule, WidthRule, width_rule
from cosep.surgery import copied, with_cuts_tried
from cosep.surgery.plan import check_plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from cosep.runs.results import PruneResult


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """What a caller asks for: the arguments of `prune` and `plan`."""

    model: nn.Module
    calibration: Batches
    evaluate: Batches | None = None
    earlier: PruneResult | None = None  # where the model is the result of a pruning before
    config: PruneConfig | None = None
    train: Batches | None = None
    holdout: Batches | None = None
    example_input: Tensor | None = None
    run: str | Path | None = None
    about: Mapping[str, Any] | None = None
    callbacks: Callbacks | None = None
    progress: bool | None = None  # None: shown where somebody is looking
    tensorboard: bool = False
    recovery: Recover | RecoveryHooks | None = None
    criterion: str | Criterion | Callable[..., Any] | None = None
    width_rule: str | WidthRule | Callable[..., Any] | None = None
    plan: Plan | None = None
    choose: Choose | None = None
    widths: Mapping[str, int] | None = None

    @property
    def hooks(self) -> RecoveryHooks:
        """The parts of the training that are the caller's."""
        return self.recovery if isinstance(self.recovery, RecoveryHooks) else RecoveryHooks()

    @property
    def own_training(self) -> Recover | None:
        """The caller's training in place of ours."""
        return None if isinstance(self.recovery, RecoveryHooks) else self.recovery

    @property
    def loaders(self) -> dict[str, Batches | None]:
        """The data, by the names of their arguments."""
        return {
            "calibration": self.calibration,
            "train": self.train,
            "holdout": self.holdout,
            "evaluate": self.evaluate,
        }


# The settings that people use first, which `prune` and `plan` take as keywords, and their sections.
KEYWORDS = {
    **dict.fromkeys(("max_macs", "max_params", "max_latency_ms", "max_drop", "best_effort"), "limits"),
    **dict.fromkeys(("scope", "round_to", "protect"), "surgery"),
    "epochs": "recover",
    "order": "",
    "seed": "",
}


def asked(arguments: Mapping[str, Any]) -> Request:
    """The request of a call: its arguments, those that are settings put in their places; they win over the config."""
    changes: dict[str, Any] = {}
    for name, section in KEYWORDS.items():
        if (value := arguments.get(name)) is None:
            continue
        if name == "protect" and not isinstance(value, str):
            value = ", ".join(value)
        if name in ("max_macs", "max_params") and not isinstance(value, str):
            value = f"{value:g}"
        (changes.setdefault(section, {}) if section else changes)[name] = value
    given = {name: value for name, value in arguments.items() if name not in KEYWORDS}
    if not isinstance(given["model"], nn.Module) and hasattr(given["model"], "report"):  # a PruneResult
        given |= {"earlier": given["model"], "model": given["model"].model}
    return Request(**{**given, "config": replace_settings(given["config"] or preset(), changes)})


@dataclass(frozen=True, eq=False)
class Chain:
    """The criterion and the width rule of a run, the settings that name them, and what tells their code apart."""

    config: PruneConfig
    criterion: Criterion
    rule: WidthRule
    code: Mapping[str, str]  # digests, for what is not part of cosep


@dataclass(frozen=True, eq=False)
class Opening:
    """A request that was found good, its device and its folder: what a finished run needs, and what makes a job."""

    request: Request
    model: nn.Module  # the caller's, out of its wrappers
    chain: Chain
    fabric: Fabric
    folder: Run | None
    callbacks: Callbacks

    def job(self) -> Job:
        """What stays the same all through the run; model and data are tried with one batch of each."""
        request, config = self.request, self.chain.config
        original = self.fabric.to_device(copied(self.model))
        example = first_input(request.calibration) if request.example_input is None else request.example_input
        example = self.fabric.to_device(example)[:1]
        original, format_note = in_fast_format(original, example) if config.device.channels_last else (original, "")
        classes = classes_of(original, example)
        config = replace_settings(config, {"observe": {"images": config.observe.images_for(classes)}})
        by_labels = config.recover.schedule != "none" and not config.recover.distill and request.own_training is None
        by_labels = by_labels and config.recover.epochs != 0 and request.hooks.loss is None
        check_data(original, example, classes, request.loaders, towards_labels=by_labels)
        trains = config.recover.schedule != "none" and config.recover.epochs != 0 and request.recovery is None
        training_note = check_training(original, torch.cat([example, example]), classes) if trains else ""
        means = budget(request.loaders, config)
        every = with_cuts_tried(original, find_groups(original, example), example)
        groups, skipped = chosen_groups(every, config)
        if request.plan is not None:
            _check_asked(request.plan, self.model, every, groups)
        return Job(
            config=config,
            fabric=self.fabric,
            original=original,
            example=example,
            classes=classes,
            groups=groups,
            skipped=skipped,
            calibration=means.calibration,
            train=means.train,
            holdout=request.holdout,
            aside=means.aside,
            batches_a_pass=means.batches_a_pass,
            updates_a_group=means.updates_a_group,
            updates_in_all=means.updates_in_all,
            callbacks=self.callbacks,
            recovery=request.own_training,
            hooks=request.hooks,
            criterion=self.chain.criterion,
            rule=self.chain.rule,
            run=self.folder,
            clock=Clock(),
            given=checked_widths(request.widths or {}, groups, skipped),
            notes=tuple(note for note in (format_note, training_note) if note),
        )


@contextmanager
def opened_request(request: Request) -> Iterator[Opening]:
    """Check what is asked for and open its folder, whose lock is held meanwhile."""
    asked = request.config or preset()
    if request.tensorboard and request.run is None:
        raise ConfigError("tensorboard writes events into the run folder, and `run` is None. Give a folder.")
    model = accepted_model(request.model, asked, trains=request.own_training is None)
    check_loaders(request.loaders, asked)
    chain = chain_of(request, asked)
    with ExitStack() as stack:
        # The caller's random numbers go on as if nothing had happened here.
        stack.enter_context(torch.random.fork_rng(devices=()))
        fabric = launched(chain.config.device)
        folder = None
        if request.run is not None and fabric.is_global_zero:
            described = description(request, model, chain) | identity_of(
                copied(model),
                request.loaders,
                request.example_input,
                seed=chain.config.seed,
                device=fabric.device.type,
            )
            folder = stack.enter_context(opened(Path(request.run), described))
            if request.tensorboard:
                stack.enter_context(mirrored(folder))
        callbacks = request.callbacks or Callbacks()
        if request.progress is not False and fabric.is_global_zero:
            from cosep.reporting.progress import watched

            callbacks = stack.enter_context(watched(callbacks, request.progress))
        yield Opening(request, model, chain, fabric, folder, callbacks)


def only_deciding(config: PruneConfig) -> PruneConfig:
    """The settings of a plan: all groups at once, without what needs training or held-out data."""
    return replace(
        config,
        order="together",
        recover=replace(config.recover, schedule="none"),
        limits=replace(config.limits, max_drop=None),
    )


def _check_asked(plan: Plan, model: nn.Module, every: Iterable[Group], groups: Iterable[Group]) -> None:
    """Refuse a plan of another network, or one that cuts what the scope leaves alone."""
    check_plan(model, every, plan)
    known = {group.name for group in groups}
    if outside := [each.group for each in plan.groups if each.group not in known and len(each.kept) < each.width]:
        raise PlanError(
            f'the plan cuts {outside[0]!r}, which the scope does not admit. Set surgery.scope to "all" (--scope all).'
        )


def description(request: Request, model: nn.Module, chain: Chain) -> dict[str, Any]:
    """What a run folder is of: another description is another run."""
    described = {"about": {**(request.about or {}), "weights_sha256": weights_digest(model)}, **settings(chain.config)}
    if request.earlier is not None:
        described["about"]["pruned_before"] = [step.fingerprint for step in request.earlier.plan.steps]
    described |= {"widths": dict(request.widths)} if request.widths else {}
    described |= {"code": dict(chain.code)} if chain.code else {}
    return described


def chain_of(request: Request, config: PruneConfig) -> Chain:
    """The criterion and the rule that are asked for, by name or as objects; the settings then name the objects."""
    given: object = request.criterion
    if sum(part is not None for part in (given, request.choose, request.plan)) > 1:
        raise ConfigError("criterion, choose and plan each say which channels stay. Give one of them.")
    if request.choose is not None:
        warnings.warn(
            "choose= goes with the next version: give criterion=, a function of a GroupView (view.model, view.group, "
            "view.layout) that returns a Selection, a score for each channel, or Candidates.",
            DeprecationWarning,
            stacklevel=5,
        )
        given = _ByChoose(request.choose)
    if request.plan is not None:
        given = _ByPlan(request.plan)
    told_apart_by: object = given
    if request.choose is not None:
        told_apart_by = request.choose
    elif request.plan is not None:
        told_apart_by = [(each.group, each.kept) for each in request.plan.groups]
    names = {
        "criterion": _name("criterion", given, config.select.criterion),
        "width_rule": _name("width_rule", request.width_rule, config.select.width_rule),
    }
    if request.width_rule is None and (request.plan is not None or request.choose is not None):
        names["width_rule"] = "knee"  # the rule that takes a width from whoever has decided it
    config = replace_settings(config, {"select": names})
    found = {
        "criterion": OwnCriterion(given, names["criterion"])
        if given is not None and not isinstance(given, str)
        else criterion(names["criterion"], config),
        "width_rule": OwnRule(request.width_rule, names["width_rule"])
        if request.width_rule is not None and not isinstance(request.width_rule, str)
        else width_rule(names["width_rule"], config),
    }
    code = {}
    for part, thing in (("criterion", told_apart_by), ("width_rule", request.width_rule)):
        own = thing is not None and not isinstance(thing, str)
        if digest := code_digest(thing) if own else file_digest(names[part]):
            code[part] = digest
    code |= {f"recovery_{name}": code_digest(part) for name, part in request.hooks.given().items()}
    return Chain(config, found["criterion"], found["width_rule"], code)  # type: ignore[arg-type]


def _name(part: str, given: object, configured: str) -> str:
    if given is None:
        return configured
    return given if isinstance(given, str) else name_of(given)


@dataclass(frozen=True)
class _ByChoose:
    """A caller's choice in the form of the version before, as a criterion."""

    choose: Choose
    name: str = "choose"

    def __call__(self, view: Any) -> Selection:
        return self.choose(view.model, view.group, view.layout)


@dataclass(frozen=True)
class _ByPlan:
    """The channels that a plan keeps; groups that it does not name stay whole."""

    plan: Plan
    name: str = "plan"

    def __call__(self, view: Any) -> Selection:
        group: Group = view.group
        for each in self.plan.groups:
            if each.group == group.name:
                if each.width != group.width:
                    raise PlanError(f"the plan gives {group.name} {each.width} {group.unit}s; it has {group.width}.")
                return each.selection
        return Selection(group.width, tuple(range(group.width)), "not in the plan: kept whole")
