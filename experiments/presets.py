"""The presets `paper` and `default` on a real network: same widths, same number of updates, one table.

    python experiments/presets.py --model resnet20 --weights resnet20_cifar10.safetensors --data cifar10:DIR --out DIR

Each run is resumable (kill it and start it again). Writes OUT/presets-MODEL.json and prints the table. Every decision
rests on a held-out tenth of the training set; the test set is only the last column.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import cosep
from cosep.cli.progress import group_line
from cosep.data import load_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--presets", default="paper,default")
    parser.add_argument("--set", action="append", default=[], help="stage.setting=JSON, for every preset")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the updates: does it run?")
    args = parser.parse_args()
    rows = []
    for seed in range(args.seeds):
        widths: dict[str, int] | None = None
        for name in args.presets.split(","):
            report, plan = run(args, name, seed, widths)
            widths = widths or {g.group: len(g.kept) for g in plan.groups}
            rows.append({"preset": name, "seed": seed, **figures(report)})
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"presets-{args.model}.json").write_text(
        json.dumps({"model": args.model, "rows": rows}, indent=1) + "\n"
    )
    print(table(rows))


def run(args: argparse.Namespace, name: str, seed: int, widths: dict[str, int] | None) -> tuple[dict, cosep.Plan]:
    """One run in its own folder; the widths, if given, are those of the first preset."""
    changes: dict = {"seed": seed, "select": {"seed": seed}}
    for text in args.set:
        path, _, value = text.partition("=")
        stage, _, key = path.partition(".")
        changes.setdefault(stage, {})[key] = json.loads(value)
    if args.quick:
        changes.setdefault("recover", {})["epochs"] = 0.02
    data = load_data(args.data, seed=seed)
    model = cosep.load_model(args.model, weights=args.weights)
    started = time.time()

    def told(entry: dict) -> None:
        print(f"{time.time() - started:7.0f} s  {group_line(entry, before['macs'])}", flush=True)

    before: dict = {}
    result = cosep.prune(
        model,
        data.calibration,
        data.test,
        config=cosep.replace_settings(cosep.preset(name), changes),
        train=data.train,
        holdout=data.holdout,
        run=args.out / f"{args.model}-{name}-{seed}",
        widths=widths,
        callbacks=cosep.Callbacks(on_start=lambda _groups, _done, found: before.update(found), on_group=told),
    )
    return result.report, result.plan


def figures(report: dict) -> dict:
    seconds = report["seconds"]
    recoveries = (
        [report["recovery"]] if report["recovery"] else [g["recovery"] for g in report["groups"] if "recovery" in g]
    )
    return {
        "test_before": report["before"]["accuracy"],
        "test_after": report["after"]["accuracy"],
        "holdout_after_cutting": report["groups"][-1]["accuracy"] if report["recovery"] else None,
        "holdout_after": report["holdout_accuracy"]["after"],
        "macs": report["change"]["macs"],
        "parameters": report["change"]["parameters"],
        "updates": sum(r["updates"] for r in recoveries),
        "seconds": sum(seconds.values()),
        "overhead": sum(seconds[s] for s in ("observe", "profile", "select")) / sum(seconds.values()),
        "speedup": report["change"]["speedup"],
        "widths": {g["group"]: g["kept"] for g in report["groups"]},
    }


def table(rows: list[dict]) -> str:
    lines = ["| preset | MACs left | updates | held-out | test | minutes |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["preset"] for row in rows):
        mine = [row for row in rows if row["preset"] == name]

        def over(key: str, scale: float = 100.0, mine: list[dict] = mine) -> str:
            values = [scale * row[key] for row in mine]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            return f"{statistics.mean(values):.2f}{spread}"

        lines.append(
            f"| {name} | {over('macs')} % | {mine[0]['updates']} | {over('holdout_after')} | {over('test_after')} "
            f"| {over('seconds', 1 / 60)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
