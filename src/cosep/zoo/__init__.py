"""Models that a command can name: the zoo's own, torchvision's, timm's, and factories in users' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from cosep.errors import ModelError
from cosep.plugins import call_factory, file_factory, is_file_factory
from cosep.zoo.checkpoints import load_checkpoint, read_state_dict
from cosep.zoo.cifar_resnet import CifarResNet
from cosep.zoo.densenet import CifarDenseNet
from cosep.zoo.external import (
    ignored_keys,
    timm_input,
    timm_model,
    torchvision_input,
    torchvision_model,
    unknown_model,
)
from cosep.zoo.mobilenet import MobileNetV2
from cosep.zoo.resnet import ResNet
from cosep.zoo.vgg import CifarVGG
from cosep.zoo.vit import CifarViT

__all__ = ["input_shape", "load_checkpoint", "load_model", "model_names", "read_state_dict", "twin"]


@dataclass(frozen=True)
class _Entry:
    """A model of the zoo: build(classes=...) makes it, for inputs of this shape."""

    build: Callable[..., nn.Module]
    classes: int
    shape: tuple[int, int, int]


_CIFAR = (10, (3, 32, 32))
_IMAGENET = (1000, (3, 224, 224))
_ZOO = {
    "digits_cnn": _Entry(partial(CifarResNet, 1, channels=1, widths=(32, 64, 64)), 10, (1, 8, 8)),
    **{f"resnet{6 * n + 2}": _Entry(partial(CifarResNet, n), *_CIFAR) for n in (3, 5, 7, 9, 18)},
    **{f"resnet{6 * n + 2}_b": _Entry(partial(CifarResNet, n, shortcut="B"), *_CIFAR) for n in (3, 5, 7, 9, 18)},
    "vgg16": _Entry(partial(CifarVGG, 16), *_CIFAR),
    "vgg19": _Entry(partial(CifarVGG, 19), *_CIFAR),
    "mobilenetv2": _Entry(partial(MobileNetV2, small_images=True), *_CIFAR),
    "densenet40": _Entry(partial(CifarDenseNet, 40), *_CIFAR),
    "vit6": _Entry(CifarViT, *_CIFAR),
    "resnet50": _Entry(partial(ResNet, (3, 4, 6, 3)), *_IMAGENET),
    "resnet50_v1": _Entry(partial(ResNet, (3, 4, 6, 3), stride_first=True), *_IMAGENET),
    "mobilenetv2_imagenet": _Entry(MobileNetV2, *_IMAGENET),
}

# Networks whose weights have the same names and shapes and mean something else.
_TWINS = {
    "resnet50": "resnet50_v1",
    "resnet50_v1": "resnet50",
    "torchvision:resnet50": "resnet50_v1",
    "timm:resnet50": "resnet50_v1",
}


def twin(spec: str) -> str | None:
    """The model of the zoo that the same file of weights would fit as well, if there is one."""
    return _TWINS.get(spec)


def model_names() -> tuple[str, ...]:
    """The names of the zoo's own models."""
    return tuple(_ZOO)


def load_model(spec: str, *, weights: str | Path | None = None, classes: int | None = None) -> nn.Module:
    """The model that a name stands for, with fresh weights (torch's global seed decides them) or those of a file.

    spec: a name of the zoo, `torchvision:NAME`, `timm:NAME`, or `path/to/file.py:factory`, a function that returns an
    nn.Module and may take `classes` or `num_classes`.
    """
    if classes is not None and classes < 1:
        raise ModelError(f"classes is {classes}; a classifier needs at least 1.")
    model = _build(spec, classes)
    if weights is not None:
        load_checkpoint(model, weights, ignore=ignored_keys(spec))
    return model


def input_shape(spec: str) -> tuple[int, ...]:
    """The shape (channels, height, width) of one input of the model that a name stands for.

    A factory in a file says it by an attribute: `factory.input_shape = (3, 32, 32)`.
    """
    if spec in _ZOO:
        return _ZOO[spec].shape
    source, _, name = spec.partition(":")
    if is_file_factory(spec):
        with file_factory(spec, ModelError) as factory:
            shape = getattr(factory, "input_shape", None)
        if shape is None:
            raise ModelError(
                f"the input shape of {spec} is unknown; write `{spec.rpartition(':')[2]}.input_shape = (3, 32, 32)` "
                "(or what it is) below the function."
            )
        return tuple(int(size) for size in shape)
    if source == "torchvision" and name:
        return torchvision_input(name)
    if source == "timm" and name:
        return timm_input(name)
    raise ModelError(unknown_model(spec, list(_ZOO)))


def _build(spec: str, classes: int | None) -> nn.Module:
    if spec in _ZOO:
        entry = _ZOO[spec]
        return entry.build(classes=entry.classes if classes is None else classes)
    source, _, name = spec.partition(":")
    if is_file_factory(spec):
        return _from_file(spec, classes)
    if source == "torchvision" and name:
        return torchvision_model(name, classes)
    if source == "timm" and name:
        return timm_model(name, classes)
    raise ModelError(unknown_model(spec, list(_ZOO)))


def _from_file(spec: str, classes: int | None) -> nn.Module:
    wanted = {} if classes is None else {"classes": classes, "num_classes": classes}
    with file_factory(spec, ModelError) as factory:
        model = call_factory(factory, spec, ModelError, **wanted)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec} returned a {type(model).__name__}; it must return an nn.Module.")
    return model
