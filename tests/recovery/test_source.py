from itertools import chain, islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cosep.data import Loader, TensorSplit
from cosep.errors import ConfigError
from cosep.recovery import batch_count, endless, fixed_part


def numbers(batches, count):
    return [batch[0].flatten().tolist() for batch in islice(batches, count)]


@pytest.fixture
def loader():
    """Ten samples in shuffled batches of two: the order comes from torch's global generator."""
    return DataLoader(TensorDataset(torch.arange(10).unsqueeze(1), torch.zeros(10)), batch_size=2, shuffle=True)


def test_a_resumed_stream_gives_the_batches_that_were_still_to_come(loader):
    whole = numbers(endless(loader, seed=3, batches_a_pass=5), 13)
    assert numbers(endless(loader, seed=3, batches_a_pass=5, skip=7), 6) == whole[7:]


def test_every_pass_sees_all_data_in_an_order_of_its_own(loader):
    first, second = (numbers(endless(loader, seed=0, batches_a_pass=5), 10)[i : i + 5] for i in (0, 5))
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert first != second


def test_a_fixed_share_is_the_same_part_of_the_data_in_every_pass_in_an_order_of_its_own(loader):
    part = fixed_part(loader, 0.4, seed=0)
    batches = numbers(endless(part, seed=0, batches_a_pass=batch_count(part)), 12)
    passes = [batches[i : i + 2] for i in range(0, 12, 2)]
    assert len({tuple(sorted(chain(*one))) for one in passes}) == 1
    assert len(set(chain(*passes[0]))) == 4
    assert len({str(one) for one in passes}) > 1


def test_a_fixed_share_of_our_own_loader_is_augmented_and_ordered_anew_in_every_pass():
    labels = torch.arange(40) % 2
    images = torch.arange(1, 41, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 3, 12, 12)  # a crop's border shows
    split = TensorSplit(images, labels, (0.0,) * 3, (1.0,) * 3)
    part = fixed_part(Loader(split, torch.arange(40), 5, shuffle=True, augment=True), 0.25, seed=0)
    stream = endless(part, seed=0, batches_a_pass=batch_count(part))
    passes = [torch.cat([next(stream)[0] for _ in range(2)]) for _ in range(4)]
    whose = [sorted(round(float(v)) for v in 255 * of_pass.amax((1, 2, 3))) for of_pass in passes]
    assert whose[0] == whose[1] == whose[2] == whose[3]  # the same ten images
    assert len(set(whose[0])) == 10
    assert not any(torch.equal(one, other) for i, one in enumerate(passes) for other in passes[:i])


def test_a_loader_whose_order_is_its_owners_is_cut_short_and_drawn_alike():
    class Shuffled:
        def __iter__(self):
            return iter(torch.randperm(10).view(5, 1, 2).unbind())

        def __len__(self):
            return 5

    part = fixed_part(Shuffled(), 0.4, seed=3)
    batches = numbers(endless(part, seed=3, batches_a_pass=2), 6)
    assert batches[:2] == batches[2:4] == batches[4:6]


def test_the_state_of_the_generator_decides_what_a_resumed_stream_draws():
    def noisy():
        while True:
            yield torch.rand(1), torch.zeros(1)

    class Noise:
        def __iter__(self):
            return islice(noisy(), 4)

    stream = endless(Noise(), seed=1, batches_a_pass=4)
    seen = []
    for number in range(3):
        seen.append(next(stream)[0].item())
        torch.rand(1)  # what a network with dropout draws in between
        if number == 1:
            state = torch.get_rng_state()
    resumed = endless(Noise(), seed=1, batches_a_pass=4, skip=2, rng_state=state)
    assert next(resumed)[0].item() == seen[2]


def test_a_loader_that_gives_fewer_batches_than_before_is_refused(loader):
    with pytest.raises(ConfigError, match="gave 5 batches where 6 were expected"):
        list(islice(endless(loader, seed=0, batches_a_pass=6), 7))


def test_a_loader_without_a_length_is_counted():
    class Unsized:
        def __iter__(self):
            return iter([1, 2, 3])

    assert batch_count(Unsized()) == 3


def test_an_empty_loader_is_refused():
    with pytest.raises(ConfigError, match="gives no batch"):
        batch_count([])
