"""What a demo may remove: the run of an earlier demo, and nothing else."""

import pytest

from cosep.cli.demo import MARK, MODEL, _clear
from cosep.errors import RunError
from cosep.runs.folder import opened


def run_in(folder, **facts):
    with opened(folder, {"about": {"model": MODEL, "data": "digits", **facts}}) as run:
        run.log("started")
        run.write("evidence/0.safetensors", b"seen")


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_users_own_run_of_the_same_model_is_left_alone(tmp_path):
    run_in(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="is not of an earlier demo"):
        _clear(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["notes.txt", "evidence/mine.safetensors", "evidence/notes.txt", "figures/a.png"])
def test_a_file_beside_a_demo_is_left_alone(tmp_path, name):
    run_in(tmp_path, made_by=MARK)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="is not of the earlier demo"):
        _clear(tmp_path)
    assert contents(tmp_path) == before


def test_an_earlier_demo_is_replaced(tmp_path):
    run_in(tmp_path, made_by=MARK)
    (tmp_path / "report.html").write_text("page")
    _clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    _clear(tmp_path / "nowhere")
