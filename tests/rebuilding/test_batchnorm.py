import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cosep.errors import CalibrationError
from cosep.rebuilding.batchnorm import reestimate_batchnorm


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
    )


def batches_of(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 3, 6, 6, generator=generator) * 3 + 5, torch.zeros(n)) for n in sizes]


def test_the_first_layer_gets_the_mean_and_unbiased_variance_of_all_its_input():
    model, batches = net(), batches_of(10, 10, 7)
    assert reestimate_batchnorm(model, batches) == ("0", "2")
    everything = torch.cat([x for x, _ in batches]).transpose(0, 1).flatten(1)
    assert_close(model[0].running_mean, everything.mean(1))
    assert_close(model[0].running_var, everything.var(1))


def test_a_later_layer_sees_what_batch_normalised_layers_before_it_give():
    model, ((x, _),) = net(), batches_of(30)
    reestimate_batchnorm(model, [x])
    model[0].train()
    seen = model[1](model[0](x)).transpose(0, 1).flatten(1)
    assert_close(model[2].running_mean, seen.mean(1))
    assert_close(model[2].running_var, seen.var(1))


def test_one_batch_of_everything_makes_evaluation_equal_training():
    model, ((x, _),) = net(), batches_of(30)
    model[4].p = 0.0
    reestimate_batchnorm(model, [x])
    count = 30 * 6 * 6
    # Training normalises by the biased variance, evaluation by the unbiased one that torch keeps.
    assert_close(model.eval()[0](x), model.train()[0](x), rtol=2 / count, atol=2 / count)


def test_weights_flags_momentum_and_counters_stay():
    model = net()
    model.eval()
    model[2].train()
    before = copy.deepcopy(model.state_dict())
    reestimate_batchnorm(model, batches_of(8, 8))
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"0.running_mean", "0.running_var", "2.running_mean", "2.running_var"}
    assert [m.training for m in model] == [False, False, True, False, False, False]
    assert (model[0].momentum, model[2].momentum) == (0.1, 0.3)
    assert not any(m._forward_hooks for m in model.modules())


def test_layers_that_do_not_track_or_did_not_run_are_left_alone():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.untracked = nn.BatchNorm2d(3, track_running_stats=False)
            self.idle = nn.BatchNorm2d(3)
            self.used = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.used(self.untracked(x))

    model = Net()
    assert reestimate_batchnorm(model, batches_of(8)) == ("used",)
    assert model.untracked.running_mean is None
    assert_close(model.idle.running_mean, torch.zeros(3))
    assert reestimate_batchnorm(nn.Linear(2, 2), []) == ()


def test_a_layer_that_runs_twice_pools_both_of_its_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3, affine=False)

        def forward(self, x):
            return self.norm(x) + self.norm(x * 2)

    model, ((x, _),) = Twice(), batches_of(12)
    reestimate_batchnorm(model, [x])
    assert_close(model.norm.running_mean, torch.cat([x, x * 2]).mean((0, 2, 3)))
    assert_close(model.norm.running_var, torch.cat([x, x * 2]).transpose(0, 1).flatten(1).var(1))


def test_only_so_many_batches_are_used():
    some, few = net(), net()
    reestimate_batchnorm(some, batches_of(8, 8, 8), max_batches=2)
    reestimate_batchnorm(few, batches_of(8, 8))
    assert torch.equal(some[2].running_var, few[2].running_var)


def test_a_single_image_at_the_end_is_skipped():
    with_one, without = net(), net()
    reestimate_batchnorm(with_one, batches_of(8, 1))
    reestimate_batchnorm(without, batches_of(8))
    assert torch.equal(with_one[2].running_mean, without[2].running_mean)
    with pytest.raises(CalibrationError, match="at least one batch of two or more images"):
        reestimate_batchnorm(net(), batches_of(1, 1))


def test_after_a_failure_the_model_is_as_it_was():
    model = net()
    model.train()
    before = copy.deepcopy(model.state_dict())

    def failing():
        yield from batches_of(8)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        reestimate_batchnorm(model, failing())
    bad = batches_of(8, 8)
    bad[1][0][0, 0, 0, 0] = torch.nan
    with pytest.raises(CalibrationError, match="input of BatchNorm '0' is not finite"):
        reestimate_batchnorm(model, bad)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[0].momentum == 0.1
    assert all(m.training for m in model)
    assert not any(m._forward_hooks for m in model.modules())
