"""cosep train: the plain training loop that makes base models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from cosep.cli.common import console, percent


def train_command(
    model: Annotated[str, typer.Argument(help="resnet20 | vgg16 | torchvision:NAME | timm:NAME | file.py:factory")],
    data: Annotated[str, typer.Option(help="digits | cifar10:DIR | cifar100:DIR | imagefolder:DIR | file.py:factory")],
    out: Annotated[Path, typer.Option(help="The file to write the trained weights to (safetensors).")],
    epochs: Annotated[float, typer.Option(help="Passes over the training data.", min=0.01)] = 30.0,
    lr: Annotated[float, typer.Option(help="The peak learning rate of SGD.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="Of SGD.")] = 5e-4,
    label_smoothing: Annotated[float, typer.Option(help="Of the cross-entropy.")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    holdout: Annotated[float, typer.Option(help="The share of the training set that is held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the order of the data.")] = 0,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the last line.")] = False,
) -> None:
    """Train a model from scratch: SGD with Nesterov momentum, a warm-up and a cosine to zero.

    Example: cosep train resnet20 --data cifar10:~/data --out resnet20.safetensors --epochs 30
    """
    from safetensors.torch import save_model

    from cosep.config import DeviceConfig
    from cosep.data import load_data
    from cosep.fabric import launched
    from cosep.measure import accuracy
    from cosep.training import TrainConfig, train
    from cosep.zoo import load_model

    settings = TrainConfig(epochs=epochs, lr=lr, weight_decay=weight_decay, label_smoothing=label_smoothing, seed=seed)
    source = load_data(data, holdout=holdout, seed=seed, batch_size=batch_size)
    fabric = launched(DeviceConfig(accelerator=accelerator))
    with Progress(console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task("training", total=None)
        net = train(
            partial(load_model, model, classes=len(source.class_names) or None),
            source.train,
            settings,
            fabric=fabric,
            on_update=lambda done, total, loss: progress.update(
                bar, completed=done, total=total, description=f"training, loss {loss:.3f}"
            ),
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    save_model(net, str(out))
    if not quiet:
        for name, part in (("held-out", source.holdout), ("test", source.test)):
            if part is not None:
                console.print(f"{name} accuracy {percent(accuracy(net, part))}", highlight=False)
    console.print(str(out), highlight=False)
