"""What a process holds must not grow with the groups it has pruned; `benchmarks/long_run.py` goes on for 200."""

from itertools import pairwise
from pathlib import Path

import pytest

if not Path("/proc/self/statm").exists():
    pytest.skip("what a process holds is read from /proc", allow_module_level=True)
long_run = pytest.importorskip("benchmarks.long_run", reason="the benchmarks are not part of this copy")

GROUPS, WARM = 12, 4


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return long_run.measured_run(GROUPS, tmp_path_factory.mktemp("long") / "run")


def test_every_group_was_pruned(rows):
    assert [row["group"] for row in rows] == list(range(1, GROUPS + 1))


@pytest.mark.parametrize("what", ["file_handles", "hooks", "modules", "tensors"])
def test_nothing_piles_up_from_group_to_group(rows, what):
    assert len({row[what] for row in rows[WARM:]}) == 1


@pytest.mark.parametrize("what", ["log.jsonl", "checkpoint.safetensors"])
def test_log_and_checkpoint_grow_by_a_constant_for_each_group(rows, what):
    # Not the last group: after it comes no convolution but the classifier, which shrinks by less.
    sizes = [row[what] for row in rows[WARM:-1]]
    steps = [after - before for before, after in pairwise(sizes)]
    assert 0 < max(steps) < 1_000
    assert max(steps) < 1.5 * min(steps)
