import errno
import hashlib
import json
import os

import pytest
import torch
from safetensors.torch import load_file

import cosep.storage.folder as folder_module
from cosep.errors import ArtifactError
from cosep.storage import read_artifact, write_artifact
from cosep.storage.documents import encode
from cosep.storage.folder import FILES, MANIFEST, READY, _seal

ALL = (*FILES, MANIFEST)


def contents(value):
    generator = torch.Generator().manual_seed(value)
    return {
        "weights": {"conv.weight": torch.randn(2, 3, 3, 3, generator=generator), "bn.count": torch.tensor(value)},
        "plan": {"groups": [{"kept": [0, 2, value]}]},
        "report": {"accuracy": value / 7},
    }


def check(folder, value):
    """The folder holds exactly the artifact of this value."""
    artifact, expected = read_artifact(folder), contents(value)
    weights = artifact.weights()
    assert weights.keys() == expected["weights"].keys()
    assert all(torch.equal(tensor, expected["weights"][name]) for name, tensor in weights.items())
    assert (artifact.plan, artifact.report) == (expected["plan"], expected["report"])


def rewrite_manifest(folder, change, seal=True):
    """Change the manifest as somebody would who knows how to seal it."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    if seal:
        manifest["sha256"] = _seal(manifest)
    (folder / MANIFEST).write_bytes(encode(manifest, MANIFEST))


@pytest.fixture
def saved(tmp_path):
    return write_artifact(tmp_path / "run", **contents(1))


def test_what_is_written_is_read(saved):
    check(saved, 1)
    assert sorted(path.name for path in saved.iterdir()) == sorted(ALL)


def test_the_weights_are_plain_safetensors(saved):
    assert torch.equal(load_file(saved / "model.safetensors")["bn.count"], torch.tensor(1))


def test_the_same_values_give_the_same_bytes(tmp_path, saved):
    values = contents(1)
    values["weights"] = dict(reversed(values["weights"].items()))
    other = write_artifact(tmp_path / "other", **values)
    assert all((saved / name).read_bytes() == (other / name).read_bytes() for name in ALL)


def test_the_manifest_names_versions_sizes_and_checksums(saved):
    manifest = read_artifact(saved).manifest
    assert manifest["made_by"].keys() == {"cosep", "torch", "python"}
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        name: (saved / name).stat().st_size for name in FILES
    }


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "log.jsonl").write_text("{}\n")
    write_artifact(tmp_path, **contents(1))
    write_artifact(tmp_path, **contents(2), overwrite=True)
    check(tmp_path, 2)
    assert (tmp_path / "log.jsonl").read_text() == "{}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ALL, "checkpoints", "log.jsonl"])


def test_shared_tensors_are_stored_once_and_are_one_again(tmp_path):
    tied = torch.randn(64, 64)
    weights = {"decoder.weight": tied, "encoder.weight": tied, "own": tied.clone()}
    folder = write_artifact(tmp_path, weights=weights, plan={}, report={})
    assert (folder / "model.safetensors").stat().st_size < 3 * 64 * 64 * 4
    found = read_artifact(folder).weights()
    assert found["encoder.weight"] is found["decoder.weight"]
    assert all(torch.equal(found[name], tied) for name in weights)


def test_views_of_one_memory_are_stored_each_for_itself(tmp_path):
    both = torch.arange(12.0).view(3, 4)
    weights = {"all": both, "row": both[1], "flat": both.view(12), "turned": both.T, "none": both[:0]}
    folder = write_artifact(tmp_path, weights=weights, plan={}, report={})
    found = read_artifact(folder).weights()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8])
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = torch.tensor([0, 1, 1], dtype=dtype)
    folder = write_artifact(tmp_path, weights={"x": tensor}, plan={}, report={})
    found = read_artifact(folder).weights()["x"]
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"state": 1}, "x is a dict; only tensors.*get_extra_state"),
        (torch.empty(2, device="meta"), "x is a meta tensor"),
        (torch.eye(2).to_sparse(), r"x is a torch\.sparse_coo tensor"),
    ],
)
def test_what_safetensors_cannot_hold_is_refused_before_anything_is_written(tmp_path, tensor, message):
    with pytest.raises(ArtifactError, match=message):
        write_artifact(tmp_path / "run", weights={"x": tensor}, plan={}, report={})
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_is_not_replaced_unasked(saved):
    with pytest.raises(ArtifactError, match=r"already has manifest\.json, model\.safetensors.*overwrite=True"):
        write_artifact(saved, **contents(2))
    check(saved, 1)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ArtifactError, match="is a file; an artifact needs a folder"):
        write_artifact(tmp_path / "run", **contents(1))
    with pytest.raises(ArtifactError, match="a file, not a folder"):
        read_artifact(tmp_path / "run")


# Failures while writing


class Failing:
    """A function that fails at its n-th call, and counts."""

    def __init__(self, real, at):
        self.real, self.at, self.calls = real, at, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(*args, **kwargs)


def calls_of(monkeypatch, name, tmp_path):
    counter = Failing(getattr(os, name), at=None)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, counter)
        write_artifact(tmp_path / "counted", **contents(1))
    return counter.calls


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failure_at_any_moment_leaves_the_old_artifact_or_the_new_one(tmp_path, monkeypatch, name):
    total = calls_of(monkeypatch, name, tmp_path)
    assert total >= 5
    outcomes = []
    for at in range(1, total + 1):
        folder = write_artifact(tmp_path / f"{name}{at}", **contents(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, name, Failing(getattr(os, name), at))
            with pytest.raises(ArtifactError, match="No space left") as caught:
                write_artifact(folder, **contents(2), overwrite=True)
        unchanged = "unchanged" in str(caught.value)
        outcomes.append(unchanged)
        check(folder, 1 if unchanged else 2)
        if unchanged:
            assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
        write_artifact(folder, **contents(3), overwrite=True)
        check(folder, 3)
        assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
    assert outcomes[0]
    assert outcomes == sorted(outcomes, reverse=True)  # once it is the new one it stays the new one


def test_a_full_disk_leaves_nothing_in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Failing(os.fsync, at=1))
    with pytest.raises(ArtifactError, match=r"could not be written .*No space left"):
        write_artifact(tmp_path / "a" / "run", **contents(1))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_cleans_up_and_goes_on_as_an_interrupt(saved, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(saved, **contents(2), overwrite=True)
    monkeypatch.undo()
    check(saved, 1)
    assert sorted(path.name for path in saved.iterdir()) == sorted(ALL)


@pytest.mark.parametrize("moved", range(len(ALL) + 1))
def test_a_crash_between_two_moves_is_read_as_the_new_artifact(tmp_path, saved, moved):
    new = write_artifact(tmp_path / "new", **contents(2))
    (saved / READY).mkdir()
    for name in ALL[:moved]:
        os.replace(new / name, saved / name)
    for name in ALL[moved:]:
        os.replace(new / name, saved / READY / name)
    check(saved, 2)
    write_artifact(saved, **contents(3), overwrite=True)
    check(saved, 3)
    assert sorted(path.name for path in saved.iterdir()) == sorted(ALL)


def test_what_a_killed_writer_gathered_is_ignored_and_removed(saved):
    (saved / ".artifact-gathering").mkdir()
    (saved / ".artifact-gathering" / "plan.json").write_text("{")
    check(saved, 1)
    write_artifact(saved, **contents(2), overwrite=True)
    check(saved, 2)
    assert not (saved / ".artifact-gathering").exists()


# Damage and malice


@pytest.mark.parametrize("name", ALL)
def test_one_flipped_bit_anywhere_is_noticed(saved, name):
    path = saved / name
    data = path.read_bytes()
    for position in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ArtifactError, match=r"altered|newer|not valid JSON|format|plain name|missing"):
            read_artifact(saved)
    path.write_bytes(data)
    check(saved, 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
def test_a_truncated_file_is_said_to_be_cut_short(saved, name, keep):
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: int(len(data) * keep) if keep == 0.5 else keep])
    with pytest.raises(ArtifactError, match=rf"{name} has [\d,]+ bytes instead of [\d,]+: it was cut short"):
        read_artifact(saved)


def test_a_file_that_grew_is_refused(saved):
    with (saved / "report.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtifactError, match=r"report\.json has .*something was added"):
        read_artifact(saved)


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_a_truncated_manifest_is_refused(saved, keep):
    (saved / MANIFEST).write_bytes((saved / MANIFEST).read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"manifest\.json is not valid JSON"):
        read_artifact(saved)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        read_artifact(saved)


def test_a_folder_without_a_manifest_is_no_artifact(tmp_path, saved):
    (saved / MANIFEST).unlink()
    with pytest.raises(ArtifactError, match=r"has no manifest\.json: it is no artifact"):
        read_artifact(saved)
    with pytest.raises(ArtifactError, match="nowhere is not there"):
        read_artifact(tmp_path / "nowhere")


def test_a_newer_format_asks_for_an_upgrade(saved):
    rewrite_manifest(saved, lambda manifest: manifest.update(version=2))
    with pytest.raises(ArtifactError, match=r"format version 2; this cosep reads up to 1.*pip install --upgrade cosep"):
        read_artifact(saved)


def test_another_format_is_named(saved):
    rewrite_manifest(saved, lambda manifest: manifest.update(format="onnx"))
    with pytest.raises(ArtifactError, match="format 'onnx'; 'cosep-artifact' is needed"):
        read_artifact(saved)


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../secret", "sub/secret", "..", ".", "", "C:\\secret", "..\\secret", "C:secret", "a\0b"],
)
def test_a_path_outside_the_folder_is_refused_even_with_a_good_checksum(saved, name, seal):
    (saved.parent / "secret").write_text("{}")
    rewrite_manifest(saved, lambda m: m["files"].update({name: {"bytes": 2, "sha256": ""}}), seal)
    with pytest.raises(ArtifactError, match="not a plain name: it may lead out of the folder"):
        read_artifact(saved)


@pytest.mark.parametrize("name", ALL)
def test_a_link_out_of_the_folder_is_refused(saved, name):
    outside = saved.parent / "outside"
    os.replace(saved / name, outside)
    (saved / name).symlink_to(outside)
    with pytest.raises(ArtifactError, match=f"{name} is a link to .*outside the artifact's folder"):
        read_artifact(saved)


def test_a_link_within_the_folder_is_fine(saved):
    os.replace(saved / "plan.json", saved / "elsewhere.json")
    (saved / "plan.json").symlink_to("elsewhere.json")
    check(saved, 1)


def test_a_loop_of_links_leads_nowhere(saved):
    (saved / "plan.json").unlink()
    (saved / "plan.json").symlink_to("plan.json")
    with pytest.raises(ArtifactError, match="leads nowhere"):
        read_artifact(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_hang_the_reader(saved):
    (saved / "plan.json").unlink()
    os.mkfifo(saved / "plan.json")
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_artifact(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("files"),
        lambda m: m.update(files=[]),
        lambda m: m["files"].pop("plan.json"),
        lambda m: m["files"].update({"plan.json": 5}),
        lambda m: m["files"]["plan.json"].update(bytes="5"),
        lambda m: m.pop("shared"),
        lambda m: m.update(shared={"a": 1}),
        lambda m: m.update(version="1"),
        lambda m: m.pop("version"),
    ],
)
def test_a_manifest_of_another_shape_is_refused_though_its_checksum_fits(saved, change):
    rewrite_manifest(saved, change)
    with pytest.raises(ArtifactError, match="altered or is damaged"):
        read_artifact(saved)


@pytest.mark.parametrize("shared", [{"other": "absent"}, {"conv.weight": "bn.count"}])
def test_sharing_that_the_weights_contradict_is_refused(saved, shared):
    rewrite_manifest(saved, lambda manifest: manifest.update(shared=shared))
    with pytest.raises(ArtifactError, match=r"is shared with .* disagrees"):
        read_artifact(saved).weights()


def test_documents_too_large_to_read_are_neither_written_nor_read(tmp_path, saved, monkeypatch):
    monkeypatch.setattr(folder_module, "DOCUMENT_LIMIT", 10)
    with pytest.raises(ArtifactError, match=r"plan\.json has .* bytes; at most 10 are read"):
        read_artifact(saved)
    with pytest.raises(ArtifactError, match=r"plan\.json would have .* bytes; at most 10 can be read again"):
        write_artifact(tmp_path / "other", **contents(1))
    monkeypatch.setattr(folder_module, "MANIFEST_LIMIT", 10)
    with pytest.raises(ArtifactError, match="more than 10 bytes"):
        read_artifact(saved)


def test_weights_that_are_no_safetensors_are_refused_though_their_checksum_fits(saved):
    data = b"\xff" * 100
    (saved / "model.safetensors").write_bytes(data)
    entry = {"bytes": 100, "sha256": hashlib.sha256(data).hexdigest()}
    rewrite_manifest(saved, lambda manifest: manifest["files"].update({"model.safetensors": entry}))
    with pytest.raises(ArtifactError, match="damaged or no safetensors file"):
        read_artifact(saved).weights()
