"""What the experiments that prune have in common: arguments, one trial in a run folder of its own, means over seeds."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cells as kept_cells

import cosep
from cosep.comparing import run_method, trial_of
from cosep.config import paper_recovery
from cosep.data import load_data
from cosep.measure import accuracy

Changes = Mapping[str, Mapping[str, Any]]


def parser(doc: str | None, *, model: str = "resnet56", seeds: int = 1) -> argparse.ArgumentParser:
    """The arguments that every such experiment takes."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default=model, help="a model as `cosep prune` names it")
    made.add_argument("--weights", type=Path, help="its trained weights")
    made.add_argument("--data", required=True, help="cifar10:DIR, cifar100:DIR or imagefolder:DIR")
    made.add_argument("--out", type=Path, required=True, help="a folder for the runs and the results; goes on there")
    made.add_argument("--seeds", type=int, default=seeds)
    made.add_argument("--set", action="append", default=[], metavar="STAGE.SETTING=JSON", help="for every trial")
    made.add_argument("--batch-size", type=int, default=128)
    made.add_argument("--quick", action="store_true", help="few images and updates, one seed: does it run?")
    return made


class Bench:
    """A model, its data and a results file that is filled trial by trial."""

    def __init__(self, args: argparse.Namespace, experiment: str) -> None:
        self.args = args
        self.seeds = range(1 if args.quick else args.seeds)
        self.about = {
            "experiment": experiment,
            "model": args.model,
            "data": args.data.partition(":")[0],
            "set": sorted(args.set),
            "quick": args.quick,
        }
        self.file = args.out / f"{experiment}.json"
        self.cells = kept_cells.read(self.file, self.about)
        self.common = _settings(args.set)
        if args.quick:
            quick = {"observe": {"images": 200}, "surgery": {"images": 100}, "recover": {"epochs": 0.02}}
            self.common = _merged(quick, self.common)
        source = load_data(args.data, batch_size=args.batch_size)
        self.model = cosep.load_model(args.model, weights=args.weights, classes=len(source.class_names) or None)
        if "base" not in self.cells:
            self._keep("base", {"accuracy": accuracy(self.model, source.test)})

    def trial(
        self,
        label: str,
        seed: int,
        *,
        preset: str = "default",
        changes: Changes | None = None,
        widths: Mapping[str, int] | None = None,
        method: str = "cosep",
    ) -> dict[str, Any]:
        """One run; its cell holds accuracy, cost and the widths that came of it. One that is there is not run again."""
        name = f"{label}/{seed}"
        if name not in self.cells:
            config = cosep.preset(preset)  # type: ignore[arg-type]
            if preset == "paper":
                config = cosep.replace_settings(
                    config, {"recover": paper_recovery(self.args.model, self.args.data.partition(":")[0])}
                )
            source = load_data(self.args.data, seed=seed, batch_size=self.args.batch_size)
            result = run_method(
                method,
                self.model,
                source,
                config=cosep.replace_settings(config, _merged(changes or {}, self.common)),
                seed=seed,
                widths=widths or {},
                run=self.args.out / "runs" / name.replace("/", "-").replace(" ", "-"),
                about={"model": self.args.model, "data": self.about["data"]},
            )
            entry = asdict(trial_of(method, seed, result, source.test))
            entry["widths"] = {plan.group: len(plan.kept) for plan in result.plan.groups}
            entry["knees"] = sum(
                plan.selection is not None and plan.selection.k is not None for plan in result.plan.groups
            )
            entry["speedup"] = result.report["change"]["speedup"]
            self._keep(name, entry)
            print(f"{name}: {100 * entry['accuracy']:.2f} %, MACs {100 * entry['macs']:.1f} %", flush=True)
        return self.cells[name]

    def over_seeds(self, label: str, key: str = "accuracy", scale: float = 100.0) -> str:
        """Mean ± standard deviation of a figure over the trials of a label."""
        return spread(scale * cell[key] for name, cell in self.cells.items() if name.rpartition("/")[0] == label)

    def _keep(self, name: str, cell: dict[str, Any]) -> None:
        self.cells[name] = cell
        kept_cells.write(self.file, self.about, self.cells)


def spread(values: Iterable[float]) -> str:
    """Mean ± standard deviation as text; the value alone if there is one."""
    found = list(values)
    if not found:
        return "–"
    return f"{statistics.mean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


def shown(value: float | None) -> str:
    """A figure of the paper's, or a dash where it has none."""
    return "–" if value is None else f"{value:.2f}"


def _settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, _, value = text.partition("=")
        stage, _, key = path.partition(".")
        changes.setdefault(stage, {})[key] = json.loads(value)
    return changes


def _merged(first: Changes, second: Changes) -> dict[str, dict[str, Any]]:
    return {stage: {**first.get(stage, {}), **second.get(stage, {})} for stage in {**first, **second}}
