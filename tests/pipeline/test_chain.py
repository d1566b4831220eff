"""The chain of decisions: a criterion and a width rule of anyone's, through every way to use them."""

import json

import pytest
import torch
from safetensors.torch import save_model
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.config import preset, replace_settings, settings
from cosep.data import load_data
from cosep.errors import ConfigError, PlanError, RunError
from cosep.runs.folder import CONFIG
from cosep.storage.artifacts import read_documents
from cosep.storage.toml import read_toml, to_toml

OWN = """
import torch

def backwards():
    return lambda view: torch.arange(view.group.width, dtype=torch.float64)  # the last channels stay

def three():
    return lambda candidates, target, probe: {each.group: 3 for each in candidates}
"""
EXAMPLE = torch.zeros(1, 1, 8, 8)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def untrained(quick):
    return lambda **changes: quick(**{"recover": {"schedule": "none"}, **changes})


def first_half(model, group, layout):
    return cosep.Selection(group.width, tuple(range(group.width * 7 // 8)), "the first ones")


def by_place(view):
    return torch.arange(view.group.width, 0, -1).double()


@pytest.mark.parametrize("order", ["one-by-one", "together"])
def test_a_callers_own_criterion_keeps_the_limit_the_widths_and_the_rounding(base, digits, untrained, order):
    config = untrained(limits={"max_macs": "30%"}, order=order)
    report = cosep.prune(base, digits.calibration, config=config, criterion=by_place).report
    assert report.change.macs <= 0.3
    rounded = cosep.prune(
        base, digits.calibration, config=untrained(surgery={"round_to": 6}, order=order), criterion=by_place
    )
    assert all(len(g.kept) % 6 == 0 or len(g.kept) == g.width for g in rounded.plan.groups)
    first = rounded.plan.groups[0].group
    given = cosep.prune(base, digits.calibration, config=untrained(order=order), criterion=by_place, widths={first: 5})
    assert given.plan.groups[0].kept == (0, 1, 2, 3, 4)


def test_the_old_choose_warns_and_keeps_limits_widths_and_rounding(base, digits, untrained):
    def pruned(config, **more):
        with pytest.warns(DeprecationWarning, match="give criterion="):
            return cosep.prune(base, digits.calibration, config=config, choose=first_half, **more)

    assert pruned(untrained(limits={"max_macs": "30%"})).report.change.macs <= 0.3
    free = pruned(untrained())
    assert [g.reason for g in free.plan.groups] == ["the first ones"] * 3
    assert [len(g.kept) for g in free.plan.groups] == [g.width * 7 // 8 for g in free.plan.groups]
    name = free.plan.groups[0].group
    assert pruned(untrained(), widths={name: 4}).plan.widths[name] == 4
    assert all(
        width % 6 == 0 or width >= 12 for width in pruned(untrained(surgery={"round_to": 6})).plan.widths.values()
    )


def test_another_criterion_in_the_same_folder_is_never_answered_by_the_old_result(base, digits, untrained, tmp_path):
    def pruned(criterion):
        config = untrained()
        return cosep.prune(base, digits.calibration, config=config, run=tmp_path / "run", criterion=criterion)

    def scaled(factor):
        return lambda view: factor * by_place(view)

    first = pruned(scaled(1.0))
    assert pruned(scaled(1.0)).plan == first.plan  # the same code and the same numbers: the same run
    for other in (scaled(-1.0), lambda view: by_place(view) ** 2, "l2", None):
        with pytest.raises(RunError, match="belongs to another run"):
            pruned(other)


def test_limits_look_at_the_uncut_network_once_for_all_groups(base, digits, untrained):
    observed = []
    callbacks = cosep.Callbacks(on_stage=lambda group, name: observed.append(group) if name == "observe" else None)
    config = untrained(limits={"max_macs": "40%"})
    cosep.prune(base, digits.calibration, config=config, callbacks=callbacks)
    assert observed == ["", "layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1"]
    observed.clear()
    cosep.prune(
        base, digits.calibration, config=untrained(order="together", limits={"max_macs": "40%"}), callbacks=callbacks
    )
    assert observed == [""]


def test_clusterings_are_not_computed_again_for_another_width(base, digits, untrained, monkeypatch):
    made = cosep.plan(base, digits.calibration, config=untrained())
    monkeypatch.setattr("cosep.selection.sweep.cluster_every_k", None)
    monkeypatch.setattr("cosep.selection.sweep.cluster_at", None)
    group = made.groups[0].group
    assert made.with_widths({group: 3}).widths[group] == 3


@pytest.mark.parametrize("order", ["one-by-one", "together"])
def test_uniform_keeps_the_same_share_of_every_group_within_the_limit(base, digits, untrained, order):
    config = untrained(select={"width_rule": "uniform"}, limits={"max_macs": "50%"}, order=order)
    result = cosep.prune(base, digits.calibration, config=config)
    shares = [len(g.kept) / g.width for g in result.plan.groups]
    assert max(shares) - min(shares) < 1 / min(g.width for g in result.plan.groups)
    assert 0.35 < result.report.change.macs <= 0.5
    with pytest.raises(ConfigError, match=r'"uniform" keeps the same share .* Give a limit'):
        cosep.prune(base, digits.calibration, config=untrained(select={"width_rule": "uniform"}, order=order))


def test_given_takes_the_callers_widths_and_leaves_the_rest_whole(base, digits, untrained):
    config = untrained(select={"width_rule": "given"})
    made = cosep.plan(base, digits.calibration, config=config, widths={"layer2.0.conv1": 4})
    assert made.widths["layer2.0.conv1"] == 4
    assert [g.reason for g in made.groups if g.group != "layer2.0.conv1"] == ["no width given: kept whole"] * 2
    with pytest.raises(ConfigError, match='"given" needs widths'):
        cosep.plan(base, digits.calibration, config=config)


def test_a_rule_can_ask_what_widths_cost_and_how_much_they_harm(base, digits, untrained):
    seen = {}

    def rule(candidates, target, probe):
        widths = {each.group: 4 for each in candidates}
        seen.update(macs=probe.macs(widths), whole=probe.macs({}), ms=probe.milliseconds(widths), target=target)
        seen["damage"] = [probe.damage({each.group: k for each in candidates}) for k in (2, 4, 7, 4)]
        return widths

    config = untrained(limits={"max_macs": "60%"})
    made = cosep.plan(base, digits.calibration, config=config, width_rule=rule)
    assert set(made.widths.values()) == {4}
    assert (seen["macs"], seen["whole"]) == (made.cost.macs_after, made.cost.macs_before)
    assert seen["target"].macs == 0.6 * made.cost.macs_before
    assert seen["ms"] > 0
    few, some, many, again = seen["damage"]
    assert few.keys() == set(made.widths)
    assert all(few[name] > some[name] > many[name] >= 0 for name in few)
    assert again == some


def test_a_users_file_adds_a_criterion_and_a_rule_everywhere(base, digits, untrained, own, tmp_path):
    select = {"criterion": f"{own}:backwards", "width_rule": f"{own}:three"}
    config = untrained(select=select)
    made = cosep.plan(base, digits.calibration, config=config)
    kept = [(g.width - 3, g.width - 2, g.width - 1) for g in made.groups]
    assert [g.kept for g in made.groups] == kept
    run = tmp_path / "run"
    result = cosep.prune(base, digits.calibration, config=config, run=run)
    assert [g.kept for g in result.plan.groups] == kept
    assert result.report.settings["select"]["criterion"] == f"{own}:backwards"
    assert read_toml(run / CONFIG)["select"]["width_rule"] == f"{own}:three"
    assert cosep.prune(base, digits.calibration, config=config, run=run).plan == result.plan
    own.write_text(OWN.replace("3 for each", "4 for each"))
    with pytest.raises(RunError, match=r"its code\.\w+ is"):
        cosep.prune(base, digits.calibration, config=config, run=run)
    trials = cosep.compare(
        base, lambda seed: digits, [f"{own}:backwards"], seeds=[0], out=tmp_path / "all", config=untrained()
    )
    assert trials[0].macs == trials[1].macs
    widths = read_documents(tmp_path / "all" / "cosep-0")[0].widths
    theirs = read_documents(tmp_path / "all" / "own-backwards-0")[0]
    assert [g.kept for g in theirs.groups] == [tuple(range(g.width - widths[g.group], g.width)) for g in theirs.groups]


def test_a_users_file_works_in_the_commands_too(base, own, tmp_path):
    weights = tmp_path / "base.safetensors"
    save_model(base, str(weights))
    model = ["digits_cnn", "--weights", str(weights), "--data", "digits", "--observe-images", "400"]
    quick = ["--accelerator", "cpu", "--criterion", f"{own}:backwards"]
    there = str(tmp_path / "plan.json")

    def run(command, *words):
        done = CliRunner().invoke(app, [command, *model, *quick, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    printed = run("plan", "--width-rule", f"{own}:three", "--out", there)
    assert "MACs:" in printed
    document = json.loads(run("plan", "--width-rule", f"{own}:three", "--json"))
    assert [len(group["kept"]) for group in document["groups"]] == [3, 3, 3]
    edited = json.loads((tmp_path / "plan.json").read_text())
    edited["groups"][1]["kept"] = [0, 5, 9, 11]
    (tmp_path / "plan.json").write_text(json.dumps(edited))
    quick = ["--accelerator", "cpu"]
    out = str(tmp_path / "run")
    report = json.loads(run("prune", "--plan", there, "--out", out, "--schedule", "none", "--json", "--quiet"))
    assert [group["kept"] for group in report["groups"]] == [3, 4, 3]
    assert read_documents(out)[0].groups[1].kept == (0, 5, 9, 11)


def test_plan_and_prune_together_decide_the_same(base, digits, untrained):
    made = cosep.plan(base, digits.calibration, config=untrained(limits={"max_macs": "50%"}))
    result = cosep.prune(base, digits.calibration, config=untrained(order="together", limits={"max_macs": "50%"}))
    assert made.differences(result.plan) == ()
    assert made.cost == result.plan.cost
    assert made.cost.macs_after <= 0.5 * made.cost.macs_before


def test_a_plan_is_a_value(base, digits, untrained, tmp_path):
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    made = cosep.plan(base, digits.calibration, config=untrained())
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    lines = str(made).splitlines()
    assert lines[0].split() == ["group", "channels", "kept", "why"]
    assert lines[1].split()[:3] == ["layer1.0.conv1", str(made.groups[0].width), str(len(made.groups[0].kept))]
    assert f"{made.cost.macs_after:,} after" in str(made)
    assert repr(made).startswith("<Plan: 3 of 3 groups cut")
    assert cosep.Plan.load(made.save(tmp_path / "plan.json")).differences(made) == ()
    smaller = made.apply(base)
    assert {name: smaller.get_submodule(name).weight.shape[0] for name in made.widths} == made.widths
    by_hand = made.with_kept({"layer1.0.conv1": (2, 0)})
    assert by_hand.differences(made)[0].startswith("layer1.0.conv1: 2 channels and")
    assert by_hand.cost is None
    weight = by_hand.apply(base).get_submodule("layer1.0.conv1").weight
    assert torch.equal(weight, base.get_submodule("layer1.0.conv1").weight[[0, 2]])
    with pytest.raises(PlanError, match="no group 'layer9'"):
        made.with_kept({"layer9": (0,)})
    with pytest.raises(PlanError, match="it was read from a file"):
        cosep.Plan.load(tmp_path / "plan.json").with_widths({"layer1.0.conv1": 3})


def test_a_plan_is_carried_out_and_belongs_to_the_run(base, digits, untrained, tmp_path):
    made = cosep.plan(base, digits.calibration, config=untrained())
    by_hand = made.with_kept({"layer1.0.conv1": (0, 3)})
    result = cosep.prune(base, digits.calibration, config=untrained(), plan=by_hand, run=tmp_path / "run")
    assert result.plan.differences(by_hand) == ()
    assert cosep.prune(base, digits.calibration, config=untrained(), plan=by_hand, run=tmp_path / "run").report
    with pytest.raises(RunError, match="belongs to another run"):
        cosep.prune(base, digits.calibration, config=untrained(), plan=made, run=tmp_path / "run")
    # No rule has a say in the widths of a plan, and no search.
    plain = replace_settings(preset(), {"device": {"accelerator": "cpu"}, "recover": {"schedule": "none"}})
    result = cosep.prune(base, digits.calibration, config=plain, plan=by_hand)
    assert result.plan.differences(by_hand) == ()
    assert result.report.tried == ()


def test_all_groups_are_cut_at_once_and_recovered_at_the_end(base, digits, quick):
    stages = []
    callbacks = cosep.Callbacks(on_stage=lambda group, name: stages.append((group, name)))
    result = cosep.prune(
        base, digits.calibration, digits.test, config=quick(order="together"), train=digits.train, callbacks=callbacks
    )
    assert [name for name, _ in zip(stages, stages, strict=True)].count(("", "cut")) == 1
    assert ("", "rebuild") in stages
    assert result.report.recovery.updates > 0
    assert result.report.change.macs < 0.9


def test_a_group_that_was_taken_back_has_no_stale_selection(base, digits, quick):
    config = quick(
        limits={"max_drop": 0.1},
        rebuild={"solve": False, "reestimate_batchnorm": False},
        recover={"schedule": "none"},
        select={"degree": 5},
    )
    result = cosep.prune(base, digits.calibration, config=config, holdout=digits.holdout)
    left = [group for group in result.plan.groups if "are allowed: kept whole" in group.reason]
    assert left
    for group in left:
        assert group.selection.kept == group.kept == tuple(range(group.width))
        assert group.selection.reason == group.reason


def test_a_seed_from_python_reaches_the_clustering(base, digits, untrained):
    select = {"criterion": "random-in-cluster"}
    one, other = (cosep.plan(base, digits.calibration, config=untrained(select=select, seed=s)) for s in (0, 1))
    assert one.differences(other)


def test_a_run_folder_of_the_version_before_goes_on(base, digits, untrained, tmp_path):
    config = untrained()
    first = cosep.prune(base, digits.calibration, config=config, run=tmp_path / "run")
    assert not any("max_" in name for name in read_toml(tmp_path / "run" / CONFIG)["limits"])
    written = read_toml(tmp_path / "run" / CONFIG)
    del written["order"], written["select"]["criterion"], written["select"]["width_rule"]
    written["select"]["seed"] = 0
    written["limits"] = {"max_drop": 100.0, "max_macs": "", "max_params": "", "max_latency_ms": 0.0}
    other = tmp_path / "before"
    other.mkdir()
    (other / CONFIG).write_text(to_toml(written))
    assert cosep.prune(base, digits.calibration, config=config, run=other).plan == first.plan
    with pytest.warns(FutureWarning, match=r"select\.seed"):
        assert replace_settings(preset(), {k: v for k, v in written.items() if k in settings(config)}) == config


def test_a_name_that_is_no_criterion_or_rule_is_refused_before_any_work(base, untrained):
    data = load_data("digits")
    with pytest.raises(ConfigError, match="no criterion 'l3'; there are elimination, cosep"):
        cosep.prune(base, data.calibration, config=untrained(select={"criterion": "l3"}))
    with pytest.raises(ConfigError, match="no width rule 'elbow'; there are damage, knee, uniform, given"):
        cosep.prune(base, data.calibration, config=untrained(select={"width_rule": "elbow"}))
