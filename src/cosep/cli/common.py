"""What several commands share: the screen, the model of a run, shapes in words."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from cosep.errors import ConfigError, CosepError, RunError
from cosep.models.modes import evaluating
from cosep.models.size import TooLarge, at_most
from cosep.plugins import is_file_factory
from cosep.runs.folder import MOST_INPUTS, read_description
from cosep.storage.artifacts import read_documents
from cosep.surgery import fingerprint
from cosep.zoo import input_shape, load_model

# Of several processes of one run, the first speaks.
SPEAKS = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0
# A constructor may replace what it made, such as a head for another number of classes.
SLACK = 4
# What a user reads goes to standard error, so that standard output stays clean for `--json`.
console = Console(stderr=True, quiet=not SPEAKS)


@dataclass(frozen=True)
class RunModel:
    """The uncut model that a run folder was made from."""

    spec: str
    weights: str | None
    classes: int | None
    shape: tuple[int, ...]
    fingerprint: str = ""  # of the uncut model, where the run's plan says it
    parameters: int = 0  # that building the uncut model may make, where the run's report says how many it has

    def uncut(self) -> nn.Module:
        """The model with the weights that the run started from."""
        self._check_size()
        return load_model(self.spec, weights=self.weights, classes=self.classes)

    def architecture(self) -> nn.Module:
        """The model without its weights: enough to load the pruned ones into."""
        self._check_size()
        return load_model(self.spec, classes=self.classes)

    def _check_size(self) -> None:
        """Refuse a model that was not pruned here before its weights take any memory: a folder may name any."""
        if not self.fingerprint or is_file_factory(self.spec):
            return
        try:
            with torch.device("meta"), at_most(self.parameters):
                found = fingerprint(load_model(self.spec, classes=self.classes))
        except CosepError:
            raise
        except TooLarge:
            found = ""
        except Exception:  # a constructor that needs values, and gets them: up to the size that is known
            try:
                with at_most(self.parameters):
                    found = fingerprint(load_model(self.spec, classes=self.classes))
            except TooLarge:
                found = ""
        if found != self.fingerprint:
            raise RunError(
                f"the run was not made from {self.spec} with {self.classes or 'its own number of'} classes, which its "
                "config.toml names: the layers differ. Nothing of it was run."
            )

    def example(self, batch: int = 1) -> Tensor:
        """A random input."""
        return torch.randn(batch, *self.shape, generator=torch.Generator().manual_seed(0))


def trained_model(spec: str, weights: Path | None, classes: int | None) -> nn.Module:
    """The network that is to be pruned; a factory in a Python file may give it its weights by itself."""
    model = load_model(spec, weights=weights, classes=classes)
    if weights is None and not is_file_factory(spec):
        raise ConfigError(
            f"without --weights, {spec} is an untrained network, and nothing can be learnt from its channels. Give "
            f"--weights FILE; `cosep train {spec} --data DATA --out FILE` makes such a file."
        )
    return model


TrustOption = Annotated[
    bool, typer.Option("--trust", help="Run the Python file that the run folder names as its model.")
]


def run_model(folder: Path, *, trusted: bool = False) -> RunModel:
    """The model that a run folder's config.toml names; one in a Python file only if the user trusts that file."""
    about = read_description(folder).get("about", {})
    plan, report = read_documents(folder)  # refuses a config.toml that was altered since
    if not about.get("model"):
        raise RunError(
            f"{folder}/config.toml names no model, as the run was started from Python. "
            "Use cosep.load(folder, factory) and the functions of the library there."
        )
    if not about.get("input"):
        raise RunError(f"{folder}/config.toml does not say what shape an input has. Put back a copy of it.")
    if is_file_factory(about["model"]) and not trusted:
        raise RunError(
            f"{folder}/config.toml names the model {about['model']!r}, and to open it would run that file. Nothing was "
            "run. Where you know the file, add --trust."
        )
    return RunModel(
        about["model"],
        about.get("checkpoint") or None,
        about.get("classes") or None,
        tuple(about["input"]),
        plan.steps[0].fingerprint,
        SLACK * int((report.get("earlier") or [report])[0].get("before", {}).get("parameters", 0)),
    )


def check_example(model: nn.Module, example: Tensor) -> None:
    """Refuse an input on which the model fails, with its shape."""
    try:
        with evaluating(model):
            model(example)
    except Exception as error:  # whatever the model's forward raises
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"the model fails on an input of shape {tuple(example.shape[1:])} ({first}). Give the shape that it was "
            "made for with --input."
        ) from error


def shape_of(text: str | None, spec: str) -> tuple[int, ...]:
    """An input shape such as "3,32,32", or the model's own."""
    if text is None:
        return input_shape(spec)
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"--input is {text!r}; give the shape of one input, such as 3,224,224.")
    if math.prod(shape) > MOST_INPUTS:
        raise ConfigError(f"--input is {text!r}, {math.prod(shape):,} numbers; at most {MOST_INPUTS:,} are taken.")
    return shape


# What the commands that read a model and data have in common.
ModelArgument = Annotated[
    str, typer.Argument(help="resnet56 | torchvision:resnet50 | timm:NAME | path/to/file.py:factory")
]
DataOption = Annotated[
    str, typer.Option(help="digits | cifar10:DIR | cifar100:DIR | imagefolder:DIR | file.py:factory")
]
WeightsOption = Annotated[Path | None, typer.Option(help="The trained weights: safetensors or a state dict.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings; flags win over it.")]
ImageSizeOption = Annotated[int, typer.Option(help="The side of an image folder's images.", min=1)]
MeanOption = Annotated[
    str | None,
    typer.Option(
        "--mean", help="Of the inputs' channels, such as 0.49,0.48,0.45.", show_default="the data set's usual"
    ),
]
StdOption = Annotated[
    str | None,
    typer.Option("--std", help="Of the inputs' channels, such as 0.25,0.24,0.26.", show_default="the data set's usual"),
]


def numbers_of(text: str | None, flag: str) -> tuple[float, ...] | None:
    """Numbers such as "0.49,0.48,0.45"; None if nothing was given."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} is {text!r}; give a number for each channel, such as 0.49,0.48,0.45.") from None


def print_json(document: Mapping[str, Any]) -> None:
    """A document on standard output."""
    if SPEAKS:
        typer.echo(json.dumps(document, indent=2))


def percent(value: float | None) -> str:
    """A share as text."""
    return "–" if value is None else f"{100 * value:.2f} %"


def count(value: float) -> str:
    """A large number as text."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:g}"
