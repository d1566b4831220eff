"""Run by torchrun: prune digits on several processes; the first one writes what it found.

torchrun --nproc_per_node 2 two_processes.py WEIGHTS FOLDER
"""

import atexit
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import cosep
from cosep.data import load_data
from cosep.runs import search
from cosep.runs.fabric import batches_of_rank, launched, merged_over_ranks, team_of
from cosep.runs.folder import weights_digest
from cosep.surgery import cut_group

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


def untrained(refine=0):
    """Half of the MACs, from measured damage, and what is left rebuilt; few positions of each image."""
    changes = {
        "rebuild": {"images": 600, "rows": 1, "positions": 9, "refine": refine},
        "recover": {"schedule": "none"},
        "limits": {"max_macs": "50%"},
        "device": {"accelerator": "cpu"},
    }
    return cosep.replace_settings(cosep.preset(), changes)


def few_images():
    """So few images for the rebuild that the second process has none."""
    return cosep.replace_settings(untrained(), {"rebuild": {"images": 60, "rows": 64, "positions": 64}})


def undecided(model, data, rank):
    """A search for the amount, and a training, of which the second process by itself would think otherwise."""
    changes = {"limits": {"max_macs": None}, "recover": {"schedule": "final", "epochs": 0.1}}
    holdout = [(x, y if rank == 0 else (y + 1) % 10) for x, y in data.holdout]
    config = cosep.replace_settings(untrained(), changes)
    return cosep.prune(model, data.calibration, config=config, train=data.train, holdout=holdout)


class Counting(nn.Module):
    """What it computes changes with the number of images."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x if len(x) % 2 else 2 * x)))


def counting(team, rank):
    """A rebuild of which only the second process sees that the network cannot be run in steps."""
    torch.manual_seed(0)
    model, sizes = Counting().eval(), (32, 31, 32)
    batches = [torch.randn(size, 6) for size in sizes]
    group = next(group for group in cosep.find_groups(model, batches[0][:1]) if group.name == "a")
    cut, layout = cut_group(model, group, range(5), {})
    numbers = (0, 32, 63)[rank :: team.size]
    team = replace(team, numbers=numbers, images=sum(sizes))
    return cosep.rebuild(model, cut, layout, batches[rank :: team.size], team=team, example=batches[0])


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
    few = cosep.prune(model, data.calibration, None, config=few_images(), holdout=data.holdout)
    refined = cosep.prune(model, data.calibration, None, config=untrained(refine=1), holdout=data.holdout)
    found = undecided(model, data, fabric.global_rank)
    (folder / f"undecided-{fabric.global_rank}.json").write_text(
        json.dumps({"tried": [each.drop for each in found.report.tried], "digest": weights_digest(found.model)})
    )
    made = counting(team_of(fabric), fabric.global_rank)
    (folder / f"counting-{fabric.global_rank}.json").write_text(
        json.dumps({"notes": made.notes, "digest": weights_digest(made.model)})
    )
    digests = fabric.all_gather(torch.tensor([int(weights_digest(result.model)[:12], 16)]))
    if fabric.is_global_zero:
        tensors = {f"{name}/{part}": getattr(m, part) for name, m in moments.items() for part in ("mean", "scatter")}
        for name, done in (("rebuilt", rebuilt), ("few", few), ("refined", refined)):
            save_file({k: t.contiguous() for k, t in done.model.state_dict().items()}, folder / f"{name}.safetensors")
        save_file({k: t.contiguous() for k, t in tensors.items()} | {"digests": digests}, folder / "found.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
