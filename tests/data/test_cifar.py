import os
import pickle

import numpy as np
import pytest
import torch

from cosep.data import load_data
from cosep.data.cifar import read_cifar
from cosep.errors import DataError

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FILES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def images(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), [int(n) for n in rng.permutation(count) % 10]


@pytest.fixture
def binary(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for seed, name in enumerate(FILES):
        pixels, labels = images(20, seed)
        (folder / f"{name}.bin").write_bytes(
            b"".join(bytes([y]) + p.tobytes() for y, p in zip(labels, pixels, strict=True))
        )
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder


def python2_pickle(pixels, labels):
    """The bytes that Python 2 wrote for {"data": uint8 array, "labels": list, "batch_label": str}, opcode by opcode."""

    def text(value):  # SHORT_BINSTRING / BINSTRING: Python 2's str
        return (
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    def integer(value):
        return b"J" + value.to_bytes(4, "little", signed=True)

    shape = b"(" + b"".join(map(integer, pixels.shape)) + b"t"
    kind = b"cnumpy\ndtype\n(" + text(b"u1") + integer(0) + integer(1) + b"tR"
    kind += b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) * 2 + integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + integer(0) + b"t" + text(b"b") + b"tR"
    array += b"(" + integer(1) + shape + kind + b"\x89" + text(pixels.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(integer, labels)) + b"e"
    entries = text(b"data") + array + text(b"labels") + listed + text(b"batch_label") + text(b"training batch 1 of 5")
    return b"\x80\x02}(" + entries + b"u."


def python3_pickle(pixels, labels):
    return pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2)


@pytest.fixture(params=[python2_pickle, python3_pickle])
def python(tmp_path, request):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for seed, name in enumerate(FILES):
        (folder / name).write_bytes(request.param(*images(20, seed)))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in NAMES]}, protocol=2))
    return folder


def check(train, test, names):
    parts = [images(20, seed) for seed in range(6)]
    pixels = torch.from_numpy(np.concatenate([p for p, _ in parts])).view(-1, 3, 32, 32)
    labels = [label for _, part in parts for label in part]
    assert torch.equal(train.images, pixels[:100])
    assert torch.equal(test.images, pixels[100:])
    assert train.labels.tolist() + test.labels.tolist() == labels
    assert names == tuple(NAMES)


def test_python2_pickle_of_this_test_is_what_numpy_reads():
    pixels, labels = images(4, 0)
    read = pickle.loads(python2_pickle(pixels, labels), encoding="bytes")
    assert np.array_equal(read[b"data"], pixels)
    assert read[b"labels"] == labels


def test_binary_layout_is_read_from_its_folder_and_from_the_parent(binary):
    check(*read_cifar("cifar10", binary))
    check(*read_cifar("cifar10", binary.parent))


def test_python_layout_is_read_from_its_folder_and_from_the_parent(python):
    check(*read_cifar("cifar10", python))
    check(*read_cifar("cifar10", str(python.parent)))


def test_cifar100_uses_the_fine_labels(tmp_path):
    pixels, _ = images(5, 0)
    records = b"".join(bytes([19, 90 + i]) + pixels[i].tobytes() for i in range(5))
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(records)
    train, _, names = read_cifar("cifar100", tmp_path)
    assert train.labels.tolist() == [90, 91, 92, 93, 94]
    assert torch.equal(train.images.flatten(1), torch.from_numpy(pixels))
    assert len(names) == 100


def test_cifar100_python_layout_uses_the_fine_labels(tmp_path):
    pixels, _ = images(5, 0)
    content = {b"data": pixels, b"fine_labels": [7, 8, 9, 98, 99], b"coarse_labels": [0] * 5}
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    assert read_cifar("cifar100", tmp_path)[1].labels.tolist() == [7, 8, 9, 98, 99]


def test_data_set_has_disjoint_stratified_parts(binary):
    data = load_data(f"cifar10:{binary}", holdout=0.2, seed=3, batch_size=16)
    assert not set(data.train.indices.tolist()) & set(data.holdout.indices.tolist())
    assert data.holdout.labels.bincount().tolist() == [2] * 10
    assert len(data.train.indices) + len(data.holdout.indices) == 100
    assert torch.equal(data.calibration.indices.sort().values, data.train.indices)
    assert (data.input_shape, data.mean) == ((3, 32, 32), (0.485, 0.456, 0.406))
    first = next(iter(data.holdout))[1][:10]
    assert first.sort().values.tolist() == list(range(10))  # who looks at the first few sees every class
    again = load_data(f"cifar10:{binary}", holdout=0.2, seed=3)
    assert torch.equal(again.holdout.indices, data.holdout.indices)
    other = load_data(f"cifar10:{binary}", holdout=0.2, seed=4)
    assert not torch.equal(other.holdout.indices, data.holdout.indices)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"", lambda b: b + b"x", lambda b: b * 600])
def test_binary_file_of_a_wrong_size_is_told(binary, change):
    path = binary / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"data_batch_3\.bin has \d+ bytes; it must be 1 to 10000 records of 3073 bytes"
    ):
        read_cifar("cifar10", binary)


def test_binary_label_out_of_range_is_told(binary):
    path = binary / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"test_batch\.bin has the label 10; they must be below 10"):
        read_cifar("cifar10", binary)


def test_missing_file_and_missing_folder_are_told(binary):
    (binary / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_2\.bin"):
        read_cifar("cifar10", binary)
    with pytest.raises(DataError, match=r"does not exist; sought data_batch_1\.bin .*https://"):
        read_cifar("cifar10", binary / "nowhere")


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def malicious(marker):
    yield pickle.dumps({b"data": Evil(marker)}, protocol=2)
    yield pickle.dumps({b"data": Evil(marker)}, protocol=4)
    yield b'cbuiltins\neval\n(S\'__import__("os").mkdir("' + marker.encode() + b"\")'\ntR."
    yield b"(S'" + marker.encode() + b"'\nios\nmkdir\n."  # the old INST opcode
    yield b"cnumpy.core.multiarray\nscalar\n."
    yield b"\x80\x02\x82\x01."  # a registered extension
    yield b"Psomewhere\n."  # a persistent id


@pytest.mark.parametrize("number", range(7))
def test_pickle_that_asks_for_code_is_refused_and_not_run(python, tmp_path, number):
    marker = str(tmp_path / "ran")
    (python / "data_batch_1").write_bytes(list(malicious(marker))[number])
    with pytest.raises(DataError, match=r"data_batch_1 asks to run .*refused and nothing was run"):
        read_cifar("cifar10", python)
    assert not os.path.exists(marker)


def test_array_that_claims_to_be_huge_is_refused_without_allocation(python):
    huge = python2_pickle(np.zeros((2, 3072), np.uint8), [0, 1]).replace(
        b"J" + (3072).to_bytes(4, "little"), b"J" + (2**31 - 1).to_bytes(4, "little")
    )
    (python / "data_batch_1").write_bytes(huge)
    with pytest.raises(DataError, match=r"data_batch_1 is damaged \(UnpicklingError: an array of shape"):
        read_cifar("cifar10", python)


def test_array_of_objects_is_refused(python):
    (python / "data_batch_1").write_bytes(pickle.dumps({b"data": np.array([{}, {}], object)}, protocol=2))
    with pytest.raises(DataError, match="not of bytes"):
        read_cifar("cifar10", python)


def test_oversized_pickle_is_refused_before_it_is_read(python):
    with (python / "data_batch_1").open("r+b") as file:
        file.truncate(10**9)
    with pytest.raises(DataError, match="has 1000000000 bytes; at most"):
        read_cifar("cifar10", python)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_pickle_is_told(python, share):
    path = python / "test_batch"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"test_batch is damaged"):
        read_cifar("cifar10", python)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_pickle_never_ends_in_another_error(python, seed):
    rng = np.random.default_rng(seed)
    path = python / "data_batch_1"
    content = bytearray(path.read_bytes()[:400] + path.read_bytes()[-200:])
    for position in rng.integers(0, len(content), 5):
        content[position] = rng.integers(0, 256)
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_cifar("cifar10", python)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        ({b"images": 1}, "has no 'data' and 'labels'"),
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2]}, r"2 labels for images of shape \(3, 3072\)"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "not whole numbers below 10"),
    ],
)
def test_pickle_with_other_content_is_told(python, content, message):
    (python / "data_batch_1").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=message):
        read_cifar("cifar10", python)


def test_a_file_that_ends_early_after_a_whole_image_is_refused(tmp_path):
    """As a copy that was broken off may; the others are as long as published."""
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(bytes(3073 * 10_000))
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 * 10_000))
    (tmp_path / "data_batch_4.bin").write_bytes(bytes(3073 * 9_990))
    with pytest.raises(DataError, match=r"data_batch_4\.bin holds 9,990 images instead of 10,000: it was cut"):
        load_data(f"cifar10:{tmp_path}")
