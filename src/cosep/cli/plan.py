"""cosep plan: which channels would stay and what that would cost; nothing is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cosep.cli.common import (
    SPEAKS,
    ConfigOption,
    DataOption,
    ImageSizeOption,
    MeanOption,
    ModelArgument,
    StdOption,
    WeightsOption,
    console,
    numbers_of,
    print_json,
    trained_model,
)
from cosep.cli.options import configured


def plan_command(
    model: ModelArgument,
    data: DataOption,
    weights: WeightsOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file, to be edited or applied.")] = None,
    preset: Annotated[str, typer.Option(help="default or paper: the settings to start from.")] = "default",
    config: ConfigOption = None,
    image_size: ImageSizeOption = 224,
    mean: MeanOption = None,
    std: StdOption = None,
    holdout: Annotated[float, typer.Option(help="The share of the training set that is left out.")] = 0.1,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on standard output.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Decide which channels stay, from the uncut network, and show what that would cost; nothing is cut.

    `cosep prune --plan plan.json` carries a plan out, edited or not.

    Examples:

      cosep plan resnet56 --weights resnet56.safetensors --data cifar10:~/data --max-macs 50%

      cosep plan resnet20 --weights r20.pt --data cifar10:~/data --criterion l2 --out plan.json
    """
    console.print(f"loading {model} and {data}", highlight=False, markup=False, soft_wrap=True)
    from cosep.cli.probe import check_trained
    from cosep.data import load_data
    from cosep.pipeline import plan
    from cosep.surgery import plan_to_document

    settings = configured(preset, config, changes, model=model, data=data)
    source = load_data(
        data,
        holdout=holdout,
        seed=settings.seed,
        image_size=image_size,
        mean=numbers_of(mean, "--mean"),
        std=numbers_of(std, "--std"),
    )
    net = trained_model(model, weights, len(source.class_names) or None)
    check_trained(model, net, source)
    made = plan(net, source.calibration, config=settings)
    if out is not None:
        made.save(out)
    if json:
        print_json(plan_to_document(made))
    elif SPEAKS:
        typer.echo(str(made))
    if out is not None:
        console.print(str(out), highlight=False, markup=False, soft_wrap=True)
