from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cosep.data import Loader, TensorSplit
from cosep.data.order import stratified
from cosep.errors import ConfigError, DataError


def split(count=23, *, pad=4, flip=True):
    g = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 6, 5), dtype=torch.uint8, generator=g)
    return TensorSplit(images, torch.arange(count), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1), pad=pad, flip=flip)


def loader(**settings):
    return Loader(split(), torch.arange(23), 4, **{"shuffle": True, "augment": True, "seed": 5, **settings})


def collected(batches):
    inputs, labels = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(labels)


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(collected(first), collected(second), strict=True))


def test_inputs_are_pixels_over_255_minus_mean_over_std():
    data = split()
    inputs, labels = collected(data.batches(4))
    expected = (data.images.double() / 255 - torch.tensor(data.mean).double().view(3, 1, 1)) / torch.tensor(
        data.std
    ).double().view(3, 1, 1)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.double(), expected, atol=1e-6, rtol=1e-6)
    assert labels.tolist() == list(range(23))


def test_every_augmented_image_is_a_window_of_the_padded_image_maybe_mirrored():
    data = split()
    padded = F.pad(data.images, (4, 4, 4, 4))
    seen = set()
    for epoch in range(12):
        for inputs, labels in data.batches(7, shuffle=True, augment=True, epoch=epoch):
            for image, label in zip(inputs, labels.tolist(), strict=True):
                pixels = (image * torch.tensor(data.std).view(3, 1, 1) + torch.tensor(data.mean).view(3, 1, 1)) * 255
                pixels = pixels.round().to(torch.uint8)
                windows = {
                    (y, x, m)
                    for y in range(9)
                    for x in range(9)
                    for m, window in enumerate(
                        (padded[label, :, y : y + 6, x : x + 5], padded[label, :, y : y + 6, x : x + 5].flip(2))
                    )
                    if torch.equal(window, pixels)
                }
                assert windows
                seen |= windows if len(windows) == 1 else set()
    assert len(seen) > 100  # of 162: offsets of all kinds come up, mirrored and not


def test_mirroring_can_be_left_out_and_no_border_means_no_shift():
    data = split(pad=0, flip=False)
    assert equal(data.batches(4, augment=True), data.batches(4))


def test_an_epoch_has_every_image_once():
    assert sorted(collected(loader())[1].tolist()) == list(range(23))


def test_the_same_seed_and_epoch_give_the_same_batches_whatever_happened_before():
    first, second = loader(), loader()
    list(first)
    torch.rand(3)
    assert equal(first, second)


def test_other_epochs_and_seeds_give_other_orders_and_other_augmentation():
    by_epoch = loader()
    by_epoch.set_epoch(1)
    for other in (by_epoch, loader(seed=6)):
        assert not torch.equal(collected(loader())[1], collected(other)[1])
    unshuffled = loader(shuffle=False)
    moved = replace(unshuffled, epoch=1)
    assert torch.equal(collected(unshuffled)[1], collected(moved)[1])
    assert not torch.equal(collected(unshuffled)[0], collected(moved)[0])


@pytest.mark.parametrize("start", range(7))
def test_starting_at_a_step_equals_skipping_the_batches_before_it(start):
    rest = list(loader())[start:]
    resumed = list(loader().iterate(start))
    assert len(rest) == len(resumed)
    if rest:
        assert equal(rest, resumed)


def test_global_chance_is_left_alone():
    before = torch.get_rng_state()
    list(loader())
    assert torch.equal(torch.get_rng_state(), before)


def test_last_batch_is_kept_or_dropped_as_told():
    assert [len(y) for _, y in loader()] == [4, 4, 4, 4, 4, 3]
    assert [len(y) for _, y in loader(drop_last=True)] == [4] * 5
    assert (len(loader()), len(loader(drop_last=True))) == (6, 5)


def test_batches_do_not_share_memory_with_the_data():
    data = split()
    kept = data.images.clone()
    for inputs, labels in data.batches(5):
        inputs.zero_()
        labels.zero_()
    assert torch.equal(data.images, kept)
    assert data.labels.tolist() == list(range(23))


def test_plain_view_has_all_images_in_order():
    assert equal(loader(drop_last=True).plain(batch_size=6), split().batches(6))


def test_share_takes_the_same_fraction_of_every_class():
    labels = torch.arange(40) % 4
    data = TensorSplit(torch.zeros(40, 1, 2, 2, dtype=torch.uint8), labels, (0.0,), (1.0,))
    quarter = Loader(data, torch.arange(40), 5).share(0.3, seed=2)
    assert quarter.labels.bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(quarter.indices, Loader(data, torch.arange(40), 5).share(0.3, seed=2).indices)
    assert not torch.equal(quarter.indices, Loader(data, torch.arange(40), 5).share(0.3, seed=3).indices)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_stratified_parts_are_disjoint_complete_and_proportional(labels, share, seed):
    labels = torch.tensor(labels)
    rest, part = stratified(labels, share, seed=seed, purpose="holdout")
    assert sorted(rest.tolist() + part.tolist()) == list(range(len(labels)))
    for label in labels.unique():
        total, taken = int((labels == label).sum()), int((labels[part] == label).sum())
        assert abs(taken - share * total) <= 1
        if total > 1:
            assert 0 < taken < total


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"seed": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(loader(), **wrong)


def test_malformed_tensors_are_refused():
    good = split()
    with pytest.raises(DataError, match=r"torch\.float32 .*needed: uint8"):
        replace(good, images=good.images.float())
    with pytest.raises(DataError, match="23 images have labels of shape"):
        replace(good, labels=good.labels[:3])
    with pytest.raises(DataError, match="3 channels need as many values"):
        replace(good, mean=(0.5,))
