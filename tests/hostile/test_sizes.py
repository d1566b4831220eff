"""A small file cannot ask for much memory or time. Each of these would, of a reader that believes what it reads."""

import io
import json
import os
import pickle
import resource
import struct
import time
import zipfile
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import save

from cosep.data.cifar import read_cifar
from cosep.data.folders import read_folders
from cosep.errors import ArtifactError, ConfigError, DataError, ModelError, PlanError, RunError
from cosep.reporting import evidence_from_bytes
from cosep.reporting.folders import read_run
from cosep.runs.folder import read_description
from cosep.storage.artifacts import load
from cosep.storage.documents import decode
from cosep.storage.tensors import MOST_TENSORS
from cosep.storage.toml import read_toml
from cosep.surgery.plan import plan_from_document
from cosep.zoo import load_checkpoint
from tests.hostile.made import ABOUT, make_run, put, safetensors, small

SECONDS, MEGABYTES = 5, 300  # of processor time, and beyond what the process had


@pytest.fixture(autouse=True)
def bounded():
    """Every test here ends within these bounds."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - start < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES


def needs_torchvision():
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")


def nested(depth, leaf=0):
    """A value inside so many tuples of two that hashing or printing it never ends, in a few hundred bytes."""
    for _ in range(depth):
        leaf = (leaf, leaf)
    return leaf


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"a": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}}, None),
        ({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}}, None),
        ({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}, None),
        (b"{}", 2**63),
        (b"{}", 99_000_000),
        (b"[" * 100_000, None),
        (b'{"a":' * 10_000, None),
        (b"", None),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path, header, length):
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors(header, length=length))
    with pytest.raises(ModelError, match="is damaged or no safetensors file"):
        load_checkpoint(small(), path)


def test_a_safetensors_file_of_very_many_tensors_is_refused_before_they_are_made(tmp_path):
    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(entry % number for number in range(MOST_TENSORS + 1)) + "}"
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors(header.encode()))
    with pytest.raises(ModelError, match="it lists 100,001 tensors; at most 100,000 are read"):
        load_checkpoint(small(), path)


def torch_archive(entries, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def test_a_compressed_checkpoint_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "w.pt"
    path.write_bytes(torch_archive({"data.pkl": bytes(10**8)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(ModelError, match=r"its entries are compressed, which torch\.save never does"):
        load_checkpoint(small(), path)


def test_a_checkpoint_whose_entries_claim_to_be_larger_than_the_file_is_refused(tmp_path):
    data = bytearray(torch_archive({"data.pkl": b"x" * 10}))
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = data.index(signature) + offset
        data[at : at + 4] = struct.pack("<I", 2**31)
    path = tmp_path / "w.pt"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="its entries are larger than the file"):
        load_checkpoint(small(), path)


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(4, 1, 3, 3).to_sparse(),
        lambda: torch.zeros(4, 1, 3, 3, device="meta"),
        lambda: torch.zeros(4, 1, 3, 3, dtype=torch.complex64),
        lambda: torch.zeros(4, 1, 3, 3, dtype=torch.bool),
        lambda: torch.zeros(1).expand(10**12),
    ],
)
def test_tensors_that_are_no_plain_weights_are_refused_and_the_model_is_left(tmp_path, made):
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({**before, "0.weight": made()}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"sparse, quantized|no floats|wrong shape"):
        load_checkpoint(model, tmp_path / "w.pt")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [torch.complex64, torch.bool, torch.int64])
def test_an_artifact_with_weights_of_another_kind_is_refused(tmp_path, kind):
    folder = make_run(tmp_path / "run")
    state = small().state_dict()
    put(folder, "model.safetensors", save({**state, "0.weight": state["0.weight"].to(kind)}))
    with pytest.raises(ArtifactError, match=rf"0\.weight is torch\.float32 in the model and {kind} in the artifact"):
        load(folder, small)


@pytest.mark.parametrize(
    "content",
    [
        {"data": nested(60), "labels": []},
        {b"labels": [0], b"data": np.zeros((1, 1, 3072), np.uint8)},
        {"data": np.zeros((1, 3072), np.uint8), "labels": nested(60)},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [nested(60)]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [2**100_000]},
        {"data": bytearray(10), "labels": [0]},
        {"data": {1, 2}, "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [10]},
        [],
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickled_data_file_cannot_ask_for_much(tmp_path, content, protocol):
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(DataError, match="data_batch_1"):
        read_cifar("cifar10", tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b".",  # a bytearray of so many bytes
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b".",  # bytes, likewise
        b"\x80\x02X" + (2**32 - 1).to_bytes(4, "little") + b".",  # text
        b"\x80\x02r" + (2**32 - 1).to_bytes(4, "little") + b".",  # a place in a table
        b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b".",  # a frame
        b"\x80\x02" + b"]" * 300_000 + b".",  # very many instructions
        b"(" * 100_000,
        b"\x80\x02}" + pickle.dumps(nested(60), protocol=2)[2:-1] + b"K\x01s.",  # a key whose hash never ends
        b"\x80\x02}(" + pickle.dumps(nested(60), protocol=2)[2:-1] + b"K\x01u.",
        b"(" + pickle.dumps(nested(60), protocol=2)[2:-1] + b"K\x01d.",
        b"\x80\x04\x8f(" + pickle.dumps(nested(60), protocol=2)[2:-1] + b"\x90.",  # a member of a set, likewise
        b"I" + b"9" * 100_000 + b"\n.",
        b"\x80\x02\x8b" + (2**31 - 1).to_bytes(4, "little") + b".",  # a whole number of so many bytes
    ],
)
def test_an_instruction_that_claims_much_is_refused(tmp_path, data):
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="data_batch_1"):
        read_cifar("cifar10", tmp_path)


def test_class_names_are_read_only_so_far(tmp_path):
    record = b"".join(bytes([label]) + bytes(3072) for label in range(10))
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (tmp_path / name).write_bytes(record)
    with (tmp_path / "batches.meta.txt").open("wb") as file:
        file.truncate(10**11)  # a file of holes: nothing is on the disk
    with pytest.raises(DataError, match="names 1 classes instead of 10"):
        read_cifar("cifar10", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 100_000 + " = 1",
        "[a" + ".a" * 100_000 + "]",
        "x = {" + "a." * 50_000 + "a = 1}",
        'x = ["""a"""", {' + "a." * 50_000 + 'a = 1}, ""]',
        "x = [''' \n ''', {" + "a." * 50_000 + "a = 1}, '']",
        "a = " + "[" * 100_000,
        "a = " + "[" * 20 + "]" * 20,
        "a = " + "{b=" * 100_000,
        "seed = " + "9" * 100_000,
        "seed = 0x" + "f" * 100_000,
        "seed = 9223372036854775808",
        "x = '" + "y" * (2 << 20) + "'",
        'x = "' + '\\"' * 100_000,
        '"""' * 100_001,
        "\ud800",
    ],
)
def test_toml_cannot_ask_for_much(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"config\.toml is not valid TOML"):
        read_toml(path)


def test_dots_in_text_and_numbers_are_no_parts_of_a_key(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(f'x = "{"a." * 50}" # {"a." * 50}\ny = [{", ".join(["0.5"] * 50)}]\nz = """\n{"b." * 50}"""\r\n')
    assert read_toml(path)["y"] == [0.5] * 50


@pytest.mark.parametrize(
    "about",
    [
        {"input": [10**6, 10**6, 10**6]},
        {"input": [-1, 3]},
        {"input": [0]},
        {"input": "3,32,32"},
        {"classes": 10**12},
        {"classes": -1},
        {"class_names": [1, 2]},
        {"model": ["resnet20"]},
        {"checkpoint": 3},
    ],
)
def test_facts_of_a_run_that_make_no_sense_are_refused(tmp_path, about):
    folder = make_run(tmp_path / "run", about={**ABOUT, **about})
    name = next(iter(about))
    with pytest.raises(RunError, match=rf"config\.toml: about: {name}"):
        read_description(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"width": 10**12},
        {"width": 10**4000},
        {"kept": [10**12]},
        {"kept": [10**4000]},
        {"evidence": {"medoids": [10**12]}},
        {"evidence": {"k": 10**4000}},
        {"evidence": {"scores": [10**400]}},
        {"evidence": {"candidates": [2**24]}},
    ],
)
def test_a_plan_with_absurd_numbers_is_refused(tmp_path, change):
    document = json.loads((make_run(tmp_path / "run") / "plan.json").read_bytes())
    group = document["groups"][0]
    for name, value in change.items():
        group[name] = {**group[name], **value} if isinstance(value, dict) else value
    with pytest.raises(PlanError, match=r"groups\[0\]"):
        plan_from_document(document)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": NaN}', '{"a": 1' + "0" * 10_000 + "}", "[]"])
def test_json_that_is_deep_or_odd_is_refused(text):
    with pytest.raises(ArtifactError, match=r"nested too deeply|not valid JSON|a JSON object is needed"):
        decode(text.encode(), "plan.json")


def test_repeated_names_in_json_leave_one_value():
    assert decode(b'{"format": 1, "format": 2}', "plan.json") == {"format": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"before": {}},
        {"before": None},
        {"groups": []},
        {"groups": [{"group": "layer0.conv1"}]},
        {"seconds": {"observe": 1e300}},
        {"seconds": {"observe": 10**1000}},
        {"holdout_accuracy": {"before": 1e308, "after": 1e308}},  # whose sum is no number: found by fuzzing
        {"settings": {}},
        {"limits": [1]},
        {"recovery": {"updates": 1}},
    ],
)
def test_a_report_that_is_none_of_ours_is_refused(tmp_path, change):
    folder = make_run(tmp_path / "run")
    report = json.loads((folder / "report.json").read_bytes())
    put(folder, "report.json", json.dumps({**report, **change}).encode())
    with pytest.raises(ArtifactError, match=r"report\.json is no report of a run: the report"):
        read_run(folder)


def test_evidence_with_a_header_of_megabytes_is_refused(tmp_path):
    data = safetensors(b" " * (2 << 20))
    with pytest.raises(ArtifactError, match="its header has 2,097,152 bytes"):
        evidence_from_bytes(data, "0.safetensors")


def png(width, height):
    """A picture of one colour, a thousand times smaller than its pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes(min(((width + 7) // 8 + 1) * height, 10**6)))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png(10_000, 10_000), "exceeds limit"),
        (png(60_000, 60_000), "exceeds limit"),
        (png(2**31 - 1, 2**31 - 1), "cannot be read"),
        (png(1, 1_000_000), "1 x 1000000 pixels"),
        (POSTSCRIPT, "cannot identify image file"),
        (b"", "cannot identify image file"),
        (png(8, 8)[:40], "cannot be read"),
    ],
    ids=["large", "huge", "absurd", "elongated", "PostScript", "empty", "cut short"],
)
def test_an_image_that_is_a_bomb_or_a_program_is_refused(tmp_path, content, message):
    needs_torchvision()
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
        (tmp_path / part / "cat" / "1.jpg").write_bytes(content)
    train, *_ = read_folders(tmp_path, workers=0)
    with pytest.raises(DataError, match=rf"1\.jpg cannot be read as an image .*{message}|1\.jpg {message}"):
        next(train.batches(1))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_among_images_does_not_hang(tmp_path):
    needs_torchvision()
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
        os.mkfifo(tmp_path / part / "cat" / "1.jpg")
    train, *_ = read_folders(tmp_path, workers=0)
    with pytest.raises(DataError, match="it is no regular file"):
        next(train.batches(1))


def test_links_in_circles_end(tmp_path):
    needs_torchvision()
    for part in ("train", "val"):
        folder = tmp_path / part / "cat"
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(png(8, 8))
        for name in ("a", "b", "c"):
            (folder / name).symlink_to(folder, target_is_directory=True)
    train, *_ = read_folders(tmp_path, workers=0)
    assert len(train) == 1
