"""Run as a program: prune digits in one go, then again with `kill -9` in given stages, and compare the bytes.

    python killed_runs.py WEIGHTS FOLDER PRESET STAGE[:N] ...

Every start is killed soon after the N-th time (else the first) that it enters a stage, but the last, which runs to the
end. Prints one line of JSON. Children are forked, so that a start costs no import. Every run is a child's: torch's
builds for GPUs refuse to compute gradients in the child of a process that has computed some.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch

import cosep
from cosep.data import load_data

RESULT = ("model.safetensors", "plan.json")
SOON = 0.03  # seconds: a fast machine must not be done with the run by then


def run(weights, folder, preset, on_stage=None):
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
    parts = {"train": data.train, "holdout": data.holdout, "callbacks": cosep.Callbacks(on_stage=on_stage)}
    cosep.prune(model, data.calibration, None, config=config, run=folder, **parts)


def forked(work, *given):
    """Do some work in a child; how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*given)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def whole_run(weights, folder, preset):
    """A run to its end. Whatever it imported late is then imported here, for children to come."""
    names = folder.with_name("imported.json")

    def work():
        run(weights, folder, preset)
        names.write_text(json.dumps(list(sys.modules)))

    if forked(work):
        raise SystemExit("an undisturbed run failed")
    for name in json.loads(names.read_text()):
        with contextlib.suppress(Exception):  # some are made while others are imported
            importlib.import_module(name)


def killed(weights, folder, preset, stage, delay):
    """Whether a run that was to be killed in a stage was still going."""
    name, _, number = stage.partition(":")
    entered = []

    def enter(_group, entering):
        entered.append(entering)
        if entering == name and entered.count(name) == int(number or 1):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    return forked(run, weights, folder, preset, enter) == signal.SIGKILL


def main(weights, folder, preset, *stages):
    torch.set_num_threads(1)
    chance = random.Random(0)
    whole, target = Path(folder) / "whole", Path(folder) / "killed"
    whole_run(weights, whole, preset)
    kills = [stage for stage in stages if killed(weights, target, preset, stage, chance.uniform(0, SOON))]
    whole_run(weights, target, preset)
    whole_run(weights, target, preset)  # a finished run is only read again
    equal = all((target / name).read_bytes() == (whole / name).read_bytes() for name in RESULT)
    print(json.dumps({"kills": kills, "equal": equal}))


if __name__ == "__main__":
    main(*sys.argv[1:])
