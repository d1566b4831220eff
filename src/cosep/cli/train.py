"""cosep train: the plain training loop that makes base models."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cosep.cli.common import DataOption, ImageSizeOption, MeanOption, StdOption, console, numbers_of, percent

RECIPE = "the model's recipe"


def train_command(
    model: Annotated[str, typer.Argument(help="resnet20 | vgg16 | torchvision:NAME | timm:NAME | file.py:factory")],
    data: DataOption,
    out: Annotated[Path, typer.Option(help="The file to write the trained weights to (safetensors).")],
    fast: Annotated[
        bool, typer.Option("--fast", help="A short recipe: 15 passes, one cycle of the rate, images that grow.")
    ] = False,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training data.", min=0.01, show_default=RECIPE)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images an update.", min=1, show_default=RECIPE)] = None,
    lr: Annotated[float | None, typer.Option(help="The peak learning rate of SGD.", show_default=RECIPE)] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of SGD.", show_default=RECIPE)] = None,
    warmup: Annotated[
        float | None, typer.Option(help="The part of the updates in which the rate rises.", show_default=RECIPE)
    ] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Of the cross-entropy.", show_default=RECIPE)] = None,
    ema: Annotated[
        float | None,
        typer.Option(help="The decay of the moving average of the weights; 0: no average.", show_default=RECIPE),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adamw or muon.", show_default=RECIPE)] = None,
    first_size: Annotated[
        float | None,
        typer.Option(help="The side of the first images, as a share; they grow in five steps.", show_default=RECIPE),
    ] = None,
    cutmix: Annotated[
        float | None, typer.Option(help="The share of the batches that CutMix mixes.", show_default=RECIPE)
    ] = None,
    channels_last: Annotated[
        bool | None,
        typer.Option(help="The memory format that convolutions are faster in.", show_default=RECIPE),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="A trained model of the same classes, whose outputs are targets beside the labels."),
    ] = None,
    teacher_weights: Annotated[Path | None, typer.Option(help="The teacher's weights.")] = None,
    distill: Annotated[
        float | None, typer.Option(help="The weight of the teacher's outputs in the loss.", show_default=RECIPE)
    ] = None,
    holdout: Annotated[float, typer.Option(help="The share of the training set that is held out.")] = 0.1,
    image_size: ImageSizeOption = 224,
    mean: MeanOption = None,
    std: StdOption = None,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the order of the data.")] = 0,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="Numeric precision: 32-true, 16-mixed, bf16-mixed (faster where the processor has it), ..."),
    ] = "32-true",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the last line.")] = False,
) -> None:
    """Train a model from scratch: SGD with Nesterov momentum, a warm-up and a cosine to zero.

    vgg16, vgg19, mobilenetv2, densenet40 and vit6 have recipes of their own (label smoothing, a moving average of the
    weights); the settings in use are shown, and every one has a flag.

    --fast makes a usable network in a small part of the time: 15 passes, one cycle of the rate, images that grow from
    half of their side to the whole.

    A training that was stopped goes on where it was when the same command is given again. The seconds that it took are
    written beside the weights, for the report of a pruning to count its own time against.

    Examples:

      cosep train vgg16 --data cifar10:~/data --out vgg16.safetensors --fast

      cosep train vgg16 --data cifar10:~/data --out vgg16.safetensors --epochs 60
    """
    from cosep.config import DeviceConfig
    from cosep.data import Loader, load_data
    from cosep.errors import ConfigError
    from cosep.measurement import accuracy
    from cosep.recovery.training import TRAINING_SECONDS, recipe, train
    from cosep.reporting.progress import training_shown
    from cosep.runs.fabric import launched
    from cosep.runs.folder import weights_digest
    from cosep.runs.place import held, write_weights
    from cosep.zoo import load_model

    given: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": weight_decay,
        "warmup": warmup,
        "label_smoothing": label_smoothing,
        "ema": ema,
        "seed": seed,
        "optimizer": optimizer,
        "first_size": first_size,
        "cutmix": cutmix,
        "channels_last": channels_last,
        "distill": distill,
    }
    settings = replace(recipe(model, fast=fast), **{name: value for name, value in given.items() if value is not None})
    source = load_data(
        data,
        holdout=holdout,
        seed=seed,
        batch_size=settings.batch_size,
        image_size=image_size,
        mean=numbers_of(mean, "--mean"),
        std=numbers_of(std, "--std"),
    )
    if (teacher is None) != (teacher_weights is None):
        raise ConfigError("a teacher is a trained network: give both --teacher MODEL and --teacher-weights FILE.")
    taught_by = (
        load_model(teacher, weights=teacher_weights, classes=len(source.class_names) or None) if teacher else None
    )
    fabric = launched(DeviceConfig(accelerator=accelerator, precision=precision))
    if not quiet:
        shown = ", ".join(f"{name.replace('_', ' ')} {_told(value)}" for name, value in asdict(settings).items())
        console.print(f"{model} on {data}: {shown}", highlight=False, markup=False, soft_wrap=True)
    took: list[float] = []
    told = _a_line_a_pass(len(source.train), settings.batch_size) if isinstance(source.train, Loader) else None
    with held(out) if fabric.is_global_zero else nullcontext():
        partial_file = out.with_name(out.name + ".partial")
        if partial_file.exists() and not quiet:
            console.print(f"going on from {partial_file}", highlight=False, markup=False, soft_wrap=True)
        with nullcontext() if quiet else training_shown(console) as bar:
            net = train(
                partial(load_model, model, classes=len(source.class_names) or None),
                source.train,
                settings,
                fabric=fabric,
                teacher=taught_by,
                on_update=None if quiet else bar or told,
                partial=partial_file,
                about={
                    "model": model,
                    "data": data,
                    "holdout": holdout,
                    "image_size": image_size,
                    "mean": list(source.mean or ()),
                    "std": list(source.std or ()),
                    "precision": precision,
                    "teacher": weights_digest(taught_by) if taught_by else None,
                },
                on_end=took.append,
            )
        if fabric.is_global_zero:
            write_weights(net, out, {TRAINING_SECONDS: f"{took[0]:.3f}"})
            partial_file.unlink(missing_ok=True)
    if not quiet:
        for name, part in (("held-out", source.holdout), ("test", source.test)):
            if part is not None:
                console.print(f"{name} accuracy {percent(accuracy(net, part))}", highlight=False)
    console.print(str(out), highlight=False)


def _told(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _a_line_a_pass(batches: int, batch_size: int) -> Callable[[int, int, float], None]:
    """Where there is no terminal to draw a bar on, as in a log: a line after every pass over the data."""
    losses: list[float] = []
    began = time.monotonic()

    def told(done: int, total: int, loss: float) -> None:
        nonlocal began
        losses.append(loss)
        if done % batches and done != total:
            return
        speed = len(losses) * batch_size / max(1e-9, time.monotonic() - began)
        mean = sum(losses) / len(losses)
        console.print(
            f"pass {done / batches:g} of {total / batches:g}: loss {mean:.3f}, {speed:.0f} images/s", highlight=False
        )
        losses.clear()
        began = time.monotonic()

    return told
