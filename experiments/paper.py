"""The paper's figures (`paper.json`, with their source), to stand beside ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODELS = {
    "resnet56": "ResNet-56",
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "mobilenetv2": "MobileNet-V2",
    "mobilenetv2_imagenet": "MobileNet-V2",
    "densenet40": "DenseNet-40",
    "resnet50": "ResNet-50",
}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagefolder": "ImageNet-1K"}


def figures(*path: str) -> Any:
    """What the paper says at a path such as ("metric", "CIFAR-10/VGG-16", "jm"); None where it says nothing."""
    found: Any = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def key(model: str, data: str) -> str:
    """How the paper calls a model and a data set, both named as a command names them: "CIFAR-10/ResNet-56"."""
    name, source = model.rpartition(":")[2], data.partition(":")[0]
    return f"{DATA.get(source, source)}/{MODELS.get(name, name)}"


def headline(model: str, data: str) -> dict[str, Any] | None:
    """The row of the paper's main tables for a model and a data set."""
    rows = figures("headline")
    return next((row for row in rows if f"{row['dataset']}/{row['model']}" == key(model, data)), None)
