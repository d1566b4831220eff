"""Heads of attention are called heads wherever a run, a plan or a network is shown, and channels stay channels."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.config import preset, replace_settings
from cosep.errors import ArtifactError, ConfigError, PlanError
from cosep.records import GroupPlan, Plan, counted, in_all
from cosep.reporting import Report
from cosep.reporting.comparison import comparison_document
from cosep.reporting.figures import write_figures
from cosep.reporting.folders import agreements_of
from cosep.reporting.page import group_document, run_document, run_page
from cosep.reporting.summary import whole_summary
from cosep.reporting.sweep import sweep_page
from cosep.surgery.plan import plan_from_document, plan_to_document
from cosep.zoo.vit import CifarViT
from tests.reporting.made import networked_run, record
from tests.reporting.test_browser import CUT_OFF, DRAWN
from tests.reporting.test_page import documents

ATTENTION, HIDDEN = "blocks.0.attention.query", "blocks.0.linear1"


def with_heads(run, place=0):
    """The run with the channels of one of its groups being heads."""
    plans, outcomes = list(run.plan.groups), list(run.report.groups)
    plans[place] = GroupPlan(plans[place].group, selection=plans[place].selection, unit="head")
    outcomes[place] = replace(outcomes[place], unit="head")
    report = replace(run.report, groups=tuple(outcomes))
    return replace(run, plan=replace(run.plan, groups=tuple(plans)), report=report)


def tiny():
    torch.manual_seed(0)
    return CifarViT(1, width=12, heads=3, classes=3, size=8).eval()


def images():
    torch.manual_seed(1)
    y = torch.arange(48) % 3
    return torch.randn(3, 3, 8, 8)[y] + 0.3 * torch.randn(48, 3, 8, 8), y


def settings(**more):
    plain = {"device": {"accelerator": "cpu"}, "observe": {"images": 48}, "recover": {"schedule": "none"}}
    return replace_settings(preset(), {**plain, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A Transformer of one block with one of its three heads gone, in a run folder."""
    folder = tmp_path_factory.mktemp("heads") / "run"
    widths = {ATTENTION: 2, HIDDEN: 20}
    result = cosep.prune(tiny(), [images()], config=settings(), widths=widths, run=folder)
    return folder, result


def test_amounts_are_said_in_words():
    assert (counted(1, "head"), counted(2, "head"), counted(1200, "channel")) == ("1 head", "2 heads", "1,200 channels")
    assert in_all([("channel", 8), ("head", 3), ("head", 1)]) == "4 heads and 8 channels"
    assert in_all([("channel", 8)]) == "8 channels"
    assert in_all([]) == "0 channels"


def test_a_plan_counts_heads_and_keeps_their_name_on_disk(run, tmp_path):
    _, result = run
    units = {each.group: each.unit for each in result.plan.groups}
    assert units == {ATTENTION: "head", HIDDEN: "channel"}
    rows = {line.split()[0]: line for line in str(result.plan).splitlines()}
    assert rows["group"].split()[:3] == ["group", "width", "kept"]
    assert rows[ATTENTION].split()[1:4] == ["3", "heads", "2"]
    assert rows[HIDDEN].split()[1:3] == ["48", "20"]
    result.plan.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())["groups"]
    assert [each.get("unit") for each in written] == ["head", None]  # a plan of channels is the file that it was
    again = Plan.load(tmp_path / "plan.json")
    assert {each.group: each.unit for each in again.groups} == units
    assert again.with_kept({ATTENTION: [1]}).groups[0].unit == "head"
    assert again.with_kept({ATTENTION: [1]}).differences(again)[0].startswith(f"{ATTENTION}: 1 head and 2")


def test_a_plan_that_cannot_be_speaks_of_heads(run):
    _, result = run
    with pytest.raises(PlanError, match=f"the kept heads of '{ATTENTION}' must be different numbers from 0 to 2"):
        result.plan.with_kept({ATTENTION: [3]})
    document = plan_to_document(result.plan)
    document["groups"][0]["kept"] = []
    with pytest.raises(PlanError, match="is empty"):
        plan_from_document(document)
    document["groups"][0] = {**document["groups"][0], "kept": [0], "unit": "finger"}
    with pytest.raises(PlanError, match=r"groups\[0\].unit is 'finger'; it must be 'channel' or 'head'"):
        plan_from_document(document)


def test_widths_that_cannot_be_speak_of_heads():
    with pytest.raises(ConfigError, match=f"widths asks for 4 heads of {ATTENTION}, which has 3"):
        cosep.prune(tiny(), [images()], config=settings(), widths={ATTENTION: 4})


def test_a_report_remembers_what_are_heads(run):
    _, result = run
    assert [outcome.unit for outcome in result.report.groups] == ["head", "channel"]
    document = json.loads(json.dumps(result.report.to_document()))
    assert Report.from_document(document) == result.report
    assert "3 -> 2 heads" in " ".join(whole_summary(result.report).split())
    assert "48 -> 20 " in " ".join(whole_summary(result.report).split())
    for entry in document["groups"]:
        del entry["unit"]  # as it was written before heads had a name
    assert {outcome.unit for outcome in Report.from_document(document).groups} == {"channel"}
    document["groups"][0]["unit"] = "finger"
    with pytest.raises(ArtifactError, match="must be channel or head"):
        Report.from_document(document)


def test_reasons_that_speak_of_channels_speak_of_heads():
    # A knee needs three numbers of clusters to choose from, which four heads do not give.
    choice = {"select": {"criterion": "cosep", "width_rule": "knee"}, "order": "one-by-one"}
    result = cosep.prune(tiny(), [images()], config=settings(**choice))
    whole = result.plan.groups[0]
    assert (whole.group, whole.kept) == (ATTENTION, (0, 1, 2))
    assert "channel" in whole.reason  # as the rule says it of any group
    for said in (whole.why, result.report.groups[0].why, str(result.plan).splitlines()[1], result.summary()):
        assert "too few heads" in said
        assert "too few channels" not in said
    assert result.plan.groups[1].why == result.plan.groups[1].reason
    run = with_heads(record())
    outcome, plan, evidence = run.groups()[0]
    odd = GroupPlan(plan.group, 8, plan.kept, "limit on MACs: fewer channels than at the knee", unit="head")
    shown = group_document(run, outcome, odd, evidence, 300)
    assert shown["words"][0] == "Limit on MACs: fewer heads than at the knee."
    assert ["rule", "limit on MACs: fewer heads than at the knee"] in shown["facts"]


def test_heads_that_stay_whole_are_heads_too():
    class Shared(nn.Module):
        """Attention of two heads whose scores are added up: no head can go without the other."""

        def __init__(self):
            super().__init__()
            self.first, self.qkv, self.out = nn.Conv2d(3, 8, 1), nn.Linear(8, 24), nn.Linear(8, 8)
            self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.first(x).flatten(2).transpose(1, 2)
            q, k, v = self.qkv(x).reshape(len(x), -1, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            weights = (q @ k.transpose(-2, -1)).softmax(-1)
            x = x + self.out((weights @ v).transpose(1, 2).flatten(2)) + weights.mean(1).sum(-1, keepdim=True)
            return self.head((x + self.down(self.up(x).relu())).mean(1))

    torch.manual_seed(0)
    result = cosep.prune(Shared().eval(), [images()], config=settings(), widths={"up": 8})
    left = {each.group: (each.width, each.unit) for each in result.report.not_pruned}
    assert left["qkv"] == (2, "head")
    assert Report.from_document(result.report.to_document()).not_pruned == result.report.not_pruned


def test_the_page_counts_heads_by_themselves():
    run = with_heads(record(groups=3))  # each group keeps 4 of 8
    found = run_document(run)
    assert found["units"] == [["head", 8, 4], ["channel", 16, 8]]
    said = "4 of 8 prunable heads and 8 of 16 prunable channels were removed, in 3 of 3 groups."
    assert found["summary"].startswith(said)
    assert [group["unit"] for group in found["groups"]] == ["head", "channel", "channel"]
    assert run_document(record(groups=3))["units"] == [["channel", 24, 12]]
    for place, (unit, other) in enumerate([("head", "channel"), ("channel", "head")]):
        shown = group_document(run, *run.groups()[place], 300)
        facts = [part for fact in shown["facts"] for part in fact]
        words = " ".join((*shown["words"], *facts, shown["curve"]["title"], shown["curve"]["about"]))
        assert f"one {unit} stays" in words
        assert f"{unit}s kept" in words
        assert other not in words


def test_pages_of_several_runs_and_sizes_count_heads(run):
    row = comparison_document([with_heads(record())])["runs"][0]["groups"]
    assert row == {"layer0.conv1": [4, 8, "head"], "layer1.conv1": [4, 8, "channel"], "layer2.conv1": [4, 8, "channel"]}
    x, y = images()
    swept = cosep.sweep(tiny(), [(x, y)], [(x, y)], targets=[0.8], config=settings())
    assert swept.heads == (ATTENTION,)
    assert documents(sweep_page(swept.to_document(), {}))["sweep"]["heads"] == [ATTENTION]
    former = {name: value for name, value in swept.to_document().items() if name != "heads"}
    assert type(swept).from_document(former).heads == ()


def test_figures_of_a_run_with_heads_name_them(tmp_path):
    write_figures([with_heads(record())], tmp_path)
    words = (tmp_path / "figures.md").read_text()
    assert "4 of 8 heads kept (50.0 %), 8 of 16 channels kept (50.0 %)" in words
    assert "layer0.conv1 4/8 heads; layer1.conv1 4/8" in words
    assert "8 heads by" in words  # the matrix of the group that lost most


def test_figures_of_histograms_say_that_a_density_is_of_one_value_of_a_head(tmp_path):
    model, names = tiny(), [ATTENTION, HIDDEN]
    agreements = agreements_of(model, [images()], settings(), names)
    assert [each.unit for each in agreements] == ["head", "channel"]
    write_figures([with_heads(record())], tmp_path, agreements=agreements)
    words = (tmp_path / "figures.md").read_text()
    assert "over 3 heads and 48 channels; Jaccard" in words
    assert f"{ATTENTION}, first value of head " in words
    assert f"{HIDDEN}, channel " in words


def test_inspect_counts_heads_and_channels_by_themselves():
    shown = CliRunner().invoke(app, ["inspect", "vit6"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "12 of 14 groups are prunable in scope interior: 18 heads and 4,608 channels." in shown.stdout


def test_the_picture_draws_heads_as_large_as_channels_and_names_them(page, tmp_path):
    run = with_heads(networked_run())
    (tmp_path / "run.html").write_text(run_page(run), encoding="utf-8")
    for width in (1400, 400):
        tab = page(tmp_path / "run.html", width=width)
        assert tab.complaints() == []
        assert tab.run(CUT_OFF) == []
        charts = {chart["title"]: chart for chart in tab.run(DRAWN)}
        assert "4 of 8 heads kept (50.0 %)" in charts["Heads and channels kept and removed in each group"]["text"]
        labels = tab.run("[...document.querySelectorAll('.choice text.label')].map(e => e.textContent)")
        assert ["(heads)" in label for label in labels] == [True] + [False] * (len(labels) - 1)
        heights = tab.run("[...document.querySelectorAll('.choice rect.kept')].map(e => e.getAttribute('height'))")
        assert len(set(heights)) == 1  # half of each stays
        layers = tab.run("[...document.querySelectorAll('g.row')].map(e => e.textContent)")
        assert any("4 of 8 heads; " in layer for layer in layers) == (width == 1400)
