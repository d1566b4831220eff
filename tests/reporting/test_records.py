"""The report as a record: its form on disk, the form of the version before, and what is refused."""

import json
import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from cosep.errors import ArtifactError
from cosep.records import LayerRebuild, Outcome, RebuildRecord, RecoveryRecord, Tried
from cosep.reporting import Report
from cosep.reporting.folders import read_run
from cosep.storage.documents import decode
from tests.hostile.made import make_run, put
from tests.reporting.made import record

FORMER = (Path(__file__).parent / "former_report.json").read_bytes()  # of a run by the version before


def test_a_report_is_read_by_attributes_and_cannot_be_changed():
    report = record().report
    assert (report.change.macs, report.before.accuracy, report.groups[1].kept) == (0.5, 0.92, 4)
    assert report.groups[0].cut
    with pytest.raises(FrozenInstanceError):
        report.limits = ()


def test_what_was_written_is_read_back_the_same():
    made = record().report
    left = LayerRebuild("fc", "output", False, "too few images", math.nan, 0.5)
    solved = LayerRebuild("conv2", "sum", True, "re-solved", 0.5, 0.25, rows=640, columns=9)
    rebuilt = RebuildRecord((solved, left), divergence=0.25, divergence_cut=2.0, notes=("a note",))
    outcome = replace(made.groups[0], notes=("rounded",), recovery=RecoveryRecord(3, "done", (1.0,)))
    made = replace(made, groups=(outcome,), rebuild=rebuilt, damage={"a": 0.5}, tried=(Tried(0.575, -0.25),))
    again = Report.from_document(json.loads(json.dumps(made.to_document(), allow_nan=False)))
    assert math.isnan(again.rebuild.layers[1].error_before)
    known = replace(again.rebuild.layers[1], error_before=0.0)
    assert known == replace(left, error_before=0.0)
    assert replace(again.rebuild, layers=()) == replace(rebuilt, layers=())
    assert again.rebuild.layers[0] == solved
    assert replace(again, rebuild=None) == replace(made, rebuild=None)


def test_a_report_of_the_version_before_is_read_and_written_in_the_new_form():
    former = decode(FORMER, "report.json")
    report = Report.from_document(former)
    assert [(o.group, o.kept, o.masked_difference) for o in report.groups] == [
        (entry["group"], entry["kept"], entry["twin_difference"]) for entry in former["groups"]
    ]
    assert (report.rebuild, report.damage, report.tried) == (None, {}, ())
    assert sum(r.updates for r in report.recoveries) == sum(
        entry["recovery"]["updates"] for entry in former["groups"] if "recovery" in entry
    )
    assert report.made is None
    written = report.to_document()
    assert written["format"] == 2
    assert "twin" not in json.dumps(written)
    assert Report.from_document(written).groups == report.groups


def test_the_speedup_is_one_number_everywhere():
    document = Report.from_document(decode(FORMER, "report.json")).to_document()
    assert document["change"]["speedup"] == document["after"]["latency"]["speedup"]


def test_string_keys_still_work_and_warn():
    former = decode(FORMER, "report.json")
    report = Report.from_document(former)
    for name in former.keys() - {"change", "before", "after", "groups"}:  # these know more than they did
        with pytest.warns(DeprecationWarning, match="no dict any more"):
            assert report[name] == former[name]
    with pytest.warns(DeprecationWarning, match="Report"):
        assert report["change"]["macs"] == former["change"]["macs"]
    with pytest.warns(DeprecationWarning, match="Outcome"):
        assert report.groups[1]["twin_difference"] == former["groups"][1]["twin_difference"]
    with pytest.warns(DeprecationWarning, match="Outcome"):
        assert "recovery" not in report.groups[0]
    with pytest.warns(DeprecationWarning, match="Report"):
        assert report.get("nothing", 5) == 5
    with pytest.warns(DeprecationWarning, match="Report"):
        assert dict(report)["limits"] == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "the report has no 'format'"),
        (None, "the report is nothing"),
        ({"format": 3}, "it has format 3, and this cosep reads 1 and 2"),
        ({"format": 2}, "the report has no 'settings'"),
        ({**decode(FORMER, ""), "groups": [5]}, r"the report: groups\[0\] is of the kind int"),
    ],
)
def test_anything_else_is_refused_in_one_line(document, message):
    with pytest.raises(ArtifactError, match=rf"^run/report.json is no report of a run: {message}") as refusal:
        Report.from_document(document, "run/report.json")
    assert "\n" not in str(refusal.value)


def test_a_report_of_other_groups_than_the_plan_is_refused(tmp_path):
    folder = make_run(tmp_path / "run", group_names={0: "other"})
    assert read_run(folder).report.groups[0].group == "other"
    document = json.loads((folder / "report.json").read_bytes())
    document["groups"][0]["group"] = "another"
    put(folder, "report.json", json.dumps(document).encode())
    with pytest.raises(ArtifactError, match="of other groups than the plan"):
        read_run(folder)


def test_an_outcome_names_an_entry_of_the_version_before_by_its_new_names():
    entry = {"group": "a", "width": 4, "kept": 2, "reason": "knee", "notes": [], "twin_difference": 0.5}
    found = Outcome.from_document({**entry, "compensation": []})
    assert (found.masked_difference, found.recovery) == (0.5, None)
