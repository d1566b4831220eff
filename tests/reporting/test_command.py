"""cosep report: the page, the comparison, figures, JSON."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.errors import ConfigError, RunError
from tests.hostile.made import ABOUT, make_run


def cosep(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)


def test_report_draws_the_page_again_and_ends_with_its_path(real_run, tmp_path):
    folder = tmp_path / real_run.name
    shutil.copytree(real_run, folder)
    (folder / "report.html").unlink()
    result = cosep(folder)
    assert result.exit_code == 0
    assert "layer1.0.conv1" in result.stderr
    assert result.stderr.rstrip().endswith("report.html")
    assert (folder / "report.html").read_bytes() == (real_run / "report.html").read_bytes()


def test_report_prints_json_and_nothing_else_on_standard_output(real_run):
    result = cosep(real_run, "--json")
    assert json.loads(result.stdout) == json.loads((real_run / "report.json").read_text())


def test_several_runs_make_a_comparison(real_runs, tmp_path):
    assert cosep(*real_runs, "--out", tmp_path / "new" / "both.html").exit_code == 0
    assert "3 runs compared" in (tmp_path / "new" / "both.html").read_text()
    assert len(json.loads(cosep(*real_runs, "--json").stdout)["runs"]) == 3


def test_figures_say_what_the_others_need(real_run, tmp_path):
    result = cosep(real_run, "--out", tmp_path / "p.html", "--figures", tmp_path / "figures")
    assert "add --data DATA" in result.stderr
    assert (tmp_path / "figures" / "projection.svg").exists()


def test_data_without_figures_is_refused(real_run):
    with pytest.raises(ConfigError, match="--data is for the figures of one run"):
        cosep(real_run, "--data", "digits")


def test_a_run_without_a_checkpoint_cannot_be_observed_again(real_run, tmp_path):
    with pytest.raises(RunError, match="names no checkpoint"):
        cosep(real_run, "--out", tmp_path / "p.html", "--figures", tmp_path / "f", "--data", "digits")


def test_figures_observe_the_images_that_the_run_saw(tmp_path, monkeypatch):
    about = {**ABOUT, "checkpoint": "net.pt", "input": [1, 8, 8], "holdout": 0.3, "batch_size": 32}
    folder = make_run(tmp_path / "run", about=about)
    # `make_run` keeps only the settings that a page needs; here they go back into a configuration.
    monkeypatch.setattr("cosep.config.replace_settings", lambda config, _changes: config)
    asked = []

    def load(_spec, **how):
        asked.append(how)
        raise ConfigError("that is all we want to know")

    monkeypatch.setattr("cosep.data.load_data", load)
    with pytest.raises(ConfigError, match="all we want"):
        cosep(folder, "--out", tmp_path / "p.html", "--figures", tmp_path / "figures", "--data", "imagefolder:photos")
    assert asked == [{"seed": 0, "holdout": 0.3, "batch_size": 32, "image_size": 8}]


def test_a_page_that_cannot_be_written_is_said_in_a_line(real_run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        cosep(real_run, "--out", tmp_path / "file" / "page.html")
