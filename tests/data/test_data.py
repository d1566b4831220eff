import os
import re
import sys
import warnings
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosep.data import data_names, load_data
from cosep.data.order import class_by_class
from cosep.errors import ConfigError, DataError


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    from cosep.data.digits import read_digits

    train, test, names = read_digits()
    ours = sorted(
        zip(
            (torch.cat([train.images, test.images]) // 15).flatten(1).tolist(),
            train.labels.tolist() + test.labels.tolist(),
            strict=True,
        )
    )
    reference = load_digits()
    assert ours == sorted(zip(reference.data.astype(int).tolist(), reference.target.tolist(), strict=True))
    assert names == tuple("0123456789")


def test_digits_inputs_are_normalised_and_of_the_stated_shape():
    data = load_data("digits", holdout=0)
    inputs = torch.cat([x for x, _ in data.calibration])
    assert inputs.shape[1:] == data.input_shape == (1, 8, 8)
    assert abs(inputs.mean()) < 0.01
    assert abs(inputs.std() - 1) < 0.01
    assert data.holdout is None


def test_digits_test_part_does_not_depend_on_the_seed_and_is_stratified():
    first, second = load_data("digits", seed=0), load_data("digits", seed=1)
    assert torch.equal(first.test.split.images, second.test.split.images)
    counts = first.test.labels.bincount()
    assert counts.min() >= 34
    assert counts.max() <= 37


def test_calibration_is_the_training_part_unaugmented_and_mixed():
    data = load_data("digits")
    assert torch.equal(data.calibration.indices.sort().values, data.train.indices)
    assert not data.calibration.augment
    labels = next(iter(data.calibration))[1]
    assert labels.unique().numel() == 10


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(0, 3))
def test_the_classes_take_turns_in_the_calibration_order(labels, seed):
    order = class_by_class(torch.tensor(labels), seed=seed).tolist()
    assert sorted(order) == list(range(len(labels)))
    for length in range(len(order) + 1):
        seen = [labels[i] for i in order[:length]]
        left = [labels[i] for i in order[length:]]
        # No class is two ahead of one that still has images to give.
        assert all(seen.count(a) <= seen.count(b) + 1 for a in set(labels) for b in set(left))


def test_the_calibration_order_depends_on_the_seed_and_mixes_each_turn():
    labels = torch.arange(400) % 40
    one, other = (class_by_class(labels, seed=seed) for seed in (0, 1))
    assert not torch.equal(one, other)
    turns = labels[one].view(10, 40)
    assert len({tuple(turn.tolist()) for turn in turns}) == 10  # not class 0 first every time


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "unknown data set 'digit'; did you mean digits?"),
        ("cifar1:/x", "did you mean cifar10"),
        ("xyz", "known are digits, cifar10:DIR, cifar100:DIR, imagefolder:DIR"),
        ("cifar10", "cifar10 needs the folder of its files: cifar10:DIR"),
        ("imagefolder:", "imagefolder needs the folder"),
        ("imagefolder:/nowhere", r"there is no folder /nowhere/train nor /nowhere/val; .* one subfolder of images"),
    ],
)
def test_names_that_do_not_serve_are_told(spec, message):
    with pytest.raises(DataError, match=message):
        load_data(spec)


@pytest.mark.parametrize("holdout", [-0.1, 1.0])
def test_impossible_holdout_is_refused(holdout):
    with pytest.raises(ConfigError, match="holdout is"):
        load_data("digits", holdout=holdout)


def test_every_form_of_a_name_is_listed():
    assert data_names()[0] == "digits"


LOADERS = """
import torch

def batches(n, batch_size=3):
    return [(torch.zeros(batch_size, 2, 4, 4), torch.zeros(batch_size, dtype=torch.int64)) for _ in range(n)]

def pair(batch_size):
    return batches(4, batch_size), batches(2, batch_size)

def parts(seed, holdout):
    return {"train": batches(4), "test": batches(2), "holdout": batches(1), "class_names": ["a", "b"]}

def lonely():
    return batches(4)

def misspelt():
    return {"train": batches(4), "tset": batches(2)}

def once():
    return iter(batches(4)), batches(2)

def unlabelled():
    return batches(4), [torch.zeros(3, 2, 4, 4)]

def empty():
    return batches(4), []

def images_only():
    return {"train": [torch.zeros(3, 2, 4, 4)]}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "loaders.py"
    path.write_text(LOADERS)
    return path


def test_factory_returns_a_pair_of_loaders(file):
    data = load_data(f"{file}:pair", batch_size=5)
    assert [len(y) for _, y in data.train] == [5] * 4
    assert data.calibration is data.train
    assert data.holdout is None
    assert data.input_shape == (2, 4, 4)


def test_factory_returns_named_loaders(file):
    data = load_data(f"{file}:parts")
    assert len(data.holdout) == 1
    assert data.class_names == ("a", "b")


def test_factory_may_return_no_more_than_images(file):
    data = load_data(f"{file}:images_only")
    assert data.calibration is data.train
    assert (data.test, data.holdout, data.class_names) == (None, None, ())
    assert data.input_shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("lonely", "returned a list of 4; it must return"),
        ("misspelt", "returned a dict with 'train', 'tset'; it must return"),
        ("once", "train is a list_iterator, which cannot be iterated again and again"),
        ("unlabelled", "test yields a Tensor; batches must be pairs of tensors"),
        ("empty", "test yields nothing"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_factory_that_does_not_serve_is_told(file, factory, message):
    with pytest.raises(DataError, match=message):
        load_data(f"{file}:{factory}")


@pytest.fixture
def folders(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    for part, count in (("train", 5), ("val", 2)):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                image = pil.effect_noise((40 + i, 50), 90).convert("RGB")
                image.putpixel((0, 0), (number, i, 0))
                image.save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def test_missing_torchvision_names_the_extra(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r'pip install "cosep\[torchvision\]"'):
        load_data(f"imagefolder:{folders}")


needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")


@needs_torchvision
@pytest.mark.parametrize("workers", [0, 1])
def test_image_folders_resume_at_any_step(folders, workers):
    data = load_data(f"imagefolder:{folders}", holdout=0.2, batch_size=3, workers=workers)
    assert data.class_names == ("cat", "dog")
    data.train.set_epoch(2)
    before = torch.get_rng_state()
    everything, resumed = list(data.train), list(data.train.iterate(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert everything[0][0].shape == (3, 3, 224, 224)
    assert len(everything) == 2
    assert torch.equal(everything[1][0], resumed[0][0])
    assert [len(y) for _, y in data.test] == [3, 1]
    assert data.holdout.labels.tolist() == [0, 1]


@needs_torchvision
def test_reading_an_image_leaves_every_generator_alone(folders, monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)  # what a GPU draws from: dropout in training
    data = load_data(f"imagefolder:{folders}", holdout=0.2, batch_size=3, workers=0)
    before = torch.get_rng_state()
    assert list(data.train)
    assert torch.equal(torch.get_rng_state(), before)
    assert not seeded


@needs_torchvision
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to cores here")
def test_no_more_processes_read_image_folders_than_there_are_cores(folders):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        data = load_data(f"imagefolder:{folders}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(data.test)) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert load_data(f"imagefolder:{folders}").test.split.workers == min(2, len(before))


@needs_torchvision
def test_damaged_image_and_differing_classes_are_told(folders):
    (folders / "val" / "cat" / "0.png").write_bytes(b"no image")
    data = load_data(f"imagefolder:{folders}", workers=0)
    with pytest.raises(DataError, match=r"0\.png cannot be read as an image"):
        list(data.test)
    (folders / "val" / "dog").rename(folders / "val" / "dig")
    with pytest.raises(DataError, match="classes of train and val differ in dig, dog"):
        load_data(f"imagefolder:{folders}")


def test_small_network_learns_the_digits():
    from cosep.zoo import load_model

    torch.manual_seed(0)
    data = load_data("digits", batch_size=64)
    model = load_model("digits_cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(3):
        data.train.set_epoch(epoch)
        for inputs, labels in data.train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(x).argmax(1) == y for x, y in data.holdout])
    assert right.float().mean() > 0.9


def test_mean_and_std_of_the_inputs_can_be_given():
    usual, plain = load_data("digits"), load_data("digits", mean=(0.0,), std=(1.0,))
    other = load_data("digits", mean=[0.25], std=[0.5])
    for part in ("train", "calibration", "holdout", "test"):
        pixels = next(iter(getattr(plain, part)))[0]
        assert pixels.min() == 0
        assert pixels.max() == pytest.approx(240 / 255)
        torch.testing.assert_close(next(iter(getattr(other, part)))[0], (pixels - 0.25) / 0.5)
    assert (other.mean, other.std) == ((0.25,), (0.5,))
    assert load_data("digits", std=[0.5]).mean == usual.mean


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": (0.1, 0.2, 0.3)}, "mean is 0.1, 0.2, 0.3; images of 1 channels need as many numbers"),
        ({"std": (0.0,)}, "std is 0; numbers above 0 are needed"),
        ({"std": (float("nan"),)}, "std is nan; numbers above 0"),
        ({"mean": (float("inf"),)}, "mean is inf; numbers are needed"),
        ({"mean": ()}, "mean is ; images of 1 channels"),
    ],
)
def test_a_mean_or_std_that_cannot_be_is_refused(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_data("digits", **given)


def test_a_users_own_data_are_normalised_by_the_user(tmp_path):
    with pytest.raises(ConfigError, match="normalises its images itself"):
        load_data(f"{tmp_path}/data.py:make", mean=(0.5,))


@needs_torchvision
def test_image_folders_take_mean_and_std_too(folders):
    usual = load_data(f"imagefolder:{folders}", workers=0)
    plain = load_data(f"imagefolder:{folders}", workers=0, mean=(0, 0, 0), std=(1, 1, 1))
    pixels, found = (next(iter(data.test))[0] for data in (plain, usual))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert 0 <= pixels.min() <= pixels.max() <= 1
    torch.testing.assert_close(found, (pixels - mean) / std)
