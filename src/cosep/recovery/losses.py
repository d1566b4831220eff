"""What a recovering network is trained towards: the labels, the unpruned network's outputs and its block outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cosep.config import RecoverConfig
from cosep.models.modes import evaluating


def recovery_loss(
    logits: Tensor,
    labels: Tensor | None,
    config: RecoverConfig,
    teacher_logits: Tensor | None = None,
    blocks: Mapping[str, Tensor] | None = None,
    teacher_blocks: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The weighted sum of cross-entropy, distillation (Hinton et al. 2015) and relative block errors: a scalar.

    Labels are class numbers of any integer type, or probabilities; without any, their part is left out.
    """
    hard = logits.new_zeros(())
    if labels is not None:
        targets = labels.to(logits.dtype) if labels.is_floating_point() else labels.long()
        hard = F.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
    if teacher_logits is None:
        return hard
    t = config.temperature
    # t² keeps the gradient's size independent of the temperature.
    soft = F.kl_div(
        F.log_softmax(logits / t, 1), F.log_softmax(teacher_logits / t, 1), reduction="batchmean", log_target=True
    )
    loss = config.distill * t * t * soft + (1 - config.distill) * hard
    if blocks and teacher_blocks:
        errors = [relative_error(blocks[name], teacher_blocks[name]) for name in teacher_blocks]
        loss = loss + config.features * torch.stack(errors).mean()
    return loss


def relative_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared error as a share of the target's squared norm: comparable between blocks of any scale."""
    exact = torch.promote_types(output.dtype, torch.float32)  # a difference of two half precisions has few digits left
    output, target = output.to(exact), target.to(exact)
    return (output - target).square().sum() / target.square().sum().clamp(min=torch.finfo(target.dtype).tiny)


@contextmanager
def block_outputs(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that every forward pass refills with the outputs of the named modules; hooks always go."""
    latest: dict[str, Tensor] = {}

    def store(name: str) -> object:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                latest[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(store(name)) for name in names]  # type: ignore[arg-type]
    try:
        yield latest
    finally:
        for handle in handles:
            handle.remove()


def comparable_blocks(student: nn.Module, teacher: nn.Module, names: Sequence[str], example: Tensor) -> tuple[str, ...]:
    """Those of the named modules whose outputs have the same shape in both networks, so that one can be the target."""
    shapes = []
    for model in (student, teacher):
        with evaluating(model), block_outputs(model, names) as outputs:
            model(example)
            shapes.append({name: tuple(output.shape) for name, output in outputs.items()})
    return tuple(name for name in names if name in shapes[0] and shapes[0][name] == shapes[1].get(name))
