import copy
import json
from dataclasses import replace

import pytest
from torch import nn

from cosep.errors import PlanError
from cosep.groups import find_groups
from cosep.records import GroupPlan, Plan, Selection
from cosep.surgery import check_plan, fingerprint, plan_for, plan_from_document, plan_to_document
from tests.groups import nets

SELECTION = Selection(
    channels=8,
    kept=(1, 4, 6),
    reason="knee",
    k=3,
    candidates=(2, 3, 4),
    scores=(0.1, 0.5, 0.75),
    fit=(0.125, 0.5, 0.625),
    losses=(3.0, 2.0, 1.0),
    clusters=(0, 0, 1, 1, 1, 2, 2, 2),
    medoids=(0, 3, 7),
    representatives=(1, 4, 6),
    notes=("rounded",),
)


@pytest.fixture
def grouped():
    model, x = nets.built(nets.Grouped)
    return model, find_groups(model, x)


@pytest.fixture
def plan(grouped):
    model, groups = grouped
    return plan_for(
        model,
        groups,
        [
            GroupPlan("a", 8, (0, 2, 4, 5), "knee", replace(SELECTION, kept=(0, 2, 4, 5))),
            GroupPlan("b", 5, (0, 1), "half"),
        ],
    )


def test_a_plan_survives_json_with_its_evidence(plan):
    assert plan_from_document(json.loads(json.dumps(plan_to_document(plan)))) == plan


def test_a_saved_plan_has_the_channels_of_a_group_on_one_line(plan, tmp_path):
    odd = replace(plan, notes=("[\n1,\n2]", "[1,   2]"))  # what looks like a list in a text stays as it is
    text = odd.save(tmp_path / "plan.json").read_text()
    assert '"kept": [0, 2, 4, 5],' in text
    assert '"scores": [0.1, 0.5, 0.75],' in text
    assert Plan.load(tmp_path / "plan.json").notes == odd.notes
    (tmp_path / "plan.json").write_text(text.replace("[0, 2, 4, 5],", "[0, 2, 4],", 1))  # a person's edit
    assert Plan.load(tmp_path / "plan.json").groups[0].kept == (0, 2, 4)


def test_a_plan_says_what_stays_on_every_side(plan):
    assert plan.layout == {
        ("a", "out"): (0, 2, 4, 5),
        ("g", "in"): (0, 2, 4, 5),
        ("b", "out"): (0, 1),
        ("f", "in"): (0, 1),
    }


def test_a_fingerprint_knows_names_and_shapes_but_not_values():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert fingerprint(model) == fingerprint(nets.shaken(copy.deepcopy(model)))
    assert fingerprint(model) != fingerprint(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    assert fingerprint(model) != fingerprint(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (GroupPlan("nobody", 8, (0,), ""), "names group 'nobody', which the model does not have"),
        (GroupPlan("a", 9, (0, 4), ""), "gives group 'a' 9 channels; it has 8"),
        (GroupPlan("a", 8, (), ""), "keeps no channel of group 'a'"),
        (GroupPlan("a", 8, (4, 0), ""), "ascending order"),
        (GroupPlan("a", 8, (0, 0, 4, 4), ""), "must be different"),
        (GroupPlan("a", 8, (0, 8), ""), "keeps channel 8 of group 'a', whose channels are 0 to 7"),
        (GroupPlan("a", 8, (-1, 4), ""), "keeps channel -1"),
        (
            GroupPlan("a", 8, (0, 1, 4), ""),
            "equally many channels in each of its 2 blocks of 4; the plan keeps between 1 and 2",
        ),
        (GroupPlan("f", 3, (0, 1), ""), "group 'f' cannot be pruned: feeds the classifier's output"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_is_cut(grouped, chosen, message):
    model, groups = grouped
    with pytest.raises(PlanError, match=message):
        plan_for(model, groups, [chosen])


def test_a_plan_for_another_model_is_refused(grouped, plan):
    _, groups = grouped
    with pytest.raises(PlanError, match="made for a model with other parameters"):
        check_plan(nets.Plain(), groups, plan)


def test_a_group_is_planned_once(grouped):
    model, groups = grouped
    once = GroupPlan("b", 5, (0,), "")
    with pytest.raises(PlanError, match="names group 'b' twice"):
        check_plan(model, groups, Plan(groups=(once, once)))


def _with(path, value):
    def change(document):
        *way, last = path
        for step in way:
            document = document[step]
        if value is _GONE:
            del document[last]
        else:
            document[last] = value

    return change


_GONE = object()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with(["format"], 3), "has format 3; this version reads up to 2. Install a newer cosep"),
        (_with(["format"], 0), "has format 0"),
        (_with(["format"], True), "format is bool; int is needed"),
        (_with(["format"], _GONE), "has no 'format'"),
        (_with(["groups"], {}), "groups is dict; list is needed"),
        (_with(["groups", 0], 3), r"groups\[0\] is a int; a JSON object is needed"),
        (_with(["groups", 0, "kept"], [0, 2.5]), r"groups\[0\].kept must hold whole numbers"),
        (_with(["groups", 0, "kept"], [0, 99]), r"groups\[0\].kept has 99, beyond the group's 8 channels"),
        (_with(["groups", 0, "kept"], []), r"groups\[0\].kept is empty"),
        (_with(["groups", 1, "group"], "a"), "names a group twice"),
        (_with(["groups", 0, "width"], _GONE), r"groups\[0\] has no 'width'"),
        (_with(["groups", 0, "evidence", "scores"], ["high"]), r"evidence.scores must hold numbers only"),
        (_with(["groups", 0, "evidence", "k"], "three"), r"evidence.k is 'three'"),
        (_with(["groups", 0, "notes"], [1]), r"groups\[0\].notes must hold text only"),
        (_with(["groups", 0, "evidence"], []), r"evidence is list; dict is needed"),
        (_with(["layout", 0, "side"], "up"), r"layout\[0\].side is 'up'; it must be 'out' or 'in'"),
        (_with(["layout", 0, "kept"], [3, 1]), r"layout\[0\].kept must be different numbers in ascending order"),
        (_with(["layout", 0, "kept"], []), r"layout\[0\].kept is empty"),
        (_with(["layout", 0, "module"], None), r"layout\[0\].module is NoneType; str is needed"),
        (_with(["fingerprint"], _GONE), "has no 'fingerprint'"),
        (_with(["input"], 7), "the plan.input is int; list is needed"),
        (_with(["notes"], 7), "notes must hold text only"),
        (_with(["cost"], 7), "cost is a int; a JSON object is needed"),
    ],
)
def test_a_damaged_document_is_refused_with_what_is_wrong_and_where(plan, change, message):
    document = plan_to_document(plan)
    change(document)
    with pytest.raises(PlanError, match=message):
        plan_from_document(document)


@pytest.mark.parametrize("document", [None, [], "plan", 3])
def test_what_is_not_an_object_is_not_a_plan(document):
    with pytest.raises(PlanError, match=r"the plan is a .*; a JSON object is needed"):
        plan_from_document(document)


def test_a_document_of_the_first_format_is_read_and_what_the_group_says_holds(grouped, plan):
    document = plan_to_document(plan)
    document["format"] = 1
    for entry in document["groups"]:
        evidence = entry.pop("evidence")
        # After a roll-back that version left the kept channels and the reason of the choice under `selection`.
        stale = {"channels": entry["width"], "kept": [0], "reason": "stale", "notes": entry.pop("notes")}
        entry["selection"] = {**evidence, **stale}
    document["groups"][1]["selection"] = None
    for name in ("input", "cost", "notes"):
        del document[name]
    read = plan_from_document(document)
    assert [(g.kept, g.reason, g.width) for g in read.groups] == [(g.kept, g.reason, g.width) for g in plan.groups]
    assert read.groups[0].selection == plan.groups[0].selection
    assert (read.layout, read.fingerprint) == (plan.layout, plan.fingerprint)


def test_kept_channels_reason_and_notes_stand_in_one_place(plan):
    entry = plan_to_document(plan)["groups"][0]
    assert {"kept", "reason", "notes"}.isdisjoint(entry["evidence"])
    moved = plan.groups[0].keeping((1, 5), "why")
    assert (moved.kept, moved.reason) == (moved.selection.kept, moved.selection.reason) == ((1, 5), "why")
