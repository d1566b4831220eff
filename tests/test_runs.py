import json
import os

import pytest
import torch

from cosep.errors import RunError
from cosep.runs.folder import Checkpoint, opened, read_description, to_toml, weights_digest, write_atomically

DESCRIPTION = {"about": {"model": "net", "input": [3, 8, 8]}, "select": {"degree": 2, "silhouette": "mean"}, "seed": 0}


def stored(folder, **document):
    with opened(folder, DESCRIPTION) as run:
        run.store(Checkpoint({"w": torch.arange(5.0), "empty": torch.zeros(0)}, {"n": 1, **document}))


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    stored(tmp_path, text="äö")
    with opened(tmp_path, DESCRIPTION) as run:
        back = run.restore()
    assert torch.equal(back.tensors["w"], torch.arange(5.0))
    assert back.document["text"] == "äö"


def test_a_new_folder_has_no_checkpoint(tmp_path):
    with opened(tmp_path / "new", DESCRIPTION) as run:
        assert run.restore() is None


def test_the_log_goes_back_to_where_the_checkpoint_was(tmp_path):
    with opened(tmp_path, DESCRIPTION) as run:
        run.log("one")
        run.store(Checkpoint({}, {}))
        run.log("two, of which the checkpoint knows nothing")
    with opened(tmp_path, DESCRIPTION) as run:
        run.restore()
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events == ["one"]


def test_a_folder_of_other_settings_is_refused_and_left_as_it_is(tmp_path):
    stored(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = {**DESCRIPTION, "select": {"degree": 3, "silhouette": "mean"}}
    with (
        pytest.raises(RunError, match=r"belongs to another run: its select\.degree is 2, this one's is 3"),
        opened(tmp_path, other),
    ):
        pass
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"is not a run folder: it holds thesis\.tex"), opened(tmp_path, DESCRIPTION):
        pass


def test_two_processes_cannot_write_one_folder(tmp_path):
    read, write = os.pipe()
    with opened(tmp_path, DESCRIPTION):
        child = os.fork()
        if child == 0:
            try:
                with opened(tmp_path, DESCRIPTION):
                    os.write(write, b"opened")
            except RunError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
    assert "another process is writing" in os.read(read, 1000).decode()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    stored(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[:-3]
    elif damage == "flip":
        content[-2] ^= 1
    else:
        content = bytearray(b"nonsense")
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged|altered"), opened(tmp_path, DESCRIPTION) as run:
        run.restore()


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_description_survives_the_way_through_toml(tmp_path):
    tricky = {"seed": 3, "about": {"name": 'quote " and \\ and ü', "list": [1, 2], "share": 0.25, "on": True, "a.b": 1}}
    (tmp_path / "config.toml").write_text(to_toml(tricky), encoding="utf-8")
    assert read_description(tmp_path) == tricky


def test_the_digest_changes_with_a_weight_and_with_nothing_else():
    net = torch.nn.Linear(3, 2)
    before = weights_digest(net)
    assert weights_digest(net.train(False)) == before
    with torch.no_grad():
        net.bias[0] += 1
    assert weights_digest(net) != before
