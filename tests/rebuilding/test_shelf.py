"""Values and rows that have to wait: what is read is what was written, and memory and disk are used sparingly."""

import os
from contextlib import closing

import pytest
import torch
from torch.testing import assert_close

from cosep.models.tape import Pass, Tape
from cosep.rebuilding.shelf import Shelf


def waiting(**values):
    """A pass that holds these values."""
    return Pass(Tape((), 0, {}), {int(name[1:]): value for name, value in values.items()})


def on_disk(shelf):
    shelf._file.flush()
    return os.fstat(shelf._file.fileno()).st_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_come_back_to_the_bit(dtype):
    rows = [torch.randn(3, 5, n, dtype=dtype) for n in (4, 7)] + [torch.randn(6, 5).T.to(dtype)]
    with closing(Shelf(0)) as shelf:
        laid = [shelf.lay(each) for each in rows]
        assert not any(isinstance(each, torch.Tensor) for each in laid)
        for before, after in zip(rows, map(shelf.take, laid), strict=True):
            assert torch.equal(before, after)
            assert before.dtype == after.dtype


def test_values_come_back_in_their_memory_format_and_in_half_precision():
    image = torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last)
    large = image * 1e6  # beyond what half precision reaches
    run = waiting(s1=image, s2=large)
    with closing(Shelf(0)) as shelf:
        shelf.put(0, run)
        assert run.values == {1: None, 2: None}
        shelf.get(0, run, {1, 2})
    for before, after in ((image, run.values[1]), (large, run.values[2])):
        assert after.stride() == before.stride()
        assert_close(after, before, rtol=2**-10, atol=2**-14 * float(before.abs().max()))


def test_rows_and_values_share_the_room_in_memory():
    rows, value = torch.randn(100), torch.randn(100)  # 400 bytes each
    run = waiting(s1=value)
    with closing(Shelf(500)) as shelf:
        laid = shelf.lay(rows)
        shelf.put(0, run)
        assert laid is rows
        assert run.values[1] is None  # there was no room for it too
        shelf.take(laid)
        later = waiting(s1=value)
        shelf.put(1, later)
        assert later.values[1] is value


def test_a_sweep_takes_no_more_of_the_disk_the_longer_it_is():
    sizes = []
    with closing(Shelf(0)) as shelf:
        for step in range(10):
            for batch in range(3):
                run = waiting(**{f"s{step}": torch.full((1000,), float(step + batch))})
                shelf.put(batch, run)
                shelf.get(batch, run, {step})
                assert torch.equal(run.values[step], torch.full((1000,), float(step + batch)))
            sizes.append(on_disk(shelf))
    assert sizes == [3 * 2000] * 10  # three batches of 1,000 numbers in half precision
