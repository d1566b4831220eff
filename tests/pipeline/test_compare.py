"""Comparisons on the digits: the same widths for all, trials that are kept, and honest statistics."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch.utils.data import DataLoader, TensorDataset

import cosep
from cosep.comparison.trials import TIED, Trial, compare, differing, standings
from cosep.criteria import CRITERIA
from cosep.criteria.scored import Scored
from cosep.data import load_data
from cosep.errors import ConfigError, RunError
from cosep.selection import ranked
from cosep.storage.artifacts import read_documents

DEFAULT = "elimination"  # what a user gets who asks for nothing
OURS = "cosep"  # the criterion of the quick settings
SCORED = [name for name, criterion in CRITERIA.items() if isinstance(criterion, Scored)]


def compared(base, quick, out, names, seeds=(0,), **more):
    config = quick(recover={"schedule": "none"})
    return compare(
        base, lambda seed: load_data("digits", seed=seed), names, seeds=seeds, out=out, config=config, **more
    )


@pytest.fixture(scope="module")
def everything(base, tmp_path_factory):
    """Every method once, without training."""
    from cosep.config import preset, replace_settings

    out = tmp_path_factory.mktemp("compare")
    changes = {"observe": {"images": 400}, "rebuild": {"images": 200}, "recover": {"schedule": "none"}}
    config = replace_settings(preset(), {**changes, "device": {"accelerator": "cpu"}, "limits": {"max_macs": "50%"}})
    data = load_data("digits")
    return out, compare(base, lambda seed: data, CRITERIA, seeds=[0], out=out, config=config)


def test_the_default_comes_first_and_every_method_gets_its_widths(everything):
    out, trials = everything
    assert [trial.method for trial in trials] == [DEFAULT, *(name for name in CRITERIA if name != DEFAULT)]
    assert json.loads((out / "compare.json").read_text())["widths_of"] == f"{DEFAULT}-0"
    for name in CRITERIA:
        assert read_documents(out / f"{name}-0")[1]["settings"]["select"]["criterion"] == name
    widths = json.loads((out / "compare.json").read_text())["widths"]
    for name in CRITERIA:
        plan, _ = read_documents(out / f"{name}-0")
        assert {group.group: len(group.kept) for group in plan.groups} == widths, name
    assert len({trial.macs for trial in trials}) == 1


def test_methods_choose_different_channels(everything):
    out, _ = everything
    kept = {name: tuple(g.kept for g in read_documents(out / f"{name}-0")[0].groups) for name in CRITERIA}
    assert len(set(kept.values())) >= len(kept) - 1  # l1 and l2 may agree on so small a network


def test_l2_keeps_the_largest_filters_of_the_first_group(everything, base):
    out, _ = everything
    plan, _ = read_documents(out / "l2-0")
    first = plan.groups[0]
    norms = base.get_submodule(first.group).weight.detach().flatten(1).norm(dim=1)
    assert set(first.kept) == set(norms.topk(len(first.kept)).indices.tolist())


def test_no_gradients_and_hooks_are_left_behind(base, quick):
    data = load_data("digits")
    for name in SCORED:
        made = cosep.plan(base, data.calibration, config=quick(), criterion=name, width_rule=half)
        assert all(len(each.kept) == each.width // 2 for each in made.groups), name
    assert all(parameter.grad is None for parameter in base.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.modules())


def half(found, _target, _probe):
    return {each.group: each.channels // 2 for each in found}


def test_a_comparison_goes_on_where_it_was(base, quick, tmp_path):
    first = compared(base, quick, tmp_path, ["random"])
    seen = []
    both = compared(base, quick, tmp_path, ["random"], seeds=(0, 1), on_trial=seen.append)
    assert both[:2] == first  # seconds and all: they were not run again
    assert [(t.method, t.seed) for t in seen] == [(OURS, 0), ("random", 0), (OURS, 1), ("random", 1)]


def test_trials_of_other_methods_and_seeds_are_kept(base, quick, tmp_path):
    compared(base, quick, tmp_path, ["random"], seeds=(0, 1))
    asked = compared(base, quick, tmp_path, ["l1"])
    assert [(t.method, t.seed) for t in asked] == [(OURS, 0), ("l1", 0)]
    kept = json.loads((tmp_path / "compare.json").read_text())["trials"]
    assert {(t["method"], t["seed"]) for t in kept} == {(m, s) for m in (OURS, "random") for s in (0, 1)} | {("l1", 0)}


def test_a_run_that_was_made_again_is_tested_again(base, quick, tmp_path):
    compared(base, quick, tmp_path, [])
    path = tmp_path / "compare.json"
    document = json.loads(path.read_text())
    true = document["trials"][0]["accuracy"]
    document["trials"][0] |= {"accuracy": 0.123, "weights_sha256": "of another network"}
    path.write_text(json.dumps(document))
    assert compared(base, quick, tmp_path, [])[0].accuracy == true


def test_another_comparison_in_the_same_folder_is_refused(base, quick, tmp_path):
    compared(base, quick, tmp_path, [], about={"batch_size": 128, "data": "digits"})
    with pytest.raises(RunError, match="is another comparison: batch_size was 128 there and is 64 now"):
        compared(base, quick, tmp_path, [], about={"batch_size": 64, "data": "digits"})
    for run in tmp_path.glob(f"{OURS}-*"):
        shutil.rmtree(run)
    widths = json.loads((tmp_path / "compare.json").read_text())["widths"]
    with pytest.raises(RunError, match="at other widths"):
        compared(
            base, quick, tmp_path, [], about={"batch_size": 128, "data": "digits"}, widths=dict.fromkeys(widths, 4)
        )


def test_another_first_seed_has_the_widths_that_were_found_before(base, quick, tmp_path):
    compared(base, quick, tmp_path, ["l1"])
    widths = json.loads((tmp_path / "compare.json").read_text())["widths"]
    compared(base, quick, tmp_path, ["l1"], seeds=(3,))
    plan, _ = read_documents(tmp_path / f"{OURS}-3")
    assert {group.group: len(group.kept) for group in plan.groups} == widths
    every = compared(base, quick, tmp_path, ["l1"], seeds=(0, 3))
    assert [(t.method, t.seed) for t in every] == [(OURS, 0), ("l1", 0), (OURS, 3), ("l1", 3)]


def test_a_limit_that_needs_held_out_data_is_refused(base, tmp_path):
    config = cosep.replace_settings(cosep.preset(), {"limits": {"max_drop": 1.0}})
    with pytest.raises(ConfigError, match=r"max_drop \(--max-drop\) has no place in a comparison"):
        compare(base, lambda seed: load_data("digits"), [], seeds=[0], out=tmp_path, config=config)


def test_scores_that_are_all_equal_are_told():
    through = torch.arange(16).clamp(max=5)  # the three that stay are three of many equals
    beyond = torch.arange(16).clamp(min=5)
    for scores, notes in ((torch.ones(16), (TIED,)), (through, (TIED,)), (beyond, ())):
        assert ranked("group", scores, name="hrank").at(3).notes == notes


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="l2 gives scores that are not finite"):
        ranked("group", torch.full((8,), torch.nan), name="l2")


def test_what_is_handed_on_names_no_folder(base, quick, tmp_path):
    about = {"model": "/home/me/net.py:build", "data": "cifar10:/home/me/data"}
    compared(base, quick, tmp_path, [], about=about)
    text = (tmp_path / "compare.json").read_text()
    assert "/home" not in text
    assert json.loads(text)["about"]["model"] == "net.py:build"


def test_the_criteria_see_the_same_images_of_a_shuffled_loader(base, digits, quick):
    images, labels = (torch.cat(parts) for parts in zip(*digits.calibration, strict=True))
    shuffled = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    for name in ("taylor", "hrank"):
        first, second = (cosep.plan(base, shuffled, config=quick(), criterion=name) for _ in range(2))
        assert all(
            torch.equal(first.candidates[group].ranking, second.candidates[group].ranking) for group in first.candidates
        )


def test_unequal_trials_are_told():
    fine, odd = trial("l1", 0, 0.8), replace(trial("l2", 0, 0.8), macs=0.6)
    found = differing([trial(OURS, 0, 0.9), fine, odd])
    assert found == [
        f"l2 with seed 0 has 60.0 % of the MACs and 0 updates, {OURS} 50.0 % and 0: see the log of its run"
    ]


def test_a_damaged_list_of_trials_is_named(base, quick, tmp_path):
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(RunError, match=r"compare\.json is damaged"):
        compared(base, quick, tmp_path, ["random"])


def test_widths_can_be_given(base, quick, tmp_path, digits):
    groups = [g for g in cosep.find_groups(base, next(iter(digits.test))[0][:1]) if g.scope == "interior"]
    widths = {group.name: 5 for group in groups}
    compared(base, quick, tmp_path, ["l1"], widths=widths)
    for name in (OURS, "l1"):
        assert {len(group.kept) for group in read_documents(tmp_path / f"{name}-0")[0].groups} == {5}


def test_an_unknown_method_is_refused_before_any_work(base, quick, tmp_path):
    with pytest.raises(ConfigError, match="no criterion 'l3'; there are elimination, cosep"):
        compared(base, quick, tmp_path, ["l3"])
    assert not any(tmp_path.iterdir())


def trial(method, seed, accuracy):
    return Trial(method, seed, accuracy, 0.5, 0.5, 0, 0.0)


def test_differences_are_paired_by_seed_as_in_students_test():
    ours, theirs = [0.90, 0.92, 0.91, 0.93], [0.89, 0.905, 0.90, 0.921]
    trials = [trial(OURS, s, a) for s, a in enumerate(ours)] + [trial("l2", s, a) for s, a in enumerate(theirs)]
    found = standings(trials)[1]
    test = scipy.stats.ttest_rel([100 * a for a in ours], [100 * a for a in theirs])
    interval = test.confidence_interval(0.95)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert test.pvalue < 0.05
    assert found.beyond_noise is True
    assert found.std == pytest.approx(torch.tensor([100 * a for a in theirs]).std().item(), rel=1e-4)


def test_one_seed_says_nothing_about_noise():
    found = standings([trial(OURS, 0, 0.9), trial("l2", 0, 0.8)])[1]
    assert found.difference == pytest.approx(10)
    assert found.beyond_noise is None
    assert math.isnan(found.std)


def test_equal_methods_are_not_beyond_noise():
    trials = [trial(m, s, a) for m in (OURS, "l2") for s, a in enumerate([0.9, 0.8, 0.85])]
    assert standings(trials)[1].beyond_noise is False
