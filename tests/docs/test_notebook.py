"""The notebook runs from top to bottom, and what it stores is what cells like these show."""

import json

from tests.docs.notebook import PATH, code_cells, run, run_cell
from tests.docs.test_blocks import short_work  # noqa: F401


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, short_work):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(PATH.read_text())
    shown = run(notebook)
    stored = [cell["outputs"] for cell in code_cells(notebook)]
    kinds = [[output["output_type"] for output in outputs] for outputs in stored]
    assert [[output["output_type"] for output in outputs] for outputs in shown] == kinds
    assert sum(map(len, kinds)) >= 4  # a reader who does not run it sees what comes out
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "digits.onnx").exists()


def test_a_cell_shows_what_it_prints_and_its_last_value():
    printed, value = run_cell("x = 2\nprint('one')\nx + 1", {})
    assert (printed["text"], value["data"]["text/plain"]) == (["one\n"], ["3"])
    assert run_cell("x = 2", {}) == []


def test_the_notebook_names_no_folder_of_a_machine():
    text = PATH.read_text()
    assert not any(place in text for place in ("/tmp", "/home", "/root", "/work", "/Users"))
    assert json.loads(text)["nbformat"] == 4
