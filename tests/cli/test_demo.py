"""What a demo may remove: the run of an earlier demo, and nothing else. And that it says whatever came out."""

from types import SimpleNamespace

import pytest

from cosep.cli.demo import DRAWS, MARK, MODEL, _clear, choices
from cosep.config import preset
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


@pytest.mark.parametrize(("ours", "ahead"), [(0.97, 5), (0.932, 2), (0.5, 0)])
def test_the_demo_says_how_many_random_draws_are_behind_whatever_came_out(ours, ahead):
    asked = []

    def pruned(config, criterion):
        """Random channels come to 93.0, 93.1 ... 93.4 %, rebuilt; half of that only cut."""
        asked.append((criterion, config.seed, config.rebuild.solve))
        accuracy = ours if criterion == "elimination" else 0.93 + config.seed / 1000
        accuracy = accuracy if config.rebuild.solve else accuracy / 2
        return SimpleNamespace(report=SimpleNamespace(after=SimpleNamespace(accuracy=accuracy)))

    _, default, random, last = choices(pruned, preset())
    assert default.split()[-4:] == [f"{50 * ours:.2f}", "%", f"{100 * ours:.2f}", "%"]
    assert random.endswith("93.0 to 93.4 %")
    assert "46.5 to 46.7 %" in random
    assert last.strip() == f"Rebuilt, the default's channels are ahead of {ahead} of {DRAWS} random draws."
    assert {seed for criterion, seed, _ in asked if criterion == "random"} == set(range(DRAWS))


def test_a_folder_that_is_no_run_is_left_alone_with_words_about_the_demo(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not of an earlier demo\. Choose another folder"):
        _clear(tmp_path)
    assert contents(tmp_path) == {"notes.txt": b"mine"}
