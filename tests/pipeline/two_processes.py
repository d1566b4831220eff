"""Run by torchrun: prune digits on several processes; the first one writes what it found.

torchrun --nproc_per_node 2 two_processes.py WEIGHTS FOLDER
"""

import atexit
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import cosep
from cosep.data import load_data
from cosep.runs import search
from cosep.runs.fabric import batches_of_rank, launched, merged_over_ranks
from cosep.runs.folder import weights_digest

TASKS = Path("/proc/self/task")
LAYERS = ("layer1.0.conv1", "layer3.0.conv1")


search.STEPS = 2  # as in the tests that compare with this


def settings():
    changes = {
        "observe": {"images": 500},
        "rebuild": {"images": 200},
        "recover": {"share": 0.25, "group_epochs": 1.0},
        "device": {"accelerator": "cpu"},
    }
    return cosep.replace_settings(cosep.preset(), changes)


def untrained():
    """Half of the MACs, from measured damage, and what is left rebuilt; few positions of each image."""
    changes = {
        "rebuild": {"images": 600, "rows": 1, "positions": 9},
        "recover": {"schedule": "none"},
        "limits": {"max_macs": "50%"},
        "device": {"accelerator": "cpu"},
    }
    return cosep.replace_settings(cosep.preset(), changes)


def write_threads(file):
    if TASKS.exists():
        file.write_text("".join((task / "comm").read_text() for task in TASKS.iterdir()))


def main(weights, folder):
    torch.set_num_threads(1)
    folder = Path(folder)
    # Registered first, so that it runs last: what is left when the interpreter begins to shut down.
    atexit.register(write_threads, folder / f"threads-{os.environ['RANK']}.txt")
    data = load_data("digits", batch_size=64, eval_batch_size=100)
    model = cosep.load_model("digits_cnn", weights=weights, classes=10)
    config = settings()
    fabric = launched(config.device)
    batches = batches_of_rank(data.calibration, fabric)
    moments = merged_over_ranks(cosep.observe(model, batches, LAYERS, classes=10, partial=True), fabric)
    result = cosep.prune(
        model, data.calibration, None, config=config, train=data.train, holdout=data.holdout, run=folder / "run"
    )
    rebuilt = cosep.prune(model, data.calibration, None, config=untrained(), holdout=data.holdout)
    digests = fabric.all_gather(torch.tensor([int(weights_digest(result.model)[:12], 16)]))
    if fabric.is_global_zero:
        tensors = {f"{name}/{part}": getattr(m, part) for name, m in moments.items() for part in ("mean", "scatter")}
        save_file({k: t.contiguous() for k, t in rebuilt.model.state_dict().items()}, folder / "rebuilt.safetensors")
        save_file({k: t.contiguous() for k, t in tensors.items()} | {"digests": digests}, folder / "found.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
