"""What the experiments that prune have in common: arguments, one trial in a run folder of its own, means over seeds."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import cells as kept_cells
from common import arguments, data_of, loaded, papers_batch

import cosep
from cosep.comparison.trials import accuracy_there, run_method, trial_of
from cosep.config import paper_recovery
from cosep.data import Data
from cosep.errors import ConfigError

Changes = Mapping[str, Mapping[str, Any]]
# What the paper's ablations are about: its own way to decide, one group after another, whatever the preset's is.
PAPERS_SELECTION = {"order": "one-by-one", "select": {"criterion": "cosep", "width_rule": "knee"}}
QUICK = {"observe": {"images": 200}, "rebuild": {"images": 100}, "recover": {"group_epochs": 0.02}}


def parser(doc: str | None, *, model: str = "resnet56", seeds: int = 1) -> argparse.ArgumentParser:
    """The arguments that every such experiment takes."""
    made = arguments(
        doc, model=model, out="a folder for the runs and the results", quick="few images and updates, one seed"
    )
    made.add_argument("--seeds", type=int, default=seeds)
    add_settings(made)
    made.add_argument("--batch-size", type=int, help="by default the paper's: 128, for image folders 256")
    return made


def add_settings(made: argparse.ArgumentParser) -> None:
    """The option that changes settings of all trials."""
    made.add_argument("--set", action="append", default=[], metavar="STAGE.SETTING=JSON", help="for every trial")


class Bench:
    """A model, its data and a results file that is filled trial by trial."""

    def __init__(self, args: argparse.Namespace, experiment: str) -> None:
        self.args = args
        args.batch_size = args.batch_size or papers_batch(args.data)
        self.seeds = range(1 if args.quick else args.seeds)
        self.common = merged(QUICK if args.quick else {}, settings_of(args.set))
        config = cosep.replace_settings(cosep.preset(), self.common)  # refuses a wrong --set before anything is run
        data, self.model, self.about = loaded(args, experiment, batch_size=args.batch_size)
        self.about |= {"set": sorted(args.set)}
        if "preset" in args:
            self.about |= {"preset": args.preset}
        if "epochs" in args and args.epochs:
            self.about |= {"epochs": args.epochs}
        self.file = args.out / f"{experiment}.json"
        self.cells = kept_cells.read(self.file, self.about)
        if "base" not in self.cells:
            self._keep("base", {"accuracy": accuracy_there(self.model, data.test, config.device)})

    def first_widths(self) -> dict[str, int]:
        """The widths of the trial that was finished first, whichever row it is of; none if there is no trial yet."""
        return next((cell["widths"] for cell in self.cells.values() if "widths" in cell), {})

    def trial(
        self,
        label: str,
        seed: int,
        *,
        preset: str = "default",
        changes: Changes | None = None,
        widths: Mapping[str, int] | None = None,
        method: str | None = None,
        ablation: bool = False,
        chosen: Callable[[Data], Mapping[str, Sequence[int]]] | None = None,
    ) -> dict[str, Any]:
        """One run; its cell holds accuracy, cost and the widths that came of it. One that is there is not run again.

        method: a criterion in place of the settings' own. ablation: decide as the paper does, also in `default`.
        chosen: the channels of each group that stay, in place of a criterion and a width rule.
        """
        name = f"{label}/{seed}"
        given = settings_of(self.args.set)
        if taken := [f"{s}.{key}" for s, part in (changes or {}).items() for key in part if key in given.get(s, {})]:
            raise ConfigError(f"--set {taken[0]}: the rows of this table differ in it. Leave it out.")
        if name not in self.cells:
            config = cosep.preset(preset)  # type: ignore[arg-type]
            if preset == "paper":
                config = cosep.replace_settings(
                    config, {"recover": paper_recovery(self.args.model, self.args.data.partition(":")[0])}
                )
            if ablation:
                config = cosep.replace_settings(config, PAPERS_SELECTION)
            config = cosep.replace_settings(config, merged(changes or {}, self.common))
            source = data_of(self.args, seed=seed, batch_size=self.args.batch_size)
            method = method or config.select.criterion
            run = self.args.out / "runs" / name.replace("/", "-").replace(" ", "-")
            about = {"model": self.args.model, "data": self.about["data"]}
            if chosen is None:
                result = run_method(
                    method, self.model, source, config=config, seed=seed, widths=widths or {}, run=run, about=about
                )
            else:
                plan = self._plan(chosen(source), source)
                config = replace(config, limits=cosep.LimitConfig(), seed=seed)
                result = cosep.prune(
                    self.model, source.calibration, config=config, train=source.train, run=run, about=about, plan=plan
                )
            entry = asdict(trial_of(method, seed, result, source.test, device=config.device))
            entry["widths"] = {plan.group: len(plan.kept) for plan in result.plan.groups}
            entry["knees"] = knees(result.plan)
            self._keep(name, entry)
            print(f"{name}: {100 * entry['accuracy']:.2f} %, MACs {100 * entry['macs']:.1f} %", flush=True)
        return self.cells[name]

    def _plan(self, kept: Mapping[str, Sequence[int]], source: Data) -> cosep.Plan:
        """A plan that keeps these channels; a criterion that needs no passes makes the plan that is then edited."""
        widths = {name: len(channels) for name, channels in kept.items()}
        made = cosep.plan(self.model, source.calibration, criterion="l2", width_rule="given", widths=widths)
        return made.with_kept(kept)

    def over_seeds(self, label: str, key: str = "accuracy", scale: float = 100.0) -> str:
        """Mean ± standard deviation of a figure over the trials of a label."""
        return spread(scale * cell[key] for name, cell in self.cells.items() if name.rpartition("/")[0] == label)

    def _keep(self, name: str, cell: dict[str, Any]) -> None:
        self.cells[name] = cell
        kept_cells.write(self.file, self.about, self.cells)


def knees(plan: cosep.Plan) -> int:
    """In how many groups a knee decided the width; one that was given is none, whatever it was clustered into."""
    return sum(group.reason == "knee" for group in plan.groups)


def spread(values: Iterable[float]) -> str:
    """Mean ± standard deviation as text; the value alone if there is one."""
    found = list(values)
    if not found:
        return "–"
    return f"{statistics.mean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


def shown(value: float | None) -> str:
    """A figure of the paper's, or a dash where it has none."""
    return "–" if value is None else f"{value:.2f}"


def settings_of(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The settings that `--set STAGE.SETTING=JSON` gives, by stage."""
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, _, value = text.partition("=")
        stage, _, key = path.partition(".")
        try:
            changes.setdefault(stage, {})[key] = json.loads(value)
        except ValueError as error:
            example = "recover.schedule='\"none\"'"
            raise ConfigError(f"--set needs JSON: quote strings, as in {example}; found {text}.") from error
    return changes


def merged(first: Changes, second: Changes) -> dict[str, dict[str, Any]]:
    """Changes of settings, the second over the first."""
    return {stage: {**first.get(stage, {}), **second.get(stage, {})} for stage in {**first, **second}}
