"""A few faults of each kind on the real command; `benchmarks/faults.py` injects hundreds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

from cosep.zoo import load_model

BENCH = Path(__file__).parents[2] / "benchmarks" / "faults.py"
ONLY_STOPPED = ("SIGKILL", "SIGTERM", "SIGINT", "full disk", "file size limit", "failing call")


@pytest.mark.skipif(not BENCH.exists(), reason="the benchmarks are not part of this copy")
def test_after_any_fault_the_next_start_finishes_alike_or_refuses_and_touches_nothing(tmp_path):
    torch.manual_seed(0)
    save_model(load_model("digits_cnn", classes=10), str(tmp_path / "net.safetensors"))
    command = [sys.executable, BENCH, "--times", "8", "--seed", "1", "--out", tmp_path, "--weights"]
    done = subprocess.run([*command, tmp_path / "net.safetensors"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "faults.json").read_text())
    assert told["wrong"] == 0
    assert len(told["faults"]) == 8
    outcomes = Counter((fault["kind"] in ONLY_STOPPED, fault["outcome"]) for fault in told["faults"])
    assert outcomes[True, "refused"] == 0  # nothing was damaged, so there is nothing to refuse
    assert outcomes[True, "same"] >= 5  # where no file system can be mounted, there is no full disk
