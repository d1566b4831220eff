"""What the package promises as a whole."""

import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch

import cosep
import cosep.errors

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


def test_no_public_name_hides_a_package_or_module():
    for module in pkgutil.iter_modules(cosep.__path__):
        if module.name != "__main__":
            importlib.import_module(f"cosep.{module.name}")
            assert getattr(cosep, module.name) is sys.modules[f"cosep.{module.name}"], module.name


def test_what_the_docs_use_and_every_error_is_public():
    used = {"plan", "prune", "compare", "load_data", "export_onnx", "cut_group", "merge_all", "check_moments"}
    errors = {name for name, value in vars(cosep.errors).items() if isinstance(value, type)}
    assert used | errors <= set(cosep.__all__)


def test_the_function_that_hid_a_package_warns_for_one_version():
    moments = cosep.class_moments(torch.randn(40, 5), torch.arange(40) % 2)
    with pytest.warns(DeprecationWarning, match="call cosep.separability_profiles"):
        assert torch.equal(cosep.profiles(moments), cosep.separability_profiles(moments))
