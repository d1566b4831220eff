"""What a process holds while it prunes one group after another: memory, file handles, hooks, tensors, files.

    python benchmarks/long_run.py --groups 200 --out DIR

A chain of small convolutions, each with BatchNorm and ReLU, on the embedded images of digits: every convolution but
the last is a group of its own, every group is cut to three quarters and recovered for one update, in a run folder.
After every group the process is asked what it holds; what grows is shown as a line fitted from group 20 on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.records import Outcome

WARM = 20  # groups after which caches and allocators have what they need
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def chain(groups: int, width: int = 8) -> nn.Module:
    """A network with so many prunable groups, ten classes and inputs (1, 8, 8)."""
    layers: list[nn.Module] = []
    for index in range(groups):
        layers += [nn.Conv2d(width if index else 1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def held(folder: Path) -> dict[str, int]:
    """What this process and its run folder hold now."""
    gc.collect()
    objects = gc.get_objects()
    modules = [thing for thing in objects if issubclass(type(thing), nn.Module)]
    # Ordinary ones: what other code of this process has traced or made sparse has no memory to ask for.
    kinds = (Tensor, nn.Parameter)
    tensors = [t for t in objects if type(t) in kinds and t.layout == torch.strided and not t.is_meta]
    found = {
        "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "file_handles": len(os.listdir("/proc/self/fd")) - 1,  # one of them is that of this listing
        "hooks": sum(len(getattr(module, kind, ())) for module in modules for kind in HOOKS),
        "modules": len(modules),
        "tensors": len(tensors),
        "tensor_bytes": sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()),
        "objects": len(objects),
    }
    for name in ("log.jsonl", "checkpoint.safetensors"):
        path = folder / name
        found[name] = path.stat().st_size if path.exists() else 0
    found["evidence"] = sum(path.stat().st_size for path in folder.glob("evidence/*"))
    found["folder_files"] = sum(path.is_file() for path in folder.rglob("*"))
    return found


def measured_run(groups: int, folder: Path, told: Callable[[dict[str, Any]], None] = lambda row: None) -> list[Any]:
    """Prune such a chain in a folder: what is held after each of its groups."""
    import cosep
    from cosep.data import load_data

    torch.manual_seed(0)
    model = chain(groups)
    data = load_data("digits", batch_size=32)
    found = [group for group in cosep.find_groups(model, torch.zeros(1, 1, 8, 8)) if not group.why_not]
    assert len(found) == groups, f"{len(found)} groups instead of {groups}"
    changes = {
        "order": "one-by-one",
        "select": {"criterion": "cosep"},
        "observe": {"images": 64},
        "rebuild": {"images": 64},
        "recover": {"schedule": "per-layer", "share": 0.05, "group_epochs": 0.5, "distill": 0.0, "features": 0.0},
        "device": {"accelerator": "cpu"},
    }
    rows: list[Any] = []
    started = time.perf_counter()

    def on_group(_outcome: Outcome) -> None:
        rows.append({"group": len(rows) + 1, "seconds": round(time.perf_counter() - started, 3), **held(folder)})
        told(rows[-1])

    cosep.prune(
        model,
        data.calibration,
        None,
        config=cosep.replace_settings(cosep.preset(), changes),
        train=data.train,
        run=folder,
        callbacks=cosep.Callbacks(on_group=on_group),
        widths={group.name: group.width * 3 // 4 for group in found},
    )
    return rows


def growth(rows: list[Any], what: str) -> float:
    """By how much something grows a group, from the line of least squares through the groups after the first few."""
    import numpy as np

    late = [row for row in rows if row["group"] >= WARM]
    return float(np.polyfit([row["group"] for row in late], [row[what] for row in late], 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="scratch folder; long_run.json in it has every group")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(given.out / "run", ignore_errors=True)
    rows = measured_run(given.groups, given.out / "run", lambda row: print(json.dumps(row), flush=True))
    names = [name for name in rows[0] if name != "group"]
    early, late = rows[min(WARM, len(rows)) - 1], rows[-1]
    lines = {
        name: {"early": early[name], "late": late[name], "a_group": round(growth(rows, name), 3)} for name in names
    }
    print(f"| after group | {early['group']} | {late['group']} | growth a group |\n|---|---:|---:|---:|")
    for name, line in lines.items():
        print(f"| {name} | {line['early']:,} | {line['late']:,} | {line['a_group']:,} |")
    result = {"groups": given.groups, "growth": lines, "rows": rows}
    (given.out / "long_run.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
