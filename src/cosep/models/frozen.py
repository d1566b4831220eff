"""BatchNorm that its owner keeps as it is, and training that respects it."""

from __future__ import annotations

from torch import nn

from cosep.layers import is_batchnorm


def frozen_batchnorms(model: nn.Module) -> frozenset[nn.Module]:
    """BatchNorm layers whose statistics must not change.

    Those in evaluation mode within a model in training mode, and those whose weights require no gradient in a model
    that has others that do. A model without any gradient is one for use: nothing is said about its BatchNorm.
    """
    trainable = any(p.requires_grad for p in model.parameters())
    return frozenset(
        module
        for module in model.modules()
        if is_batchnorm(module)
        and ((model.training and not module.training) or (trainable and _without_gradient(module)))
    )


def _without_gradient(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


def train_as_found(model: nn.Module) -> None:
    """Training mode, but for modules that were set to evaluation in a model that trains, and for frozen BatchNorm."""
    still = {m for m in model.modules() if model.training and not m.training} | frozen_batchnorms(model)
    model.train()
    for module in still:
        module.training = False
