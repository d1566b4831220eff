"""The loop that trains a network for a number of updates: recovery after a cut, and `cosep train`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import RecoverConfig
from cosep.data.batches import check_targets, inputs_and_labels, pair_of
from cosep.errors import RecoveryError
from cosep.models.frozen import train_as_found
from cosep.models.modes import scores_in_training, training_flags_kept
from cosep.recovery.hooks import RecoveryHooks, augmented, make_average, make_optimizer, own_loss, rates_of
from cosep.recovery.losses import block_outputs, comparable_blocks, recovery_loss
from cosep.recovery.source import endless
from cosep.storage.tensors import load_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# A copy of the weights is put aside this often, right after a loss that proves them good.
UPDATES_BETWEEN_COPIES = 50


@dataclass(frozen=True)
class Recovery:
    """What a recovery did: the updates that were kept, the loss of each, and how it ended."""

    updates: int
    losses: tuple[float, ...]
    outcome: str = "done"  # or, in words, why it stopped early


@dataclass(frozen=True, eq=False)
class Progress:
    """A recovery between two updates: all that it needs to go on exactly as if it had not stopped."""

    update: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    rng_state: Tensor
    losses: tuple[float, ...]
    average: dict[str, Tensor] | None = None  # of the weights so far, where there is one


def recover(
    model: nn.Module,
    loader: Iterable[Any],
    updates: int,
    config: RecoverConfig,
    *,
    fabric: Fabric,
    batches_a_pass: int,
    seed: int = 0,
    first_batch: int = 0,
    teacher: nn.Module | None = None,
    blocks: Sequence[str] = (),
    progress: Progress | None = None,
    checkpoint: Callable[[int, Callable[[], Progress]], None] | None = None,
    on_update: Callable[[int, int, float], None] | None = None,
    hooks: RecoveryHooks | None = None,
) -> Recovery:
    """Train `model` in place for `updates` steps; a loss that is not finite restores the last good weights and ends it.

    The batches are those from number `first_batch` on of one endless stream, so that recoveries after one another do
    not repeat each other's data. With a `teacher`, its outputs and the outputs of its `blocks` are targets beside the
    labels; `hooks` are the caller's own parts. Where the weights are averaged, the model ends with the average. After
    every update `checkpoint` is called with the number of updates done and a way to get the progress; `progress` goes
    on from such a point.
    """
    hooks = hooks or RecoveryHooks()
    if progress:
        load_weights(model, progress.weights)
    average = make_average(model, config, hooks)
    if average and progress and progress.average is not None:
        average.load_state_dict(progress.average)
    wrapped, optimizer = fabric.setup(model, make_optimizer(model, config, hooks))
    rates = rates_of(optimizer, config, hooks)
    if progress:
        optimizer.load_state_dict(progress.optimizer)
    done = progress.update if progress else 0
    losses = list(progress.losses) if progress else []
    batches = endless(
        loader,
        seed=seed,
        batches_a_pass=batches_a_pass,
        skip=first_batch + done,
        rng_state=progress.rng_state if progress else None,
    )
    good = done, _copy(model)
    targets: tuple[str, ...] | None = None

    def now() -> Progress:
        means = average.state_dict() if average else None
        return Progress(done, model.state_dict(), optimizer.state_dict(), torch.get_rng_state(), tuple(losses), means)

    with ExitStack() as stack:
        stack.enter_context(training_flags_kept(model, *([teacher] if teacher else [])))
        stack.callback(optimizer.zero_grad)
        stack.enter_context(torch.enable_grad())  # the caller may be in no_grad
        if teacher is not None:
            fabric.to_device(teacher.eval())
        train_as_found(model)
        while done < updates:
            read = inputs_and_labels if hooks.loss or (teacher is not None and config.distill) else pair_of
            batch = augmented(read(next(batches), "a batch of the loader for recovery"), hooks)
            inputs, labels = _of_rank(batch, fabric)
            if targets is None:
                compared = teacher if config.features and not hooks.loss else None
                targets = comparable_blocks(model, compared, blocks, inputs[:1]) if compared else ()
                seen = stack.enter_context(block_outputs(model, targets))
                taught = stack.enter_context(block_outputs(teacher, targets)) if teacher else {}
            for group, now_at in zip(optimizer.param_groups, rates(done, updates), strict=True):
                group["lr"] = now_at
            optimizer.zero_grad()
            teacher_logits = _frozen(teacher, inputs, fabric) if teacher else None
            logits = _scores(wrapped, inputs)
            if batch[1] is not None:
                check_targets(batch[1], len(batch[0]), logits.shape[1], "a batch of the loader for recovery")
            if hooks.loss:
                loss = own_loss(hooks, logits, labels, teacher_logits)
            else:
                loss = recovery_loss(logits, labels, config, teacher_logits, seen, taught)
            value = float(fabric.all_reduce(loss.detach(), reduce_op="mean"))  # type: ignore[arg-type]
            if not math.isfinite(value):
                kept, weights = good
                load_weights(model, weights)
                outcome = f"stopped: the loss of update {done + 1} was {value}; the weights of update {kept} are back"
                return Recovery(kept, tuple(losses[:kept]), outcome)
            if done % UPDATES_BETWEEN_COPIES == 0:
                good = done, _copy(model)
            fabric.backward(loss)
            if config.clip:
                fabric.clip_gradients(wrapped, optimizer, max_norm=config.clip, error_if_nonfinite=False)
            optimizer.step()
            if average:
                average.update_parameters(model)
            losses.append(value)
            done += 1
            if on_update:
                on_update(done, updates, value)
            if checkpoint:
                checkpoint(done, now)
        if average:
            load_weights(model, average.module.state_dict())
    return Recovery(done, tuple(losses))


def check_average(average: Mapping[str, Tensor] | None, shapes: Mapping[str, torch.Size]) -> None:
    """Refuse a stored average that is of another network than one of these shapes; there may be none."""
    if average is not None:
        of_weights = {
            name.removeprefix("module."): t.shape for name, t in average.items() if name.startswith("module.")
        }
        if of_weights != shapes or "n_averaged" not in average:
            raise ValueError("the average of the weights is of another network")


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _frozen(teacher: nn.Module, inputs: Tensor, fabric: Fabric) -> Tensor:
    """The teacher's outputs, in the precision in which the student is trained."""
    with torch.no_grad(), fabric.autocast():
        scores = teacher(inputs)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _scores(model: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
    """The scores of a network in training mode."""
    try:
        output = model(inputs)
    except ValueError as error:
        if len(inputs) > 1:
            raise
        raise RecoveryError(
            f"a batch of one image cannot be trained on ({error}). Give the training loader drop_last=True, or a batch "
            "size that leaves no single image at the end."
        ) from error
    scores = scores_in_training(output, len(inputs))
    if scores is None:
        raise RecoveryError(
            f"in training the model returns a {type(output).__name__} without a tensor of scores (batch, classes). "
            "Wrap it in a module whose forward gives that in training too, or prune without training (epochs=0)."
        )
    return scores


def _of_rank(batch: tuple[Tensor, Tensor | None], fabric: Fabric) -> tuple[Tensor, Tensor | None]:
    """This process's part of a batch that every process drew alike, so that a batch is the same for any number."""
    inputs, labels = batch
    if fabric.world_size > 1:
        own = slice(fabric.global_rank, None, fabric.world_size)
        inputs, labels = inputs[own], None if labels is None else labels[own]
    return fabric.to_device(inputs), None if labels is None else fabric.to_device(labels)
