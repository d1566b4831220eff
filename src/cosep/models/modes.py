"""Looking at a model without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import ModelError


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """The models in evaluation mode without gradients; afterwards each module has its own training flag again."""
    with training_flags_kept(*models), torch.no_grad():
        for model in models:
            model.eval()
        yield


@contextmanager
def training_flags_kept(*models: nn.Module) -> Iterator[None]:
    """Whatever happens to the training flags of the models' modules, afterwards each has the one it was found with."""
    # Module by module, because a frozen BatchNorm in a training network is common and `model.train()` would thaw it.
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter or buffer lives; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def laid_out_like(model: nn.Module, other: nn.Module) -> nn.Module:
    """The model, its parameters contiguous wherever the other's of the same name are: the memory format it came in."""
    formats = {name: parameter.is_contiguous() for name, parameter in other.named_parameters()}
    for name, parameter in model.named_parameters():
        if formats.get(name):
            # A clone, since with a dimension of size 1 `contiguous` takes either format for the other.
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model


def scores_in_training(output: Any, images: int) -> Tensor | None:
    """The scores in what a model returns in training, where second heads and features often come along.

    They are the first tensor of a row for each image; None where there is none.
    """
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = list(output)
    else:
        parts = [output if isinstance(output, Tensor) else getattr(output, "logits", None)]
    fit = (part for part in parts if isinstance(part, Tensor) and part.ndim == 2 and len(part) == images)
    return next(fit, None)


def no_tensor(output: Any) -> str:
    """What is said of a model that returns something else than one tensor, with the expression that picks the scores.

    The scores are taken to be the first entry with two axes, as (batch, classes) has.
    """
    kind = type(output).__name__
    found = f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
    pick = "model(x).logits"
    if isinstance(output, Mapping):
        found += f" with the keys {', '.join(map(repr, list(output)[:5]))}"
        pick = f"model(x)[{_place_of_scores(output.items(), 'logits')!r}]"
    elif isinstance(output, (tuple, list)):
        found += f" of {len(output)}"
        pick = f"model(x)[{_place_of_scores(enumerate(output), 0)}]"
    return (
        f"the model returned {found}; one tensor of scores (batch, classes) is needed. Wrap it in a module whose "
        f"forward picks the scores, for example `return self.{pick}`."
    )


def _place_of_scores(entries: Iterable[tuple[Any, Any]], usual: Any) -> Any:
    return next((place for place, entry in entries if isinstance(entry, Tensor) and entry.ndim == 2), usual)


def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's scores, (batch, classes); anything else is an error that says how to wrap the model."""
    output = model(inputs)
    if not isinstance(output, Tensor):
        raise ModelError(no_tensor(output))
    if output.ndim != 2:
        raise ModelError(
            f"the model returned scores of shape {tuple(output.shape)}; (batch, classes) is needed. Wrap it in a "
            "module whose forward pools or flattens the rest away."
        )
    return output
