"""Run as a program: prune digits in one go, then again with `kill -9` at random moments, and compare the bytes.

    python killed_runs.py WEIGHTS FOLDER KILLS PRESET

Prints one line of JSON. Children are forked, so that a start costs no import.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import cosep
from cosep.data import load_data
from cosep.storage.artifacts import is_saved

RESULT = ("model.safetensors", "plan.json")


def run(weights, folder, preset):
    changes = {
        "observe": {"images": 200},
        "rebuild": {"images": 100},
        "recover": {"share": 0.5, "group_epochs": 1.0},
        "device": {"accelerator": "cpu"},
        "checkpoint_seconds": 0.0,
    }
    data = load_data("digits", batch_size=64)
    model = cosep.load_model("digits_cnn", weights=weights, classes=10)
    config = cosep.replace_settings(cosep.preset(preset), changes)
    cosep.prune(model, data.calibration, None, config=config, train=data.train, holdout=data.holdout, run=folder)


def killed(weights, folder, preset, delay):
    """Whether a run that was killed after a delay was still going."""
    child = os.fork()
    if child == 0:
        try:
            run(weights, folder, preset)
        finally:
            os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def main(weights, folder, kills, preset):
    torch.set_num_threads(1)
    chance = random.Random(0)
    folder = Path(folder)
    whole = folder / "whole"
    run(weights, whole, preset)  # the first run pays for what is loaded late
    started = time.perf_counter()
    run(weights, folder / "again", preset)
    seconds = time.perf_counter() - started
    wanted = {name: (whole / name).read_bytes() for name in RESULT}
    done, finished, equal = 0, 0, True
    while done < kills or not finished:
        target = folder / f"killed-{finished}"
        if done < kills:
            done += killed(weights, target, preset, chance.uniform(0, seconds / 2))
        else:
            run(weights, target, preset)
        if is_saved(target):
            run(weights, target, preset)  # a finished run is only read again
            equal &= all((target / name).read_bytes() == wanted[name] for name in RESULT)
            finished += 1
    print(json.dumps({"kills": done, "finished": finished, "equal": equal, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
