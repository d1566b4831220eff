"""Training that harms is taken back, and how long it is: what was given, or enough to mean something."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import cosep
from cosep.config import preset, replace_settings
from cosep.recovery import without_some
from cosep.reporting.words import warnings_in_words


def settings(**recover):
    fast = {"observe": {"images": 200}, "rebuild": {"images": 200}, "limits": {"max_macs": "60%"}}
    return replace_settings(
        preset(), {"device": {"accelerator": "cpu"}, "select": {"criterion": "l2"}, **fast, "recover": recover}
    )


def ruined(network, updates):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(-3)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("held_out", [True, False])
def test_a_recovery_that_harms_is_taken_back_and_said(base, digits, held_out):
    holdout = digits.holdout if held_out else None
    untrained = cosep.prune(base, digits.calibration, holdout=holdout, config=settings(schedule="none"))
    result = cosep.prune(base, digits.calibration, holdout=holdout, config=settings(), recovery=ruined)
    assert same(result.model, untrained.model)
    assert not result.report.recovery.kept
    assert "taken back" in result.report.recovery.outcome
    assert result.report.holdout_accuracy.after == untrained.report.holdout_accuracy.after
    assert any("taken back" in said for said in warnings_in_words(result.report))
    again = type(result.report).from_document(result.report.to_document())
    assert again.recovery == result.report.recovery


def test_a_training_of_ours_that_harms_names_the_rate_and_one_of_the_callers_does_not(base, digits):
    def worse(scores, labels, uncut):
        return -F.cross_entropy(scores, labels)

    def outcome(recovery):
        made = cosep.prune(base, digits.calibration, train=digits.train, config=settings(), recovery=recovery)
        return made.report.recovery.outcome

    assert "recover.lr) below 0.02 may do better" in outcome(cosep.RecoveryHooks(loss=worse))
    assert "recover.lr" not in outcome(ruined)


def test_a_training_is_not_judged_by_images_that_the_rebuild_was_fitted_to(base, digits, monkeypatch):
    images = torch.cat([x for x, _ in digits.calibration])
    labels = torch.cat([y for _, y in digits.calibration])
    batches = list(zip(images.split(64), labels.split(64), strict=True))
    judged = []

    def noted(job, model, some):
        judged.append(torch.cat([x for x, _ in some]))
        return 0.0

    monkeypatch.setattr("cosep.runs.judging.points_lost", noted)
    cosep.prune(base, batches, train=digits.train, config=settings(epochs=0.01))  # rebuilt on the first 200 images
    expected = torch.cat([images[:200:16], images[200:2200]])
    assert len(judged) == 2
    assert torch.equal(*judged)
    others = ((judged[0] - 0.7 * expected) / 0.3).flatten(1)  # what is blended in is one of these images, too
    assert torch.cdist(others.double(), expected.flatten(1).double()).min(1).values.max() < 1e-3


@pytest.mark.parametrize("known", [True, False])
def test_held_out_images_judge_as_they_are_only_where_the_network_has_not_learnt_them(base, digits, monkeypatch, known):
    images, labels = (torch.cat(parts) for parts in zip(*digits.calibration, strict=True))
    if not known:  # a network is wrong where a label is: as it would be on half of the images that it has never seen
        labels = labels.clone()
        labels[::2] = (labels[::2] + 1) % 10
    holdout = [(images[200:400], labels[200:400])]
    judged = []

    def noted(job, model, some):
        judged.append(torch.cat([x for x, _ in some]))
        return 0.0

    monkeypatch.setattr("cosep.runs.judging.points_lost", noted)
    result = cosep.prune(
        base, digits.calibration, train=digits.train, holdout=holdout, config=settings(epochs=0.01, group_epochs=0.0)
    )
    assert result.report.recovery.kept
    assert torch.equal(judged[0], judged[1])
    assert torch.equal(judged[0], images[200:400]) != known


def test_inputs_of_whole_numbers_are_not_blended():
    tokens = torch.arange(12).view(4, 3)
    assert torch.equal(next(cosep.runs.judging._blended(iter([(tokens, None)]), 0))[0], tokens)


def test_a_stopped_run_still_knows_the_network_from_before_the_training(base, digits, tmp_path):
    def stopped(network, updates):
        ruined(network, updates)
        raise KeyboardInterrupt

    config = settings()
    with pytest.raises(KeyboardInterrupt):
        cosep.prune(base, digits.calibration, config=config, recovery=stopped, run=tmp_path / "run")
    result = cosep.prune(base, digits.calibration, config=config, recovery=ruined, run=tmp_path / "run")
    untrained = cosep.prune(base, digits.calibration, config=settings(schedule="none"))
    assert same(result.model, untrained.model)


def test_a_training_of_no_given_length_has_enough_updates_and_says_so(base, digits):
    report = cosep.prune(base, digits.calibration, train=digits.train, config=settings()).report
    assert report.recovery.updates == 200
    assert any("200 updates" in note and "least by default" in note for note in report.notes)


@pytest.mark.parametrize(("asked", "passes"), [({"epochs": 0.5}, 0.5), ({"epochs": 1.0}, 1.0)])
def test_a_length_that_was_given_is_kept(base, digits, asked, passes):
    report = cosep.prune(base, digits.calibration, train=digits.train, config=settings(**asked)).report
    assert report.recovery.updates == round(passes * len(digits.train))
    assert any("too few to mean anything" in said for said in warnings_in_words(report))


@pytest.mark.parametrize("asked", [{"epochs": 0.0}, {"group_epochs": 0.0}])
def test_a_length_of_nothing_trains_nothing(base, digits, asked):
    result = cosep.prune(base, digits.calibration, train=digits.train, config=settings(**asked))
    assert result.report.recovery is None


@pytest.mark.parametrize(("training", "seen"), [({}, 15 * 16), ({"schedule": "none"}, 16 * 16)])
def test_what_judges_a_training_decides_nothing_before_it(monkeypatch, training, seen):
    """The images that reach the cut, the rebuild and the training, and those that judge it, by their first pixel."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4)).eval()
    images = torch.arange(256.0).unsqueeze(1) + torch.rand(256, 6)
    data = DataLoader(TensorDataset(images, torch.arange(256) % 4), batch_size=16, shuffle=True)
    known, judging = set(), set()
    blending = cosep.runs.judging._blended

    def blended(batches, seed):
        found = list(batches)
        judging.update(int(x) for batch, _ in found for x in batch[:, 0])
        return blending(iter(found), seed)

    passing = cosep.runs.remaking.calibration_pass

    def calibration_pass(job, number):
        for x, labels in passing(job, number):
            known.update(int(each) for each in x[:, 0])
            yield x, labels

    monkeypatch.setattr(cosep.runs.judging, "_blended", blended)
    monkeypatch.setattr(cosep.runs.remaking, "calibration_pass", calibration_pass)
    cosep.prune(model, data, config=settings(**{"group_epochs": 0.1, **training}), max_macs="70%")
    assert len(known) == min(seen, 200)  # images that the settings ask for
    assert not known & judging
    assert len(judging) == (16 if not training else 0)


def test_what_is_set_aside_is_not_trained_on():
    data = TensorDataset(torch.arange(320).float().unsqueeze(1), torch.zeros(320).long())
    rest, aside = without_some(DataLoader(data, batch_size=16, shuffle=True), seed=0)
    seen = {int(x) for batch, _ in rest for x in batch.flatten()}
    left = {int(x) for batch, _ in aside for x in batch.flatten()}
    assert (len(seen), len(left)) == (300, 20)
    assert seen | left == set(range(320))
    batches = [(torch.full((2, 1), float(i)), torch.zeros(2).long()) for i in range(32)]
    rest, aside = without_some(batches, seed=0)
    assert [*rest, *aside] == batches
    assert len(aside) == 2
    assert without_some(batches[:4], seed=0) == (batches[:4], None)


@pytest.mark.parametrize("whole", [0, -1])
def test_a_given_length_is_shared_by_the_groups_that_are_cut(base, digits, quick, whole):
    groups = [g for g in cosep.find_groups(base, next(iter(digits.test))[0][:1]) if g.scope == "interior"]
    widths = {group.name: group.width // 2 for group in groups}
    widths[groups[whole].name] = groups[whole].width
    config = quick(recover={"schedule": "per-layer", "epochs": 0.5}, select={"criterion": "l2", "width_rule": "given"})
    report = cosep.prune(base, digits.calibration, train=digits.train, config=config, widths=widths).report
    assert sum(each.updates for each in report.recoveries) == round(0.5 * len(digits.train))
    assert len(report.recoveries) == len(groups) - 1
