"""The page of a run: made from records alone, small, and deaf to whatever names contain."""

import base64
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from cosep.errors import ArtifactError, RunError
from cosep.records import Selection
from cosep.reporting.folders import draw_page, read_run
from cosep.reporting.html import embedded
from cosep.reporting.page import (
    group_document,
    lost_document,
    matrix_document,
    row_order,
    run_document,
    run_page,
    summary,
)
from cosep.reporting.records import HeldOut, Report
from cosep.reporting.run import short_name
from cosep.reporting.words import change, count, duration, points, reason_in_words, size
from cosep.runs import search
from cosep.runs.state import Callbacks
from cosep.selection.candidates import ranked
from cosep.selection.rules import Target
from cosep.selection.rules.damage import DamageRule
from tests.reporting.made import networked_run, rebuilt_run, record, without_evidence

HOSTILE = [
    "</script><script>document.title = 'hacked'</script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes\" & 'more' `ticks` ${1}",
    "x" * 500,
    "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "<!-- <script>",
    "a\u2028b\ud800c",
]


def documents(page):
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, flags=re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def test_every_group_and_figure_is_in_the_page():
    run = record(groups=3)
    found = documents(run_page(run))
    assert set(found) == {"run", "group-0", "group-1", "group-2"}
    assert [group["name"] for group in found["run"]["groups"]] == ["layer0.conv1", "layer1.conv1", "layer2.conv1"]
    tiles = {tile["label"]: tile for tile in found["run"]["headline"]}
    assert list(tiles) == ["Test accuracy", "MACs", "Parameters", "File size", "Latency", "Time it took"]
    assert (tiles["Test accuracy"]["before"], tiles["Test accuracy"]["after"]) == ("92.00 %", "91.00 %")
    assert tiles["Test accuracy"]["change"] == "−1.00 points"
    assert (tiles["MACs"]["before"], tiles["MACs"]["after"], tiles["MACs"]["change"]) == ("2.00 k", "1.00 k", "−50.0 %")
    assert tiles["Time it took"]["after"] == "4.0 s"


def test_the_summary_says_what_was_removed():
    assert summary(record(groups=3, channels=8)) == (
        "12 of 24 prunable channels were removed, in 3 of 3 groups. The network is left with 50.0 % of its "
        "multiply-accumulates and 50.0 % of its parameters; test accuracy went from 92.00 % to 91.00 % (−1.00 points)."
    )


def test_the_same_records_give_the_same_page():
    assert run_page(record()) == run_page(record())


def test_the_page_asks_for_nothing_from_outside():
    page = run_page(record())
    assert "default-src 'none'" in page
    for outside in ("src=", "href=", "@import", "url(http", "fetch(", "XMLHttpRequest"):
        assert outside not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_data(name):
    run = record(groups=1, class_names=[name] * 4, group_names={0: name}, name=name)
    run = replace(run, about={**run.about, "model": name, "data": name})
    page = run_page(run)
    page.encode("utf-8")
    plain = run_page(record(groups=1))
    assert page.count("<script") == plain.count("<script")
    assert page.count("<") - 2 * page.count("&lt;") <= plain.count("<")
    found = documents(page)["run"]
    assert found["groups"][0]["name"] == name.replace("\ud800", "?")


def test_numbers_that_are_not_finite_become_null():
    assert json.loads(embedded({"a": [float("nan"), float("inf"), 1.0, 0.123456]})) == {"a": [None, None, 1, 0.1235]}


def test_a_run_of_sixty_wide_groups_stays_below_six_megabytes():
    page = run_page(record(groups=60, channels=512, classes=100))
    assert len(page.encode()) < 6e6
    matrix = documents(page)["group-0"]["matrix"]
    assert matrix["total"] == 4950
    assert 8 <= len(matrix["pairs"]) < 300


def test_a_very_wide_group_has_a_thinner_curve_that_keeps_its_knee():
    run = record(groups=1, channels=3000)
    curve = documents(run_page(run))["group-0"]["curve"]
    assert len(curve["k"]) < 700
    assert curve["knee"] == 1500
    assert 1500 in curve["k"]
    assert curve["k"][-1] == 2999


def test_the_matrix_can_be_read_back():
    run = record(groups=1)
    _, plan, evidence = run.groups()[0]
    found = matrix_document(run, plan, evidence, 300)
    steps = torch.frombuffer(bytearray(base64.b64decode(found["data"])), dtype=torch.uint8).reshape(8, 6)
    torch.testing.assert_close(steps.float() / 255 * 2, evidence.profiles.float()[found["rows"]], atol=0.005, rtol=0)


def test_channels_of_a_cluster_lie_together_and_those_that_stay_come_first():
    run = record(groups=1)
    _, plan, evidence = run.groups()[0]
    order = row_order(plan, evidence).tolist()
    assert sorted(order) == list(range(8))
    for stays, goes in zip(order[::2], order[1::2], strict=True):
        assert (stays % 2, goes) == (0, stays + 1)


def test_pairs_that_lost_their_best_separator_are_counted_and_sorted():
    run = record(groups=1)
    _, plan, evidence = run.groups()[0]
    evidence = replace(
        evidence,
        best=torch.tensor([1, 3, 0, 5, 2, 7]),
        best_kept=torch.tensor([0, 2, 0, 4, 2, 6]),
        best_score=torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        best_kept_score=torch.tensor([0.9, 0.5, 1.0, 0.8, 1.0, 0.7]),
    )
    found = lost_document(run, plan, evidence)
    assert (found["count"], found["total"]) == (4, 6)
    assert [row[:2] for row in found["rows"]] == [[0, 2], [2, 3], [1, 2], [0, 1]]
    assert found["after"] == pytest.approx(4.9 / 6)


def test_a_group_kept_whole_loses_no_separator():
    run = record(groups=1)
    entry, plan, evidence = run.groups()[0]
    whole = replace(plan, kept=tuple(range(8)), reason="no knee: kept whole")
    found = group_document(run, entry, whole, evidence, 300)
    assert found["lost"]["count"] == 0
    assert found["lost"]["before"] == found["lost"]["after"]
    assert "no knee" in found["words"][0]


def test_a_page_without_evidence_accuracy_or_latency_can_be_drawn():
    run = without_evidence(record())
    report = replace(
        run.report,
        before=replace(run.report.before, accuracy=None, latency=None),
        after=replace(run.report.after, accuracy=None, latency=None),
        holdout_accuracy=HeldOut(),
        recovery=None,
    )
    found = documents(run_page(replace(run, report=report, about={})))
    assert found["run"]["headline"][0]["after"] == "not measured"
    assert found["group-0"]["matrix"] is None
    assert found["run"]["title"] == "run"


def test_a_run_in_which_nothing_could_be_pruned_has_a_page():
    assert run_document(record(groups=0))["groups"] == []
    run_page(record(groups=0))


def test_classes_have_the_names_of_the_data_set_where_it_has_some():
    assert run_document(record(class_names=["cat", "dog", "owl", "fox"]))["classes"] == ["cat", "dog", "owl", "fox"]
    assert run_document(record())["classes"] == ["class 0", "class 1", "class 2", "class 3"]


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("resnet56", "resnet56"),
        ("torchvision:resnet50", "torchvision:resnet50"),
        ("cifar10:/a/b c", "cifar10"),
        ("imagefolder:/a/photos/", "photos"),
        ("imagefolder:C:\\photos", "photos"),
        ("/a/b/net.py:build", "net.py:build"),
        ("", ""),
    ],
)
def test_the_title_leaves_out_where_things_lie(spec, short):
    assert short_name(spec) == short


def words(reason, degree=3, **changes):
    run = record(groups=1)
    outcome, plan, _ = run.groups()[0]
    report = replace(run.report, settings={"select": {"degree": degree, "representative": "weighted"}})
    return " ".join(reason_in_words(replace(plan, reason=reason), replace(outcome, **changes), report))


def test_the_reason_is_said_in_words():
    assert "knee of the fitted silhouette curve is at k = 4" in words("knee")
    assert "largest norm" in words("knee")
    assert "always in the middle" in words("knee", degree=2)
    assert "always in the middle" not in words("knee")
    assert "kept whole" in words("flat curve: kept whole")
    assert "The width was given" in words("width given")
    assert words("cutting to 3 cost 9.1 points in all, 1 are allowed: kept whole").startswith("Cutting to 3 cost")
    assert "Rounded up from 3 to 4 channels." in words("knee", notes=("rounded up from 3 to 4 channels",))


def eliminated(**changes):
    """A run whose first group was chosen by elimination, under a limit."""
    run = rebuilt_run()
    outcome, plan, _ = run.groups()[0]
    reason = "limit on MACs: damage 0.1 at half its width"
    lost = (0.5, 0.25, 0.1)
    selection = Selection(8, (0, 2, 4, 6), reason, None, (2, 4, 6), tuple(1 - part for part in lost), (), lost)
    plan = replace(plan, selection=replace(selection, **changes))
    settings = {**run.report.settings, "select": {"criterion": "elimination"}}
    return replace(run, report=replace(run.report, settings=settings)), outcome, plan


def test_a_width_under_a_limit_on_the_time_is_explained_by_the_damage_as_under_one_on_macs():
    run, outcome, plan = eliminated()
    rule = DamageRule()
    group = ranked(plan.group, torch.rand(8))
    found = rule([group], Target(milliseconds=5.0), Timed())
    reason = found.widths[plan.group].reason
    said = reason_in_words(replace(plan, selection=replace(plan.selection, reason=reason)), outcome, run.report)
    assert said[0].startswith("The width follows from the limit on latency in ms and from the damage")


class Timed:
    """A probe of a network that takes a millisecond a channel."""

    def macs(self, widths):
        return sum(widths.values(), 0.0)

    parameters = milliseconds = macs

    def damage(self, widths):
        return dict.fromkeys(widths, 0.1)


def test_a_width_by_damage_is_explained_by_the_damage_and_by_what_stays():
    run, outcome, plan = eliminated()
    said = reason_in_words(plan, outcome, run.report)
    assert said[0].startswith("The width follows from the limit on MACs and from the damage")
    assert "the outputs move by 0.1 (KL, temperature 4), the smallest of 3 groups." in said[0]
    assert "The 4 channels that stay are those that together reproduce best" in said[1]
    assert "75.0 % of it" in said[1]
    searched = eliminated(reason="size that was found: damage 0.1 at half its width")
    assert "from the size that was found" in reason_in_words(searched[2], outcome, run.report)[0]
    spare = eliminated(reason="limit on MACs: damage 0.1 at half of the 6 channels that are needed")
    said = reason_in_words(spare[2], outcome, run.report)[0]
    assert "with half of the 6 channels that are needed, and all others whole" in said
    assert said.endswith("The other 2 give the same for every image: they go for nothing.")


def test_the_curve_of_elimination_is_not_called_a_silhouette():
    run, outcome, plan = eliminated()
    found = group_document(run, outcome, plan, None, 300)["curve"]
    assert found["title"] == "How much k channels can reproduce of what the next layers compute"
    assert (found["silhouette"], found["stays"], found["knee"], found["word"]) == (False, 4, None, "share reproduced")
    assert not run_document(run)["separates"]
    own = group_document(record(), *record().groups()[0], 300)["curve"]
    assert (own["silhouette"], own["word"]) == (True, "silhouette")
    assert run_document(record())["separates"]
    scored = eliminated(losses=())  # where the layers behind are too wide, norms decide
    assert group_document(scored[0], outcome, scored[2], None, 300)["curve"]["word"] == "share of scores"


def test_every_layer_is_on_the_page_with_its_cost_before_and_after():
    run = networked_run()
    found = documents(run_page(run))["run"]
    assert [part["layer"] for part in found["layers"]] == ["stem", "layer0.conv1", "conv2", "", "fc"]
    assert found["layers"][1] == {
        "layer": "layer0.conv1", "kind": "Conv2d", "sources": [0], "inputs": [8, 8], "outputs": [8, 4],
        "macs": [800, 400], "milliseconds": [0.5, 0.25], "groups": ["layer0.conv1"], "why": "knee",
    }  # fmt: skip
    assert found["layers"][3]["sources"] == [0, 2]
    again = Report.from_document(json.loads(json.dumps(run.report.to_document())))
    assert again.layers == run.report.layers


@pytest.mark.parametrize("wrong", [{"sources": [7]}, {"macs": [1]}, {"sources": [-2]}, {"milliseconds": "fast"}])
def test_layers_that_cannot_be_drawn_are_refused(wrong):
    document = networked_run().report.to_document()
    document["layers"][1] |= wrong
    with pytest.raises(ArtifactError, match="layers"):
        Report.from_document(document)


def test_the_rebuild_is_shown_layer_by_layer_with_its_errors_and_the_divergence():
    found = documents(run_page(rebuilt_run()))["run"]["rebuild"]
    assert found["layers"] == [
        ["conv2", "the sum it ends in", 0.5, 0.125, 640, 9, "re-solved"],
        ["fc", "its own output", 0.25, 0.125, 640, 4, "re-solved"],
        ["up", "its own output", None, None, 0, 0, "it is a ConvTranspose2d"],
    ]
    text = " ".join(found["words"])
    assert "2 of 3 layers were solved anew" in text
    assert "fell from 0.375 to 0.125" in text  # means of (0.5, 0.25) and (0.125, 0.125)
    assert "(KL, temperature 4) is 0.25; only cut, with any BatchNorm measured again, it was 2." in text
    assert found["words"][-1] == "A note."


def test_the_damage_of_each_group_is_shown_with_the_largest_first_and_the_search_by_size():
    found = documents(run_page(rebuilt_run()))["run"]
    assert found["damage"] == [["layer1.conv1", 8, 4, 0.75], ["layer0.conv1", 8, 4, 0.1]]
    assert found["tried"] == [[0.3625, 4], [0.4688, 1.5], [0.575, 0.5]]  # four digits a number


def test_a_run_that_was_not_rebuilt_shows_no_rebuild():
    found = run_document(record())
    assert (found["rebuild"], found["damage"], found["tried"]) == (None, [], [])


def test_a_rebuild_of_parts_says_nothing_of_the_outputs():
    run = rebuilt_run()
    parts = replace(run.report.rebuild, divergence=None, divergence_cut=None, notes=())
    found = run_document(replace(run, report=replace(run.report, rebuild=parts)))
    assert "KL" not in " ".join(found["rebuild"]["words"])


def test_numbers_are_written_as_people_write_them():
    assert [count(n) for n in (7, 1234, 2_378_368, 4.1e9)] == ["7", "1.23 k", "2.38 M", "4.10 G"]
    assert [size(n) for n in (7, 599_264)] == ["7 bytes", "599.26 kB"]
    assert [duration(n) for n in (0.23, 42.4, 75, 3725)] == ["0.2 s", "42 s", "1 min 15 s", "1 h 2 min"]
    assert [change(n) for n in (0.69, 1, 1.2)] == ["−31.0 %", "±0.0 %", "+20.0 %"]
    assert [points(n) for n in (-0.0123, 0, 0.001)] == ["−1.23 points", "±0.00 points", "+0.10 points"]


def test_a_real_run_leaves_its_page_and_the_page_can_be_drawn_again(real_run):
    written = (real_run / "report.html").read_bytes()
    (real_run / "report.html").unlink()
    assert draw_page(real_run).read_bytes() == written
    run = read_run(real_run)
    assert len(run.evidence) == len(run.plan.groups) > 0
    for index, plan in enumerate(run.plan.groups):
        evidence = run.evidence[index]
        assert evidence.profiles.shape == (plan.width, 45)
        assert set(evidence.best_kept.tolist()) <= set(plan.kept)
        assert bool((evidence.best_kept_score <= evidence.best_score).all())


def test_a_run_of_the_default_shows_its_rebuild_its_damage_and_the_sizes_that_were_tried(make_run):
    folder = make_run("own", order="together", select={"criterion": "elimination", "width_rule": "damage"})
    run = read_run(folder)
    found = documents((folder / "report.html").read_text(encoding="utf-8"))["run"]
    assert {row[0] for row in found["damage"]} == {plan.group for plan in run.plan.groups}
    assert len(found["tried"]) == search.STEPS
    layers = {row[0]: row for row in found["rebuild"]["layers"]}
    assert layers["layer2.0.conv2"][1] == "the sum it ends in"
    assert layers["layer2.0.conv1"][1] == "its own output"
    assert all(row[3] <= row[2] for row in layers.values() if row[3] is not None)
    assert "KL" in " ".join(found["rebuild"]["words"])


def test_a_run_that_was_stopped_ends_with_the_same_evidence(make_run, real_run):
    def stop(group, stage):
        if (group, stage) == ("layer2.0.conv1", "cut"):
            raise KeyboardInterrupt

    folder = real_run.parent / "stopped"
    with pytest.raises(KeyboardInterrupt):
        make_run(folder, callbacks=Callbacks(on_stage=stop))
    assert not (folder / "report.html").exists()
    make_run(folder)
    written = sorted((real_run / "evidence").iterdir())
    assert [path.name for path in written] == ["0.safetensors", "1.safetensors", "2.safetensors"]
    for path in written:
        assert (folder / "evidence" / path.name).read_bytes() == path.read_bytes()
    (folder / "report.html").unlink()
    make_run(folder)  # finished, but for its page
    assert (folder / "report.html").exists()


def test_evidence_of_another_group_is_refused(real_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(real_run, folder)
    shutil.copy(folder / "evidence" / "0.safetensors", folder / "evidence" / "1.safetensors")
    with pytest.raises(ArtifactError, match=r"1\.safetensors has [\d,]+ bytes instead of"):
        read_run(folder)


def test_a_run_that_was_killed_while_it_saved_can_be_read(real_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(real_run, folder)
    (folder / "checkpoint.safetensors").touch()
    (folder / ".artifact-ready").mkdir()
    for name in ("model.safetensors", "plan.json", "report.json", "manifest.json"):
        (folder / name).rename(folder / ".artifact-ready" / name)
    assert len(read_run(folder).evidence) == 3


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path):
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(RunError, match="is not finished"):
        read_run(tmp_path)


def test_what_must_not_be_overlooked_is_a_warning():
    assert run_document(record())["warnings"] == []
    missed = "MACs cannot be brought to 100: 500 is the least there is"
    worse = {"updates": 800, "outcome": "done", "losses": [1.0], "accuracy": 0.795}
    made = record(groups=1, limits=[missed, "parameters 5 within 6"], recovery=worse)
    after = replace(made.report.after, accuracy=0.28)
    found = run_document(replace(made, report=replace(made.report, after=after)))
    assert found["warnings"] == [
        f"{missed}.",
        "The recovery made the network worse: held-out accuracy fell from 90.00 % to 79.50 % in 800 updates.",
        "Test accuracy fell by 64.0 points, to 28.00 %.",
    ]
    assert found["limits"] == ["Parameters 5 within 6."]
    taken_back = record(groups=1, recovery={**worse, "outcome": "taken back: it lost", "kept": False})
    assert run_document(taken_back)["warnings"] == [
        "The recovery was taken back: it lost. The network from before it is the result."
    ]


def test_a_page_says_when_and_on_what_it_was_made_and_names_no_folder_of_this_machine():
    made = {"time": "2026-01-02 03:04", "cosep": "1.2", "torch": "2.0", "python": "3.12", "hardware": "A CPU, 2 cores"}
    run = record(made=made)
    about = {**run.about, "model": "/home/me/net.py:build", "data": "imagefolder:/data/photos", "checkpoint": "/a/b.pt"}
    page = run_page(replace(run, about=about))
    found = documents(page)["run"]
    assert ["hardware", "A CPU, 2 cores"] in found["made"]
    assert ["checkpoint", "b.pt"] in found["about"]
    assert not any(place in page for place in ("/home/me", "/data/photos", "/a/b.pt"))


def test_next_steps_are_commands_that_exist():
    steps = dict(run_document(record(name="my run"))["next"])
    assert steps["Time it on this machine"] == "cosep bench 'my run'"
    assert steps["Load it in Python"].startswith("model = cosep.load('my run', build)")
    assert "--onnx" in steps["Write it for other runtimes"]
    assert "Time it on this machine" not in dict(run_document(replace(record(), about={}))["next"])


def test_classes_that_lost_most_come_first():
    run = record(class_names=["cat", "dog", "owl"])
    before = replace(run.report.before, by_class=(0.9, 0.8, None))
    after = replace(run.report.after, by_class=(0.9, 0.5, None))
    found = run_document(replace(run, report=replace(run.report, before=before, after=after)))
    assert found["by_class"] == [["dog", 0.8, 0.5], ["cat", 0.9, 0.9]]
    assert run_document(run)["by_class"] == []


def test_the_words_on_a_knee_are_what_the_curve_shows():
    run = record(channels=8)
    outcome, plan, _ = run.groups()[0]
    selection = replace(plan.selection, k=4, candidates=(2, 4, 8), fit=(0.1, 0.5, 0.9), scores=(), losses=())
    said = reason_in_words(replace(plan, selection=selection), outcome, run.report)
    assert said[0].endswith("a further cluster adds +0.2 to it on average up to there, +0.1 beyond.")
