"""Models of torchvision and timm by name, always with fresh weights: nothing is ever downloaded here."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn

from cosep.errors import ModelError
from cosep.plugins import import_extra

# Training heads that make these two return a tuple; torchvision's own pretrained models come without them, too.
_TRAINING_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}


def torchvision_model(name: str, classes: int | None) -> nn.Module:
    """A classifier from torchvision's registry, without auxiliary heads."""
    torchvision = import_extra("torchvision", ModelError)
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ModelError(unknown_model(f"torchvision:{name}", [f"torchvision:{n}" for n in known]))
    settings: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if name in _TRAINING_HEADS:
        settings |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
    return model


def torchvision_input(name: str) -> tuple[int, ...]:
    """The image size (3, h, w) that a torchvision model is evaluated with by custom."""
    return (3, 299, 299) if name == "inception_v3" else (3, 224, 224)


def ignored_keys(spec: str) -> tuple[str, ...]:
    """Prefixes of parameters that published checkpoints of a model hold and the model here does not."""
    return _TRAINING_HEADS.get(spec.removeprefix("torchvision:"), ()) if spec.startswith("torchvision:") else ()


def timm_model(name: str, classes: int | None) -> nn.Module:
    """A model from timm's registry."""
    timm = _timm_knowing(name)
    settings: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    model: nn.Module = timm.create_model(name, pretrained=False, **settings)
    return model


def timm_input(name: str) -> tuple[int, ...]:
    """The image size (3, h, w) of a timm model's configuration."""
    config = _timm_knowing(name).get_pretrained_cfg(name)
    return tuple(config.input_size) if config is not None else (3, 224, 224)


def _timm_knowing(name: str) -> Any:
    timm = import_extra("timm", ModelError)
    if ":" in name or not timm.is_model(name):  # a colon is a place elsewhere, such as a hub
        raise ModelError(unknown_model(f"timm:{name}", [f"timm:{n}" for n in timm.list_models()]))
    return timm


def unknown_model(name: str, known: list[str]) -> str:
    """A sentence that says a name is unknown and which known ones are close to it."""
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"unknown model {name!r}; did you mean {' or '.join(close)}?"
    some = ", ".join(known[:15]) + (", ..." if len(known) > 15 else "")
    return f"unknown model {name!r}; known are {some}, torchvision:NAME, timm:NAME and path/to/file.py:factory."
