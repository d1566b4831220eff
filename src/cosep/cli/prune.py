"""cosep prune: the whole method on a named model and data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cosep.cli.common import (
    ConfigOption,
    DataOption,
    ImageSizeOption,
    MeanOption,
    StdOption,
    TrustOption,
    WeightsOption,
    console,
    numbers_of,
    print_json,
    run_model,
    trained_model,
)
from cosep.cli.options import configured
from cosep.cli.progress import shown
from cosep.cli.summary import summary_table
from cosep.config import batch_and_holdout
from cosep.errors import ConfigError
from cosep.reporting.words import printable


def prune_command(
    model: Annotated[
        str, typer.Argument(help="resnet56 | torchvision:resnet50 | timm:NAME | file.py:factory | a run folder")
    ],
    data: DataOption,
    out: Annotated[Path, typer.Option(help="The run folder; an interrupted run in it goes on.")],
    weights: WeightsOption = None,
    preset: Annotated[
        str, typer.Option(help="default: what works best as far as we measured; paper: the published protocol.")
    ] = "default",
    config: ConfigOption = None,
    plan: Annotated[
        Path | None, typer.Option(help="A plan from `cosep plan`, edited or not: keep the channels that it names.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Batch size for fine-tuning.", min=1, show_default="128; with paper on image folders 256"),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="The share of the training set held out for decisions.", show_default="0.1; with paper 0"),
    ] = None,
    image_size: ImageSizeOption = 224,
    mean: MeanOption = None,
    std: StdOption = None,
    trust: TrustOption = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write the log also as TensorBoard events, in the run folder.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the last line.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Prune a trained model: how much of each layer stays is found from the layer itself.

    Examples:

      cosep prune resnet56 --weights resnet56.safetensors --data cifar10:~/data --out run/

      cosep prune resnet56 --weights resnet56.safetensors --data cifar10:~/data --out half/ --max-macs 50% --epochs 0

      cosep prune resnet20 --weights r20.pt --data cifar10:~/data --out run/ --preset paper --p 3

      cosep prune my_net.py:build --weights net.pt --data imagefolder:~/photos --out run/ --max-macs 50%

      cosep prune run/ --data imagefolder:~/photos --out further/ --max-macs 70%
    """
    if not quiet:
        console.print(f"loading {model} and {data}", highlight=False, markup=False, soft_wrap=True)
    from cosep.cli.probe import check_trained
    from cosep.data import load_data
    from cosep.pipeline import prune
    from cosep.records import Plan
    from cosep.recovery.training import training_seconds
    from cosep.reporting.words import warnings_in_words
    from cosep.runs.results import PruneResult
    from cosep.storage.artifacts import is_saved

    settings = configured(preset, config, changes, model=model, data=data)
    batch_size, holdout = batch_and_holdout(preset, data, settings, batch_size, holdout)
    source = load_data(
        data,
        holdout=holdout,
        seed=settings.seed,
        batch_size=batch_size,
        image_size=image_size,
        mean=numbers_of(mean, "--mean"),
        std=numbers_of(std, "--std"),
    )
    classes = len(source.class_names) or None
    net: Any  # a network, or the result of a pruning before
    if again := is_saved(model):
        named = run_model(Path(model), trusted=trust)
        if weights is not None:
            raise ConfigError(f"{model} is a run folder, which has its own weights. Leave out --weights.")
        net, spec, checkpoint = PruneResult.load(model, named.architecture), named.spec, named.weights or ""
    else:
        net, spec = trained_model(model, weights, classes), model
        checkpoint = str(weights.resolve()) if weights else ""
    check_trained(spec, net.model if again else net, source, quiet=quiet)
    about = {
        "model": spec,
        "checkpoint": checkpoint,
        "classes": classes or 0,
        "input": list(source.input_shape),
        "data": data,
        "class_names": list(source.class_names),
        "batch_size": batch_size,
        "holdout": holdout,
        "mean": list(source.mean or ()),
        "std": list(source.std or ()),
    }
    if weights and (trained_for := training_seconds(weights)):
        about["training_seconds"] = trained_for
    with shown(quiet=quiet, run=out) as callbacks:
        result = prune(
            net,
            source.calibration,
            source.test,
            config=settings,
            train=source.train,
            holdout=source.holdout,
            run=out,
            about=about,
            plan=None if plan is None else Plan.load(plan),
            callbacks=callbacks,
            tensorboard=tensorboard,
        )
    if not quiet:
        console.print(summary_table(result.report))
        for warning in warnings_in_words(result.report):
            console.print(
                f"warning: {printable(warning)}", style="yellow", highlight=False, markup=False, soft_wrap=True
            )
    if json:
        print_json(result.report.to_document())
    console.print(str(out / "report.html"), highlight=False, markup=False, soft_wrap=True)
