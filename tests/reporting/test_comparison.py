"""Runs side by side: which belong together, their spread, and what differs."""

from dataclasses import replace

import pytest

from cosep.reporting.comparison import comparison_document, comparison_page, differences, spread
from tests.reporting.made import record
from tests.reporting.test_page import HOSTILE, documents


def run(name, accuracy, *, seed=0, degree=3, macs=0.5):
    made = record(name=name)
    settings = {**made.report.settings, "seed": seed}
    settings["select"] = {**settings["select"], "degree": degree, "seed": seed}
    after = replace(made.report.after, accuracy=accuracy, macs=macs * made.report.before.macs)
    return replace(made, report=replace(made.report, settings=settings, after=after))


def test_runs_that_differ_only_by_seed_are_one_configuration():
    found = comparison_document([run("a", 0.90), run("b", 0.92, seed=1), run("c", 0.8, degree=4)])
    first, second = found["configurations"]
    assert (first["runs"], second["runs"]) == (2, 1)
    assert first["spread"]["after"]["mean"] == pytest.approx(0.91)
    assert first["spread"]["after"]["sd"] == pytest.approx(0.0141421356)
    assert second["spread"]["after"]["sd"] is None
    assert found["differences"] == [["select.degree", "3", "4"]]
    assert [row["configuration"] for row in found["runs"]] == [0, 0, 1]


def test_the_spread_is_of_the_values_that_are_known():
    assert spread([1.0, None, 3.0]) == pytest.approx({"mean": 2, "sd": 2**0.5, "low": 1, "high": 3, "n": 2})
    assert spread([None])["mean"] is None


def test_groups_that_only_some_runs_have_are_compared_where_they_are():
    found = comparison_document([record(groups=2, name="a"), record(groups=3, name="b")])
    assert found["groups"] == ["layer0.conv1", "layer1.conv1", "layer2.conv1"]
    assert found["runs"][0]["groups"].get("layer2.conv1") is None
    assert found["configurations"][0]["widths"][2] == {"mean": 0.5, "sd": None, "low": 0.5, "high": 0.5, "n": 1}


def test_settings_that_one_run_does_not_know_differ():
    assert differences([{"a": 1}, {"a": 1, "b": 2}]) == [["b", "–", "2"]]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_runs_stay_data(name):
    page = comparison_page([run(name, 0.9), run("b", 0.8, degree=4)])
    plain = comparison_page([run("a", 0.9), run("b", 0.8, degree=4)])
    assert page.count("<") == plain.count("<")
    assert documents(page)["comparison"]["runs"][0]["name"] == name.replace("\ud800", "?")
