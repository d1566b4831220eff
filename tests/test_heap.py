"""Freed memory: kept, as seen by the page faults of a process that makes the same tensor again, or given back."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from cosep.models.heap import keep_freed_memory

if "keep" in sys.argv:
    print(keep_freed_memory())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):  # 64 MB each; the heap finds its shape
    torch.ones(2**24)
before = faults()
for _ in range(4):
    torch.ones(2**24)
print(faults() - before)
"""


def faults(*words, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, *words], capture_output=True, text=True, env=inherited | environment, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_asking_the_system():
    said, kept = faults("keep")
    assert said == "True"
    # 64 MB are 32 faults with pages of 2 MB and 16,384 with pages of 4 KB, each time that they are asked for.
    assert int(kept) < 32
    assert int(faults()[0]) >= 4 * 32


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_choice_in_the_environment_is_left_alone():
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"


GAPS = """
import torch
from pathlib import Path
from cosep.models.heap import give_back_freed_memory

held = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
torch.ones(2**22)  # 16 MB: glibc now takes smaller blocks from its heap
blocks = [torch.ones(2**18) for _ in range(256)]  # 1 MB each
full = held()
del blocks[::2]
gaps = held()
give_back_freed_memory()
print(full - gaps, gaps - held())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_gaps_between_blocks_in_use_are_given_back_when_asked_for():
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, env=inherited, check=True)
    by_itself, asked_for = map(int, done.stdout.split())
    assert by_itself < 32  # of 128 MB
    assert asked_for > 96
