"""What all the scripts have in common: arguments, data and model, what results are about, mistakes told in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

import cosep
from cosep.cli.common import numbers_of
from cosep.data import Data, load_data
from cosep.errors import CosepError
from cosep.groups.numbering import output_columns
from cosep.models.heap import keep_freed_memory
from cosep.plugins import without_folder
from cosep.records import ClassHistograms, ClassMoments, Group
from cosep.runs.folder import weights_digest
from cosep.runs.state import first_images

QUICK_IMAGES = 300  # of the test data, with --quick

Observed = TypeVar("Observed", ClassMoments, ClassHistograms)


def arguments(doc: str | None, *, model: str, out: str, quick: str) -> argparse.ArgumentParser:
    """The arguments of every script that needs a trained network."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default=model, help="a model as `cosep prune` names it")
    made.add_argument("--weights", type=Path, required=True, help="its trained weights")
    made.add_argument("--data", required=True, help="cifar10:DIR, cifar100:DIR or imagefolder:DIR")
    made.add_argument("--holdout", type=float, default=0.0, help="the share of the training set to leave out; paper: 0")
    made.add_argument("--mean", help="of the inputs' channels, such as 0.49,0.48,0.45; by default the data set's usual")
    made.add_argument("--std", help="of the inputs' channels, likewise")
    made.add_argument("--out", type=Path, required=True, help=f"{out}; goes on there")
    made.add_argument("--quick", action="store_true", help=f"{quick}: does it run?")
    return made


def run(main: Callable[[], None]) -> None:
    """Run a script; what its user got wrong becomes one line and exit code 2."""
    keep_freed_memory()
    try:
        main()
    except (CosepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def data_of(args: argparse.Namespace, **settings: Any) -> Data:
    """The data that was asked for; with --quick only the first few test images."""
    scaling = {name: numbers_of(getattr(args, name), f"--{name}") for name in ("mean", "std")}
    data = load_data(args.data, holdout=args.holdout, **scaling, **settings)
    return replace(data, test=list(first_images(data.test, QUICK_IMAGES, seed=0))) if args.quick else data


def loaded(args: argparse.Namespace, experiment: str, **settings: Any) -> tuple[Data, nn.Module, dict[str, Any]]:
    """The data, the model, and what results of them are about, so that no others are ever mixed with them."""
    data = data_of(args, **settings)
    model = cosep.load_model(args.model, weights=args.weights, classes=len(data.class_names) or None)
    about = {
        "experiment": experiment,
        "model": without_folder(args.model),
        "weights": weights_digest(model)[:16],
        "data": without_folder(args.data),
        "training_images": counted(data.train),
        "test_images": counted(data.test),
        "quick": args.quick,
        "holdout": args.holdout,
        **{name: getattr(args, name) for name in ("mean", "std") if getattr(args, name)},
        **settings,
    }
    return data, model, about


def papers_batch(data: str) -> int:
    """The batch size of the paper's recovery."""
    return 256 if data.startswith("imagefolder") else 128


def counted(batches: Iterable[Any]) -> int | None:
    """The number of images, where it is known without reading them."""
    if isinstance(batches, list):
        return sum(len(labels) for _, labels in batches)
    labels = getattr(batches, "labels", None)
    return None if labels is None else len(labels)


def parts_of(group: Group, found: Mapping[str, Observed]) -> list[Observed]:
    """What was observed of a group's channels, a part for each output that they have, as the pipeline takes it."""
    return [found[name].of_channels(column) for name in group.producers for column in output_columns(group, name, {})]


def short_names(runs: Sequence[Path]) -> dict[str, Path]:
    """Run folders by as much of the end of their paths as tells them apart."""
    places = list(dict.fromkeys(run.resolve() for run in runs))
    parts = 1
    while len(names := {"/".join(place.parts[1:][-parts:]): place for place in places}) < len(places):
        parts += 1
    return names
