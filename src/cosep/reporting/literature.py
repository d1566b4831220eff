"""What others published for a network: the rows of the paper's main tables, to put a run among them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

# How the paper calls what a command names.
_MODELS = {
    "resnet56": "ResNet-56",
    "vgg16": "VGG-16",
    "mobilenetv2": "MobileNet-V2",
    "mobilenet_v2": "MobileNet-V2",
    "mobilenetv2_imagenet": "MobileNet-V2",
    "resnet50": "ResNet-50",
}
_DATA = {"cifar10": "CIFAR-10", "imagefolder": "ImageNet-1K"}


@dataclass(frozen=True)
class Published:
    """A row of a table: top-1 % before and after, how many times fewer FLOPs, and whether ratios are found by it."""

    method: str
    automatic: bool
    base: float
    pruned: float
    speedup: float
    std: float | None = None


def networks() -> dict[str, tuple[Published, ...]]:
    """All tables, by data set and network: {"CIFAR-10/ResNet-56": rows}."""
    text = (files("cosep.reporting") / "literature.json").read_text(encoding="utf-8")
    return {name: tuple(Published(**row) for row in rows) for name, rows in json.loads(text)["networks"].items()}


def published(model: str, data: str) -> tuple[Published, ...]:
    """The rows for a model and a data set as a command names them; none where the paper has no table for them."""
    name, source = model.rpartition(":")[2].lower(), data.partition(":")[0]
    return networks().get(f"{_DATA.get(source, source)}/{_MODELS.get(name, name)}", ())
