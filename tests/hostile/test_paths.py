"""No path leads out of a run folder, neither to read nor to write."""

import hashlib
import json
import os

import pytest

from cosep.errors import ArtifactError, CosepError, RunError
from cosep.reporting.folders import draw_page, read_run
from cosep.runs.folder import CHECKPOINT, Checkpoint, opened, read_description, write_atomically
from tests.hostile.made import ABOUT, all_files, make_run

OURS = [
    "config.toml", "log.jsonl", "checkpoint.safetensors", ".lock", "report.html", ".tmp-report.html",
    ".tmp-config.toml", "model.safetensors", "plan.json", "report.json", "manifest.json",
    "evidence/0.safetensors", "evidence/new",
]  # fmt: skip


@pytest.fixture
def outside(tmp_path):
    """A folder that belongs to someone else."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_bytes(b"precious")
    (folder / "plan.json").write_bytes(b"theirs")
    return folder


@pytest.mark.parametrize("name", OURS)
def test_a_link_out_of_a_run_folder_is_neither_read_nor_written(tmp_path, outside, name):
    folder = make_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside / "precious")
    before = all_files(outside)
    with pytest.raises((RunError, ArtifactError), match="outside the"):
        draw_page(folder)
    with pytest.raises(RunError, match="outside the run folder"), opened(folder, {"about": ABOUT}):
        pass
    with pytest.raises(RunError, match="outside the run folder"):
        read_description(folder)
    assert all_files(outside) == before


@pytest.mark.parametrize("name", ["evidence", ".artifact-ready", ".artifact-gathering"])
def test_a_folder_that_is_a_link_out_is_refused(tmp_path, outside, name):
    folder = make_run(tmp_path / "run")
    if (folder / name).is_dir():
        (folder / name / "0.safetensors").unlink()
        (folder / name).rmdir()
    (folder / name).symlink_to(outside, target_is_directory=True)
    before = all_files(outside)
    with pytest.raises(RunError, match="outside the run folder"):
        read_run(folder)
    assert all_files(outside) == before


def test_links_of_the_user_and_links_within_are_left_alone(tmp_path, outside):
    folder = make_run(tmp_path / "run")
    (folder / "notes").symlink_to(outside / "precious")
    (folder / "plan.json").rename(folder / "plan-1.json")
    (folder / "plan.json").symlink_to("plan-1.json")
    assert len(read_run(folder).plan.groups) == 1


@pytest.mark.parametrize("name", ["../outside/precious", "/etc/hostname", "evidence/../../outside/precious", "x/y"])
def test_a_checkpoint_vouches_only_for_files_of_a_run(tmp_path, outside, name):
    seal = {"bytes": 8, "sha256": hashlib.sha256(b"precious").hexdigest()}
    with opened(tmp_path / "run", {"about": ABOUT}) as run:
        run._seals[name] = seal
        run.store(Checkpoint({}, {}))
        with pytest.raises(RunError, match="which is no file of a run"):
            run.restore()


@pytest.mark.parametrize("name", ["../outside/plan.json", "/etc/hostname", "a/../../x", "C:\\x", "..", ""])
def test_a_manifest_may_not_name_files_elsewhere(tmp_path, outside, name):
    folder = make_run(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for place in ("files", "beside"):
        changed = {**manifest, place: {**manifest[place], name: {"bytes": 1, "sha256": ""}}}
        (folder / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(ArtifactError, match=r"not a plain name|altered"):
            read_run(folder)


def test_a_write_replaces_a_link_and_leaves_what_it_led_to(tmp_path, outside):
    (tmp_path / ".tmp-page").symlink_to(outside / "precious")
    (tmp_path / "page").symlink_to(outside / "precious")
    write_atomically(tmp_path / "page", b"new")
    assert (outside / "precious").read_bytes() == b"precious"
    assert (tmp_path / "page").read_bytes() == b"new"
    assert not (tmp_path / "page").is_symlink()


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a/b", "nul\0", "x" * 5000])
def test_the_name_of_a_group_is_never_the_name_of_a_file(tmp_path, name):
    folder = make_run(tmp_path / "run", group_names={0: name})
    before = set(tmp_path.rglob("*"))
    draw_page(folder)
    assert set(tmp_path.rglob("*")) - before == {folder / "report.html"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["config.toml", "evidence/0.safetensors", CHECKPOINT])
def test_a_pipe_in_a_run_folder_does_not_hang_its_reader(tmp_path, name):
    folder = make_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    try:
        read_run(folder)  # what is not a file is not there
        with opened(folder, {"about": ABOUT}) as run:
            run.restore()
    except CosepError:
        pass
