import pytest

from cosep.config import (
    LimitConfig,
    ProfileConfig,
    PruneConfig,
    RecoverConfig,
    SelectConfig,
    amount,
    paper_recovery,
    preset,
    replace_settings,
    settings,
)
from cosep.errors import ConfigError


def test_the_paper_preset_is_the_published_protocol():
    paper = preset("paper")
    assert (paper.profile.metric, paper.profile.max_classes) == ("jm", 100)
    assert (paper.select.degree, paper.select.representative) == (2, "weighted")
    assert (paper.select.sensitivity, paper.select.weighted_fit) == (1.0, False)
    assert (paper.select.criterion, paper.select.width_rule, paper.order) == ("cosep", "knee", "one-by-one")
    assert (paper.rebuild.solve, paper.rebuild.reestimate_batchnorm, paper.surgery.round_to) == (False, False, 1)
    recover = paper.recover
    assert (recover.schedule, recover.group_epochs, recover.share, recover.fixed_share) == ("per-layer", 2, 0.25, True)
    assert recover.epochs is None
    assert (recover.optimizer, recover.lr, recover.momentum, recover.weight_decay) == ("sgd", 0.01, 0.9, 1e-4)
    assert (recover.decay, recover.warmup, recover.clip) == ("constant", 0, 0)
    assert (recover.distill, recover.features) == (0, 0)


def test_both_presets_spend_the_same_budget():
    default, paper = preset("default").recover, preset("paper").recover
    assert (default.epochs, default.group_epochs, default.share) == (paper.epochs, paper.group_epochs, paper.share)


def test_settings_survive_the_way_to_plain_values_and_back():
    config = replace_settings(preset("paper"), {"select": {"degree": 4}, "seed": 7})
    assert replace_settings(preset(), settings(config)) == config


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"no setting select\.degre; did you mean 'degree'"):
        replace_settings(preset(), {"select": {"degre": 3}})
    with pytest.raises(ConfigError, match="no setting or section 'selct'; did you mean 'select'"):
        replace_settings(preset(), {"selct": {}})


def test_a_value_of_the_wrong_type_is_refused():
    with pytest.raises(ConfigError, match=r"select\.degree is '2'; it must be of type int"):
        replace_settings(preset(), {"select": {"degree": "2"}})
    with pytest.raises(ConfigError, match=r"select is 3; it is a section"):
        replace_settings(preset(), {"select": 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProfileConfig(max_classes=1), r"profile\.max_classes is 1; it must be at least 2"),
        (lambda: ProfileConfig(metric="jn"), r"profile\.metric is 'jn'; it must be one of 'jm'"),
        (lambda: SelectConfig(degree=0), r"select\.degree is 0; it must be at least 1"),
        (lambda: RecoverConfig(share=1.5), r"recover\.share is 1\.5; it must be between 0 and 1"),
        (lambda: RecoverConfig(temperature=0), r"recover\.temperature is 0; it must be above 0"),
        (lambda: LimitConfig(max_macs="half"), r"limits\.max_macs is 'half'; give a share such as"),
        (lambda: LimitConfig(max_macs="-5%"), r"limits\.max_macs is '-5%'"),
    ],
)
def test_settings_check_themselves(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_limit_is_a_share_of_the_whole_or_a_number():
    assert amount("x", "50%", 80) == 40
    assert amount("x", "2e3", 80) == 2000


def test_the_papers_recovery_settings_are_those_of_its_table():
    published = {  # model, data: lr, weight decay, nesterov, epochs
        ("resnet56", "cifar10:d"): (0.01, 1e-4, False, 2),
        ("vgg16", "cifar10:d"): (0.01, 5e-4, True, 2),
        ("mobilenetv2", "cifar10:d"): (0.01, 5e-4, False, 2),
        ("vgg19", "cifar100:d"): (0.01, 5e-4, True, 2),
        ("densenet40", "cifar100:d"): (0.01, 5e-4, False, 2),
        ("resnet50", "imagefolder:d"): (0.001, 1e-4, False, 3),
        ("torchvision:mobilenet_v2", "imagefolder:d"): (0.001, 5e-4, False, 3),
    }
    for (model, data), (lr, decay, nesterov, epochs) in published.items():
        r = replace_settings(preset("paper"), {"recover": paper_recovery(model, data)}).recover
        assert (r.lr, r.weight_decay, r.nesterov, r.group_epochs, r.momentum, r.share) == (
            lr,
            decay,
            nesterov,
            epochs,
            0.9,
            0.25,
        )


def test_no_preset_is_hidden_behind_the_plain_constructors():
    assert PruneConfig() == preset("default")
    assert SelectConfig() == preset("default").select  # so select() and prune() go by the same knee


def test_the_seed_is_held_once_and_the_old_second_one_warns():
    assert "seed" not in settings(preset())["select"]
    with pytest.warns(FutureWarning, match=r"select\.seed is gone"):
        config = replace_settings(preset(), {"seed": 3, "select": {"seed": 0, "degree": 4}})
    assert (config.seed, config.select.degree) == (3, 4)


def test_no_limit_is_none_and_settings_leave_it_out():
    assert preset().limits == LimitConfig(max_drop=None, max_macs=None, max_params=None, max_latency_ms=None)
    assert settings(preset())["limits"] == {"runtime": "torch", "best_effort": False}
    limited = replace_settings(preset(), {"limits": {"max_macs": "50%"}})
    assert settings(limited)["limits"] == {"max_macs": "50%", "runtime": "torch", "best_effort": False}
    assert replace_settings(limited, {"limits": {"max_macs": None}}) == preset()


def test_what_meant_no_limit_before_is_still_read():
    before = {"limits": {"max_drop": 100.0, "max_macs": "", "max_params": "", "max_latency_ms": 0.0}}
    assert replace_settings(preset(), before) == preset()


@pytest.mark.parametrize(
    "changes", [{"recover": {"schedule": "per-layer"}}, {"limits": {"max_drop": 1.0, "max_macs": "50%"}}]
)
def test_what_needs_one_group_at_a_time_is_refused_together(changes):
    with pytest.raises(ConfigError, match=r'[Ss]et order to "one-by-one"'):
        replace_settings(preset(), {"order": "together", **changes})


def test_a_drop_that_is_allowed_says_how_much_to_cut_where_all_groups_go_together():
    config = replace_settings(preset(), {"limits": {"max_drop": 1.0}})
    assert (config.order, config.limits.max_drop) == ("together", 1.0)


def test_settings_of_the_version_before_are_read_with_a_warning():
    former = {"surgery": {"compensate": False, "images": 70, "ridge": 0.1}, "recover": {"epochs": 3.0}}
    with pytest.warns(FutureWarning, match="is now part of the section rebuild"):
        config = replace_settings(preset(), former)
    assert (config.rebuild.solve, config.rebuild.images, config.rebuild.pull) == (False, 70, 0.1)
    assert (config.recover.epochs, config.recover.group_epochs) == (None, 3.0)  # it was the length for each group


@pytest.mark.parametrize("section", ["select", "surgery", "recover", "rebuild", "limits"])
def test_a_file_of_an_earlier_version_with_a_number_for_a_section_is_refused_by_name(section):
    file = {"observe": {}, "profile": {}, "select": {}, "surgery": {}, "recover": {}, section: 2.5}
    with pytest.raises(ConfigError, match=section):
        replace_settings(preset(), file)
