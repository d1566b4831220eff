"""Images for passes step by step come in batches of one size, so that few shapes have to be traced."""

import pytest
import torch

from cosep.data.batches import even_batches, images_between


def numbered(sizes, side=2):
    numbers = torch.arange(sum(sizes)).float().reshape(-1, 1, 1, 1).expand(-1, 1, side, side)
    return list(numbers.split(sizes))


@pytest.mark.parametrize("sizes", [[128, 128, 44], [250] * 4, [7, 100, 3, 90], [64], [1] * 70, [97]])
def test_the_images_stay_in_order_and_all_batches_but_the_last_have_one_size(sizes):
    made = even_batches(numbered(sizes))
    assert torch.cat(made)[:, 0, 0, 0].tolist() == list(range(sum(sizes)))
    assert len({len(x) for x in made[:-1]}) <= 1
    assert len(made[-1]) <= len(made[0]) <= max(sizes)


def test_a_size_that_divides_the_images_is_preferred():
    assert {len(x) for x in even_batches(numbered([128] * 15 + [80]))} == {50}
    assert {len(x) for x in even_batches(numbered([32] * 16, side=65))} == {16}


def test_images_of_several_sizes_stay_in_their_batches():
    given = [torch.zeros(3, 1, 4, 4), torch.zeros(5, 1, 6, 6)]
    assert [x.shape for x in even_batches(given)] == [x.shape for x in given]


def test_without_images_there_is_no_batch():
    assert even_batches([]) == []
    assert even_batches([torch.zeros(0, 1, 4, 4)]) == []


def test_some_images_of_many_batches():
    given = numbered([4, 3, 5])
    assert [x[:, 0, 0, 0].tolist() for x in images_between(given, 2, 8)] == [[2, 3], [4, 5, 6], [7]]
    assert images_between(given, 12, 20) == []
    assert sum(len(x) for x in images_between(given, 0, 20)) == 12
