"""Before the first cut: what a run may prune, what it may spend, and whether model and data fit together."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from cosep.config import PruneConfig, RecoverConfig
from cosep.data.batches import check_loader, check_targets, inputs_and_labels, pair_of
from cosep.errors import CalibrationError, ConfigError, CosepError, DataError, ModelError
from cosep.groups import groups_in_scope
from cosep.models.acceptance import check_structure, check_values, unwrapped, warn_of_hooks
from cosep.models.modes import evaluating, logits_of, scores_in_training
from cosep.models.passes import one_path
from cosep.records import Group
from cosep.recovery import batch_count, check_trainable, fixed_part, updates_per_group, without_some
from cosep.runs.state import Batches


def accepted_model(model: nn.Module, config: PruneConfig, *, trains: bool) -> nn.Module:
    """The network that a run works on: out of its wrappers, and refused now where it would fail later."""
    if torch.is_inference_mode_enabled():
        raise ModelError("torch.inference_mode is on, in which nothing can be trained. Call prune outside of it.")
    if isinstance(model, nn.Module):
        model = unwrapped(model)
    check_structure(model)
    check_values(model)
    warn_of_hooks(model)
    if trains and config.recover.schedule != "none":
        check_trainable(model)
    return model


def check_loaders(loaders: Mapping[str, Batches | None], config: PruneConfig) -> None:
    """Refuse what is no loader, and held-out data that is missing; warn of a test set that is not unseen."""
    for name, loader in loaders.items():
        if loader is not None or name == "calibration":
            check_loader(loader, name)
    tested = loaders.get("evaluate")
    if tested is not None and any(tested is loaders.get(part) for part in ("calibration", "train", "holdout")):
        warnings.warn(
            "evaluate is the same object as calibration, train or holdout: its accuracy is not that of unseen data. "
            "Give the test set as evaluate.",
            stacklevel=4,
        )
    if config.limits.max_drop is not None and loaders.get("holdout") is None:
        raise ConfigError(
            "limits.max_drop needs held-out data to measure the drop on, and `holdout` is None. "
            "Give batches that are neither trained on nor reported."
        )


def chosen_groups(groups: Iterable[Group], config: PruneConfig) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """The groups that the scope and the protected names let us prune, and the others."""
    groups = _protected(tuple(groups), config.surgery.protect)
    chosen = groups_in_scope(groups, config.surgery.scope)
    others = tuple(group for group in groups if group not in chosen)
    if not chosen:
        raise ModelError(
            "the model has no prunable group: "
            + ("; ".join(f"{g.name}: {g.why_not}" for g in others[:3]) or "no convolution or linear layer was found")
            + '. `cosep.find_groups` lists them all; the scope "all" admits those tied by additions.'
        )
    return chosen, others


def _protected(groups: tuple[Group, ...], patterns: str) -> tuple[Group, ...]:
    """The groups, those with a layer of a protected name marked as not prunable; a name that fits none is refused."""
    wanted = [pattern for pattern in patterns.replace(",", " ").split() if pattern]
    used: set[str] = set()
    found = []
    for group in groups:
        hit = [pattern for pattern in wanted if any(_fits(name, pattern) for name in group.producers)]
        used.update(hit)
        found.append(replace(group, scope=None, why_not=f"protected by {hit[0]!r}") if hit else group)
    if unused := [pattern for pattern in wanted if pattern not in used]:
        names = [name for group in groups for name in group.producers]
        close = get_close_matches(unused[0], names, n=3, cutoff=0.4)
        raise ConfigError(
            f"surgery.protect names {unused[0]!r}, and no layer that makes channels is called so; "
            f"{'the nearest are' if close else 'there are'} {', '.join(close or names[:5])}."
        )
    return tuple(found)


def _fits(layer: str, pattern: str) -> bool:
    """Whether a pattern names a layer, or a module that it is in."""
    parts = layer.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def checked_widths(widths: Mapping[str, int], groups: Iterable[Group], skipped: Iterable[Group] = ()) -> dict[str, int]:
    """The caller's widths, each of a group that is there, can be pruned, and is as wide."""
    known = {group.name: group for group in groups}
    why = {group.name: group.why_not for group in skipped}
    for name, width in widths.items():
        if name not in known and why.get(name):
            raise ConfigError(f"widths names {name!r}, which cannot be pruned: {why[name]}.")
        if name not in known:
            raise ConfigError(f"widths names {name!r}, which is no prunable group; there are {', '.join(known)}.")
        if not 1 <= width <= known[name].width:
            raise ConfigError(f"widths asks for {width} {known[name].unit}s of {name}, which has {known[name].width}.")
    return dict(widths)


@dataclass(frozen=True, eq=False)
class Budget:
    """The batches of recovery, how many make a pass, and how many updates may be spent."""

    calibration: Batches  # without what is set aside: the rebuild must not have been fitted to what judges it
    train: Batches
    batches_a_pass: int
    updates_a_group: int  # for each group that was cut
    updates_in_all: int | None = None  # where the caller has said how long to train
    aside: Batches | None = None  # images that it leaves out, to tell whether it helped


def budget(loaders: Mapping[str, Batches | None], config: PruneConfig) -> Budget:
    """What recovery works with, by the settings."""
    calibration, train = loaders["calibration"], loaders.get("train")
    assert calibration is not None
    recover, aside = config.recover, None
    if recover.schedule == "none" or recover.epochs == 0 or (recover.epochs is None and recover.group_epochs == 0):
        return Budget(calibration, calibration if train is None else train, 1, 0, 0)
    if train is None:
        train = calibration
        if loaders.get("holdout") is None and recover.schedule == "final":
            train, aside = without_some(calibration, seed=config.seed)
            calibration = train
    batches = batch_count(train)
    in_all = None if recover.epochs is None else max(1, round(recover.epochs * batches))
    # Where nobody chose the share, the least by default decides.
    chosen = (recover.group_epochs, recover.share) != (RecoverConfig().group_epochs, RecoverConfig().share)
    few = recover.schedule == "final" and not chosen and recover.share * batches < 1
    updates = 1 if few or in_all is not None else updates_per_group(batches, recover)
    if not recover.fixed_share:
        return Budget(calibration, train, batches, updates, in_all, aside)
    part = fixed_part(train, recover.share, seed=config.seed)
    return Budget(calibration, part, batch_count(part), updates, in_all, aside)


def blocks_around(groups: Iterable[Group]) -> tuple[str, ...]:
    """The smallest modules around each group: what goes in and comes out of them is not cut in the scope `interior`."""
    found: dict[str, None] = {}
    for group in groups:
        parts = [name.split(".")[:-1] for name in (*group.producers, *group.consumers)]
        common = []
        for pieces in zip(*parts, strict=False):
            if len(set(pieces)) > 1:
                break
            common.append(pieces[0])
        if common:
            found[".".join(common)] = None
    return tuple(found)


def first_input(calibration: Batches) -> Tensor:
    """The inputs of the first batch, checked: what the model is traced with."""
    batch = next(iter(calibration), None)
    if batch is None:
        raise CalibrationError("the calibration loader gave no batch. Give it data, or a smaller batch size.")
    inputs, _ = inputs_and_labels(batch, "the first batch of the calibration loader")
    if not len(inputs):
        raise CalibrationError("the first batch of the calibration loader is empty. Give it images.")
    return inputs


def classes_of(model: nn.Module, example: Tensor) -> int:
    """How many classes the model tells apart: the width of its output."""
    classes = _scores(model, example, "the example input").shape[1]
    if classes < 2:
        raise ModelError(
            "the model has one output; separability needs two classes or more. Let a binary classifier give two: wrap "
            "it in a module whose forward is `z = self.model(x); return torch.cat([torch.zeros_like(z), z], 1)`, and "
            "take labels 0 and 1."
        )
    return classes


def check_data(
    model: nn.Module, example: Tensor, classes: int, loaders: Mapping[str, Batches | None], *, towards_labels: bool
) -> None:
    """Refuse now what a later stage could not use: by the first batch of every loader, named by its argument.

    `towards_labels`: the network is trained by labels alone, without its teacher.
    """
    trained = "calibration" if loaders.get("train") is None else "train"
    with one_path(model) as check_path:
        _scores(model, example, "the example input")
        check_path("the example input")
        for name, loader in loaders.items():
            # One that is its own iterator would give every batch but this one afterwards.
            if loader is None or hasattr(loader, "__next__"):
                continue
            where = f"the first batch of {name}"
            batch = next(iter(loader), None)
            if batch is None:
                raise DataError(f"{name} gave no batch. Give it data, or a smaller batch size.")
            measured = name in ("holdout", "evaluate")
            needed = measured or (towards_labels and name == trained)
            inputs, labels = (pair_of if needed else inputs_and_labels)(batch, where)
            _scores(model, inputs.to(example.device), where)
            check_path(where)
            if name != "calibration" and labels is not None:  # whose labels are all read before anything is cut
                check_targets(labels, len(inputs), classes, where, soft=name == "train")


def check_training(model: nn.Module, inputs: Tensor, classes: int) -> str:
    """Refuse a model whose output in training has no scores; what is said of one that returns more than scores."""
    private = copy.deepcopy(model).train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            output = private(inputs)
    except Exception:
        return ""  # such as BatchNorm of too few values: whether larger batches can be trained on is seen then
    if isinstance(output, Tensor):
        return ""
    scores = scores_in_training(output, len(inputs))
    kind = type(output).__name__
    if scores is None or scores.shape[1] != classes:
        raise ModelError(
            f"in training the model returns a {kind} whose first tensor with a row for each image is not its scores "
            f"(batch, {classes}). Wrap it in a module whose forward gives them first, or prune without training "
            "(recover.epochs = 0)."
        )
    return f"in training the model returns a {kind}: it was trained by the scores in it, its first tensor"


def _scores(model: nn.Module, inputs: Tensor, where: str) -> Tensor:
    """The model's scores for a few inputs; a failure says what the inputs were."""
    own = inputs.clone()
    try:
        with evaluating(model):
            scores = logits_of(model, own)
    except CosepError:
        raise
    except Exception as error:
        weights = next((p.dtype for p in model.parameters()), inputs.dtype)
        remedy = "Give inputs as the model was trained with."
        if inputs.dtype != weights:
            remedy = (
                f"They are {inputs.dtype} and the weights {weights}: convert them in the data set's transform, as in "
                "training (bytes: `x.float() / 255`, then the normalisation; float64: `x.float()`)."
            )
        raise ModelError(
            f"the model fails on {where}, inputs {tuple(inputs.shape)}: {type(error).__name__}: {error} {remedy}"
        ) from error
    if own._version:
        raise ModelError(
            "the model changes its input in place: a second pass over the same batch would see another one. Compute "
            "anew in its forward (`x = x - mean` instead of `x -= mean`; no inplace=True in its first layer)."
        )
    return scores
