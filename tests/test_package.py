"""What the package promises as a whole."""

import subprocess
import sys

import cosep

STATE = """
import logging, os, random, sys, warnings
import numpy, torch

def state():
    return {
        "seed": torch.initial_seed(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "random": random.getstate(),
        "numpy": numpy.random.get_state()[1].tolist(),
        "environment": dict(os.environ),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "warnings": list(warnings.filters),
    }

before = state()
import cosep
after = state()
assert after == before, [name for name in before if before[name] != after[name]]
heavy = {"scipy", "kneed", "kmedoids", "sklearn", "lightning_fabric", "torchvision", "timm", "onnx", "typer", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_importing_cosep_changes_nothing_and_loads_nothing_heavy_but_torch():
    done = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_sorted_and_documented():
    assert cosep.__all__ == sorted(cosep.__all__)
    for name in cosep.__all__:
        assert getattr(cosep, name).__doc__, name
