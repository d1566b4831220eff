"""Parts of the training after a cut that a caller may write: the loss, the augmentation, the optimizer, an average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cosep.config import RecoverConfig
from cosep.data.batches import inputs_and_labels
from cosep.errors import RecoveryError
from cosep.recovery.averaging import moving_average
from cosep.recovery.optimizers import of_settings
from cosep.recovery.schedule import rate

if TYPE_CHECKING:
    from torch.optim.swa_utils import AveragedModel


@dataclass(frozen=True, eq=False, kw_only=True)
class RecoveryHooks:
    """Your own parts of the training; what is left out is as the settings say. The loop, checkpoints and limits stay.

    Draw random numbers from torch's generator: it is seeded and stored, so that a run that was stopped goes on exactly.
    """

    # (scores, labels, scores of the uncut network) -> one number to be made small. Labels are None where the data have
    # none, the uncut network's scores where recover.distill and recover.features are both 0.
    loss: Callable[[Tensor, Tensor | None, Tensor | None], Tensor] | None = None
    # (inputs, labels) of a batch as the loader gives it -> (inputs, labels); labels may become probabilities.
    augment: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]] | None = None
    # the network -> its optimizer. Warm-up and decay of the settings scale the rate that each parameter group begins
    # with, so recover.lr says nothing then.
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    # the network -> an average that is updated after every step and whose weights are the result.
    average: Callable[[nn.Module], AveragedModel] | None = None

    def given(self) -> dict[str, Any]:
        """The parts that are the caller's, by name."""
        return {name: part for name in self.__annotations__ if (part := getattr(self, name)) is not None}


def check_trainable(model: nn.Module) -> None:
    """Refuse a model of which nothing can learn."""
    if not any(p.requires_grad for p in model.parameters()):
        raise RecoveryError(
            "no parameter of the model requires a gradient, so it cannot be trained. "
            'Call model.requires_grad_(True), or use the schedule "none".'
        )


def make_optimizer(
    model: nn.Module, config: RecoverConfig, hooks: RecoveryHooks | None = None
) -> torch.optim.Optimizer:
    """The settings' optimizer, or the caller's own."""
    check_trainable(model)
    if hooks and hooks.optimizer:
        own = hooks.optimizer(model)
        if not isinstance(own, torch.optim.Optimizer):
            raise RecoveryError(
                f"the optimizer hook returned a {type(own).__name__}; a torch.optim.Optimizer of the network's "
                "parameters is needed, such as torch.optim.SGD(model.parameters(), lr=0.01)."
            )
        return own
    return of_settings(model, config)


def rates_of(
    optimizer: torch.optim.Optimizer, config: RecoverConfig, hooks: RecoveryHooks
) -> Callable[[int, int], list[float]]:
    """The learning rate of each parameter group at an update; to be made before anything is loaded into the optimizer.

    The settings' own optimizer has one rate. A caller's begins with rates of its own, which rise and fall as one.
    """
    if not hooks.optimizer:
        return lambda update, updates: [rate(update, updates, config)] * len(optimizer.param_groups)
    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    shape = RecoverConfig(lr=1.0, warmup=config.warmup, decay=config.decay)
    return lambda update, updates: [peak * rate(update, updates, shape) for peak in peaks]


def make_average(model: nn.Module, config: RecoverConfig, hooks: RecoveryHooks) -> AveragedModel | None:
    """The average of the weights that is to be the result; None where there is none."""
    if hooks.average:
        own: Any = hooks.average(model)
        if not isinstance(own, nn.Module) or not hasattr(own, "update_parameters") or not hasattr(own, "module"):
            raise RecoveryError(
                f"the average hook returned a {type(own).__name__}; a torch.optim.swa_utils.AveragedModel is needed."
            )
        return own  # type: ignore[return-value]
    return moving_average(model, config.ema) if config.ema else None


def augmented(batch: tuple[Tensor, Tensor | None], hooks: RecoveryHooks) -> tuple[Tensor, Tensor | None]:
    """A batch as the caller's augmentation makes it."""
    if not hooks.augment:
        return batch
    return inputs_and_labels(hooks.augment(*batch), "what the augment hook returned")


def own_loss(hooks: RecoveryHooks, scores: Tensor, labels: Tensor | None, teacher_scores: Tensor | None) -> Tensor:
    """The caller's loss, refused where nothing could be learnt from it."""
    assert hooks.loss is not None
    found: Any = hooks.loss(scores, labels, teacher_scores)
    if not isinstance(found, Tensor) or found.numel() != 1 or not found.requires_grad:
        shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
        raise RecoveryError(
            f"the loss hook returned a {type(found).__name__}{shape}; a tensor with one number that depends on the "
            "scores is needed, such as torch.nn.functional.cross_entropy(scores, labels)."
        )
    return found.reshape(())
