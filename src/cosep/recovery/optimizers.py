"""The optimizers that the settings name, made of torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cosep.config import RecoverConfig
from cosep.errors import ConfigError
from cosep.layers import mixing_kind_of


def of_settings(model: nn.Module, config: RecoverConfig) -> torch.optim.Optimizer:
    """An optimizer of exactly the trainable parameters."""
    matrices, rest = _divided(model, config)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            rest, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
        )
    if not matrices:  # AdamW, or a network without a matrix of weights
        return torch.optim.AdamW(rest, lr=config.lr, weight_decay=config.weight_decay)
    # The updates of both have the size of AdamW's, so that one rate serves both.
    muon = torch.optim.Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return Together([muon, torch.optim.AdamW(rest, lr=config.lr, weight_decay=0.0)]) if rest else muon


def parameters_of(model: nn.Module, config: RecoverConfig) -> list[nn.Parameter]:
    """The trainable parameters in the order in which the optimizer of these settings numbers them."""
    matrices, rest = _divided(model, config)
    return matrices + rest


def _divided(model: nn.Module, config: RecoverConfig) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """What Muon trains, and what another optimizer does.

    Muon is for matrices from hidden values to hidden values (Jordan et al., 2024): the weights of linear layers but
    the last, which gives the classes. Convolutions, norms and positions are not for it.
    """
    live = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    chosen: set[str] = set()
    if config.optimizer == "muon":
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError(
                f'the optimizer is "muon", which torch {torch.__version__} does not have. Install torch 2.9 or later, '
                'or take "adamw".'
            )
        made = [
            f"{name}.weight" if name else "weight"
            for name, module in model.named_modules()
            if mixing_kind_of(module) and module.get_parameter("weight").ndim == 2
        ]
        chosen = set(made[:-1])
    return [p for name, p in live if name in chosen], [p for name, p in live if name not in chosen]


class Together(torch.optim.Optimizer):
    """Several optimizers, each of its own parameters, as one: one step, one state, the groups of all."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        self._share()

    def _share(self) -> None:
        """Every part works on this optimizer's state and on its share of the groups."""
        at = 0
        for part in self.parts:
            part.state = self.state
            part.param_groups = self.param_groups[at : at + len(part.param_groups)]
            at += len(part.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every part."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; torch puts new objects in the place of state and groups."""
        super().load_state_dict(state_dict)
        self._share()
