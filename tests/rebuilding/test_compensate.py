import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import SurgeryConfig
from cosep.errors import CalibrationError, PlanError
from cosep.rebuilding.compensate import compensate
from cosep.records import Group, Slice


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors here are tiny: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


EXACT = SurgeryConfig(ridge=1e-10, positions=10**6)


def group_of(width, producer, consumers, spans=None, offsets=None):
    """A hand-made group: one producer, consumers whose inputs hold the channels from an offset on."""
    slices = [Slice(producer, "out", torch.arange(width).unsqueeze(1))]
    for name in consumers:
        span, offset = (spans or {}).get(name, 1), (offsets or {}).get(name, 0)
        slices.append(Slice(name, "in", offset + torch.arange(width * span).view(width, span)))
    return Group(producer, width, (producer,), tuple(consumers), tuple(slices), macs=0, scope="interior")


def batches_of(*shape, images=200, size=40, seed=0):
    data = torch.randn(images, *shape, generator=torch.Generator().manual_seed(seed))
    return [(part, torch.zeros(len(part))) for part in data.split(size)]


def randomised(model, seed=0):
    """Random weights everywhere, BatchNorm statistics included, in float64: exactness can be asked for."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in list(model.named_parameters()) + list(model.named_buffers()):
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
                if name.endswith("running_var"):
                    value.abs_().add_(0.5)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # most channels alive behind a ReLU
                module.bias.abs_().add_(0.5)
    return model.eval()


def make_dependent(conv, removed, kept, seed=0, constant=0.7):
    """Make the removed rows of a layer linear combinations of the kept ones, plus a constant."""
    mix = torch.randn(len(removed), len(kept), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        conv.weight[removed] = torch.tensordot(mix, conv.weight[kept], 1)
        if conv.bias is not None:
            conv.bias[removed] = mix @ conv.bias[kept] + constant


def fitted_images(batches):
    """The images that enter the fit, by the documented rule: all but the first of every 16."""
    images = torch.cat([x for x, _ in batches])
    return images[torch.arange(len(images)) % 16 != 0]


CONSUMERS = {
    "plain": nn.Conv2d(4, 5, 3),
    "padded": nn.Conv2d(4, 5, 3, padding=1),
    "strided": nn.Conv2d(4, 5, 3, stride=2, padding=(1, 0)),
    "dilated": nn.Conv2d(4, 5, (3, 2), dilation=(2, 1), padding=(2, 1)),
    "pointwise": nn.Conv2d(4, 5, 1),
    "even kernel, same padding": nn.Conv2d(4, 5, 4, padding="same"),
    "reflecting": nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"),
    "circular": nn.Conv2d(4, 5, 3, padding=2, padding_mode="circular"),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kind", CONSUMERS)
def test_the_new_weights_are_the_least_squares_solution_on_the_unfolded_input(kind):
    consumer = copy.deepcopy(CONSUMERS[kind])
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), consumer)).double()
    batches = [(x.double(), y) for x, y in batches_of(3, 7, 7, images=60)]
    kept, removed = [0, 2], [1, 3]
    ridge = 1e-3
    result, (record,) = compensate(
        model, group_of(4, "0", ["2"]), kept, {}, batches, SurgeryConfig(ridge=ridge, positions=10**6)
    )

    with torch.no_grad():
        x = model[1](model[0](fitted_images(batches)))
        # The oracle knows nothing of patches: each output of a convolution with one weight set to one is a column.
        columns = []
        for unit in range(4):
            for tap in range(consumer.weight[0, 0].numel()):
                probe = copy.deepcopy(consumer)
                probe.weight.zero_()
                probe.bias.zero_()
                probe.weight[0, unit].view(-1)[tap] = 1
                columns.append(probe(x)[:, 0].flatten())
        patches = torch.stack(columns, 1).unflatten(1, (4, -1))
        target = (model[2](x) - model[2].bias.view(1, -1, 1, 1)).transpose(0, 1).flatten(1).T.numpy()
        kept_patches = patches[:, kept].flatten(1).numpy()
        target = target - kept_patches @ model[2].weight[:, kept].flatten(1).T.numpy()  # what is lost
    centred = kept_patches - kept_patches.mean(0)
    level = ridge * (centred**2).mean(0).mean() * len(centred)
    system = np.concatenate([centred, np.sqrt(level) * np.eye(centred.shape[1])])
    right = np.concatenate([target - target.mean(0), np.zeros((centred.shape[1], 5))])
    change = np.linalg.lstsq(system, right, rcond=None)[0]
    constant = target.mean(0) - kept_patches.mean(0) @ change

    new = result[2].weight.detach()
    assert record.applied
    assert_close(new[:, kept].flatten(1), model[2].weight.detach()[:, kept].flatten(1) + torch.from_numpy(change.T))
    assert_close(result[2].bias.detach(), model[2].bias.detach() + torch.from_numpy(constant))
    assert bool((new[:, removed] == 0).all())


LAWS = {
    "conv2d": (nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 3, stride=2, dilation=2), (3, 12, 12)),
    "conv1d": (nn.Conv1d(3, 6, 3), nn.Conv1d(6, 5, 3, stride=2), (3, 12)),
    "conv3d": (nn.Conv3d(2, 6, 2), nn.Conv3d(6, 5, 2), (2, 5, 5, 5)),
    "linear": (nn.Linear(7, 6), nn.Linear(6, 5), (7,)),
    "linear on tokens": (nn.Linear(7, 6), nn.Linear(6, 5), (4, 7)),
    "reflecting padding": (nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect"), (3, 8, 8)),
}


@pytest.mark.parametrize("kind", LAWS)
def test_channels_that_depend_on_kept_ones_are_removed_without_a_trace(kind):
    producer, consumer, shape = LAWS[kind]
    model = randomised(nn.Sequential(copy.deepcopy(producer), copy.deepcopy(consumer))).double()
    make_dependent(model[0].float(), [1, 4, 5], [0, 2, 3])
    model.double()
    batches = [(x.double(), y) for x, y in batches_of(*shape)]
    result, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 2, 3], {}, batches, EXACT)
    x = torch.randn(7, *shape, dtype=torch.float64)
    assert record.applied
    assert record.error_after < 1e-9 < record.error_before
    assert bool((result[1].weight[:, [1, 4, 5]] == 0).all())
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_a_transposed_convolution_is_re_solved_without_a_constant(kind):
    dims = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d).index(kind) + 1
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](2, 6, 1)
    model = randomised(nn.Sequential(conv, kind(6, 4, 3, stride=2, padding=1, groups=2)))
    make_dependent(model[0], [1], [0, 2], constant=0.0)
    make_dependent(model[0], [4], [3, 5], constant=0.0)
    batches = batches_of(2, *[5] * dims)
    result, (record,) = compensate(model.double(), group_of(6, "0", ["1"]), [0, 2, 3, 5], {}, _double(batches), EXACT)
    x = torch.randn(3, 2, *[5] * dims, dtype=torch.float64)
    assert record.applied
    assert torch.equal(result[1].bias, model[1].bias)
    assert bool((result[1].weight[[1, 4]] == 0).all())
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)


def test_each_group_of_a_grouped_convolution_is_solved_from_its_own_channels():
    model = randomised(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 3, groups=2)))
    make_dependent(model[0], [0], [1, 2, 3])
    make_dependent(model[0], [6], [4, 5, 7])
    model.double()
    result, (record,) = compensate(
        model, group_of(8, "0", ["1"]), [1, 2, 3, 4, 5, 7], {}, _double(batches_of(3, 6, 6)), EXACT
    )
    x = torch.randn(3, 3, 6, 6, dtype=torch.float64)
    assert record.applied
    assert bool((result[1].weight[:3, 0] == 0).all())
    assert bool((result[1].weight[3:, 2] == 0).all())
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_whole_group_of_a_grouped_convolution_may_go_and_leaves_its_mean():
    model = randomised(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2)))
    result, (record,) = compensate(model, group_of(4, "0", ["2"]), [2, 3], {}, batches_of(3, 6, 6), EXACT)
    assert record.applied
    assert bool((result[2].weight[:2] == 0).all())
    assert_close(result[2].weight[2:], model[2].weight[2:])
    images = fitted_images(batches_of(3, 6, 6))
    assert_close(result(images)[:, :2].mean((0, 2, 3)), model(images)[:, :2].mean((0, 2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("max_gram", [5000, 10])
def test_behind_a_flatten_each_channel_is_its_span(max_gram):
    """With a small limit, the channel regression takes over; for dependent channels it is exact as well."""
    model = randomised(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6 * 9, 4)))
    make_dependent(model[0], [1, 4, 5], [0, 2, 3])
    model.double()
    config = SurgeryConfig(ridge=1e-10, positions=10**6, max_gram=max_gram)
    group = group_of(6, "0", ["2"], spans={"2": 9})
    result, (record,) = compensate(model, group, [0, 2, 3], {}, _double(batches_of(3, 5, 5, images=300)), config)
    x = torch.randn(5, 3, 5, 5, dtype=torch.float64)
    assert record.applied
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)
    assert bool((result[2].weight.unflatten(1, (6, 9))[:, [1, 4, 5]] == 0).all())


def test_the_channel_regression_serves_convolutions_too():
    model = randomised(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 3)))
    make_dependent(model[0], [1, 4, 5], [0, 2, 3])
    model.double()
    config = SurgeryConfig(ridge=1e-10, max_gram=10)
    result, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 2, 3], {}, _double(batches_of(3, 8, 8)), config)
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    assert record.applied
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)


class Concat(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(3, 4, 1)
        self.right = nn.Conv2d(3, 6, 1)
        self.join = nn.Conv2d(10, 5, 3, bias=False)
        self.aside = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        right = self.right(x).relu()
        return self.join(torch.cat([self.left(x), right], 1)).flatten(1).sum(1) + self.aside(right).flatten(1).sum(1)


def test_only_the_groups_own_columns_of_a_concatenation_change_and_every_consumer_is_solved():
    model = randomised(Concat())
    with torch.no_grad():  # the same up to a positive factor: ReLU keeps them dependent
        model.right.weight[3:] = model.right.weight[:3] * 2
        model.right.bias[3:] = model.right.bias[:3] * 2
    group = group_of(6, "right", ["join", "aside"], offsets={"join": 4})
    result, records = compensate(model.double(), group, [0, 1, 2], {}, _double(batches_of(3, 7, 7)), EXACT)
    assert [r.consumer for r in records] == ["join", "aside"]
    assert all(r.applied for r in records)
    assert torch.equal(result.join.weight[:, :4], model.join.weight[:, :4])
    assert bool((result.join.weight[:, 7:] == 0).all())
    assert result.join.bias is None
    x = torch.randn(4, 3, 7, 7, dtype=torch.float64)
    assert_close(result(x), model(x), rtol=1e-4, atol=1e-4)


def test_positions_are_translated_by_the_layout_of_earlier_cuts():
    """The join lost inputs 1 and 2 (of the left branch) and 5 (channel 1 of this group) before."""
    model = randomised(Concat())
    model.left = randomised(nn.Conv2d(3, 2, 1))
    model.right = randomised(nn.Conv2d(3, 5, 1))
    model.join = randomised(nn.Conv2d(7, 5, 3, bias=False))
    model.aside = randomised(nn.Conv2d(5, 2, 1))
    group = group_of(6, "right", ["join", "aside"], offsets={"join": 4})
    layout = {
        ("join", "in"): (0, 3, 4, 6, 7, 8, 9),
        ("aside", "in"): (0, 2, 3, 4, 5),
        ("right", "out"): (0, 2, 3, 4, 5),
    }
    result, _ = compensate(model, group, [0, 3, 5], layout, batches_of(3, 7, 7), EXACT)
    zero = (result.join.weight == 0).flatten(2).all(2).all(0)
    assert zero.tolist() == [False, False, False, True, False, True, False]
    assert (result.aside.weight == 0).flatten(2).all(2).all(0).tolist() == [False, True, False, True, False]
    assert torch.equal(result.join.weight[:, :2], model.join.weight[:, :2])
    with pytest.raises(PlanError, match=r"channels \[1\] .* were cut from 'join' before"):
        compensate(model, group, [0, 1], layout, batches_of(3, 7, 7), EXACT)


class Block(nn.Module):
    """conv - BatchNorm - ReLU - depthwise - BatchNorm - conv - BatchNorm, as in an inverted residual."""

    def __init__(self, last_norm=True):
        super().__init__()
        self.expand = nn.Conv2d(3, 8, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.project = nn.Conv2d(8, 3, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(3) if last_norm else nn.Identity()

    def forward(self, x):
        y = F.relu6(self.norm1(self.expand(x)))
        return self.norm3(self.project(F.relu6(self.norm2(self.depthwise(y)))))


def test_without_a_bias_the_constant_goes_into_the_batchnorm_behind():
    model = randomised(Block())
    images = torch.cat([x for x, _ in batches_of(3, 6, 6)])
    result, (record,) = compensate(model, group_of(8, "expand", ["project"]), [0, 1, 5], {}, [images], EXACT)
    assert record.applied
    assert result.project.bias is None
    assert not torch.equal(result.norm3.running_mean, model.norm3.running_mean)
    assert torch.equal(result.norm3.running_var, model.norm3.running_var)
    fit = images[torch.arange(len(images)) % 16 != 0]
    # Least squares with a constant keeps the mean of every output on the data of the fit.
    assert_close(result(fit).mean((0, 2, 3)), model(fit).mean((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_without_a_bias_and_a_batchnorm_the_fit_has_no_constant():
    model = randomised(Block(last_norm=False)).double()
    batches = _double(batches_of(3, 6, 6))
    result, (record,) = compensate(model, group_of(8, "expand", ["project"]), [0, 1, 5], {}, batches, EXACT)
    x = F.relu6(model.norm1(model.expand(fitted_images(batches))))
    x = F.relu6(model.norm2(model.depthwise(x))).transpose(0, 1).flatten(1).T.detach().numpy()
    weight = model.project.weight.detach().flatten(1).T.numpy()
    oracle = np.linalg.lstsq(x[:, [0, 1, 5]], x @ weight, rcond=None)[0]
    assert record.applied
    assert result.project.bias is None
    assert_close(result.project.weight[:, [0, 1, 5], 0, 0].T.detach(), torch.from_numpy(oracle), rtol=1e-4, atol=1e-5)


def test_a_batchnorm_that_serves_two_layers_takes_no_constant():
    class Shared(Block):
        def forward(self, x):
            return super().forward(x) + self.norm3(x)

    model = randomised(Shared())
    result, (record,) = compensate(model, group_of(8, "expand", ["project"]), [0, 1, 5], {}, batches_of(3, 6, 6))
    assert record.applied
    assert torch.equal(result.norm3.running_mean, model.norm3.running_mean)


def test_float32_statistics_survive_means_far_above_deviations():
    model = randomised(nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5)))
    make_dependent(model[0], [1, 4, 5], [0, 2, 3])
    with torch.no_grad():
        model[0].bias += 1000
    config = SurgeryConfig(ridge=1e-6)
    _, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 2, 3], {}, batches_of(7, images=2000), config)
    assert record.error_after < 1e-3


def test_the_callers_model_is_untouched_unless_asked():
    model = randomised(Block())
    model.train()
    model.norm1.eval()
    before = copy.deepcopy(model.state_dict())
    group = group_of(8, "expand", ["project"])
    result, _ = compensate(model, group, [0, 1], {}, batches_of(3, 6, 6))
    assert result is not model
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training
    assert not model.norm1.training
    assert result.training
    assert not result.norm1.training
    assert _hooks(model) == _hooks(result) == 0
    same, _ = compensate(model, group, [0, 1], {}, batches_of(3, 6, 6), inplace=True)
    assert same is model
    assert all(torch.equal(v, result.state_dict()[k]) for k, v in model.state_dict().items())


def test_no_hook_and_no_mode_survives_an_exception():
    model = randomised(Block())
    model.train()

    def failing():
        yield torch.randn(20, 3, 6, 6)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        compensate(model, group_of(8, "expand", ["project"]), [0, 1], {}, failing())
    with pytest.raises(RuntimeError):
        compensate(model, group_of(8, "expand", ["project"]), [0, 1], {}, [torch.randn(20, 4, 6, 6)])
    assert _hooks(model) == 0
    assert all(m.training for m in model.modules())


def test_the_same_seed_gives_the_same_weights():
    model = randomised(Block())
    args = (group_of(8, "expand", ["project"]), [0, 1], {}, batches_of(3, 6, 6), SurgeryConfig(positions=4))
    first, second = compensate(model, *args, seed=3)[0], compensate(model, *args, seed=3)[0]
    assert torch.equal(first.project.weight, second.project.weight)
    assert not torch.equal(first.project.weight, compensate(model, *args, seed=4)[0].project.weight)


class Rest(nn.Module):
    """Consumers that cannot be re-solved, each for its own reason."""

    def __init__(self):
        super().__init__()
        self.make = nn.Conv1d(3, 4, 1)
        self.own = OwnForward(4, 2, 1)
        self.tied = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.tied.weight
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 2, 1))
        self.bilinear = nn.Bilinear(4, 4, 2)
        self.idle = nn.Conv1d(4, 2, 1)
        self.fine = nn.Conv1d(4, 2, 1)

    def forward(self, x):
        y = self.make(x)
        z = y.mT.contiguous()
        self.own(y), self.tied(z), self.other(z), self.normed(y), self.bilinear(z, z)
        return self.fine(y)


class OwnForward(nn.Conv1d):
    def forward(self, x):
        return super().forward(x * 2)


def test_consumers_that_cannot_be_re_solved_are_left_alone_and_say_why():
    torch.manual_seed(0)
    model = Rest()
    names = ["own", "tied", "normed", "bilinear", "idle", "fine"]
    result, records = compensate(model, group_of(4, "make", names), [0, 1], {}, batches_of(3, 5))
    reasons = {r.consumer: r.reason for r in records}
    assert reasons == {
        "own": "OwnForward has a forward of its own",
        "tied": "its weight is shared with another layer",
        "normed": "ParametrizedConv1d has a forward of its own"
        if "forward of its own" in reasons["normed"]
        else "its weight is computed from other parameters",
        "bilinear": "a Bilinear is neither a convolution nor a linear layer",
        "idle": "it did not run",
        "fine": "re-solved",
    }
    assert [r.applied for r in records] == [False] * 5 + [True]
    changed = {k for k, v in result.state_dict().items() if not torch.equal(v, model.state_dict()[k])}
    assert changed == {"fine.weight", "fine.bias"}


def test_dependent_kept_channels_without_a_ridge_fall_back_to_plain_cutting():
    model = randomised(nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5)))
    with torch.no_grad():
        model[0].weight[1] = model[0].weight[0]
        model[0].bias[1] = model[0].bias[0]
    config = SurgeryConfig(ridge=0.0)
    result, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 1, 2], {}, batches_of(7), config)
    assert not record.applied
    assert record.reason.startswith("ill-conditioned")
    assert torch.equal(result[1].weight, model[1].weight)
    _, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 1, 2], {}, batches_of(7))
    assert record.applied


@pytest.mark.parametrize("nearly", [0.0, 1e-6])
def test_dependent_channels_are_recognised_however_the_products_round(nearly):
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5))
        with torch.no_grad():
            model[0].weight[1] = model[0].weight[0] * (1 + nearly)
            model[0].bias[1] = model[0].bias[0]
        batches = [(torch.randn(64, 7), torch.zeros(64, dtype=torch.int64)) for _ in range(3)]
        _, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 1, 2], {}, batches, SurgeryConfig(ridge=0.0))
        assert record.reason.startswith("ill-conditioned"), seed


def test_infinite_activations_fall_back_to_plain_cutting():
    model = randomised(nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5)))
    batches = batches_of(7)
    batches[1][0][3, 2] = torch.inf
    result, (record,) = compensate(model, group_of(6, "0", ["1"]), [0, 1], {}, batches)
    assert (record.applied, record.reason) == (False, "the calibration activations are not finite")
    assert torch.equal(result[1].weight, model[1].weight)


def test_a_fit_to_too_few_images_is_caught_on_images_it_has_not_seen():
    """45 images, three set aside, for 40 unknowns and hardly a ridge: perfect on the fit, useless elsewhere."""
    model = randomised(nn.Sequential(nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5)))
    config = SurgeryConfig(ridge=1e-9)
    _, (record,) = compensate(model, group_of(60, "0", ["2"]), range(40), {}, batches_of(60, images=45), config)
    assert (record.applied, record.reason) == (
        False,
        "it would not come closer to the former output than plain cutting",
    )


def test_a_layer_too_wide_for_any_gram_matrix_is_cut_plainly():
    model = randomised(nn.Sequential(nn.Linear(7, 30), nn.Linear(30, 5)))
    config = SurgeryConfig(max_gram=20)
    _, (record,) = compensate(model, group_of(30, "0", ["1"]), range(9), {}, batches_of(7), config)
    assert (record.applied, record.reason) == (False, "it reads 30 channels; the largest Gram matrix allowed is 20")


def test_keeping_every_channel_changes_nothing():
    model = randomised(Block())
    result, (record,) = compensate(model, group_of(8, "expand", ["project"]), range(8), {}, batches_of(3, 6, 6))
    assert (record.applied, record.reason) == (False, "no channel is removed")
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in result.state_dict().items())


def test_dead_kept_channels_still_get_the_constant():
    model = randomised(nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3)))
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias[:2] = -1
    result, (record,) = compensate(model, group_of(4, "0", ["2"]), [0, 1], {}, batches_of(7))
    assert record.applied
    assert_close(result[2].weight[:, :2], model[2].weight[:, :2])


@pytest.mark.parametrize("kept", [[], [0, 0], [8], [-1]])
def test_kept_channels_must_be_channels(kept):
    with pytest.raises(PlanError, match="group 'expand' has 8 channels; the kept ones given are"):
        compensate(Block(), group_of(8, "expand", ["project"]), kept, {}, batches_of(3, 6, 6))


def test_a_group_of_another_model_is_refused():
    with pytest.raises(PlanError, match="names a consumer 'nowhere'"):
        compensate(Block(), group_of(8, "expand", ["nowhere"]), [0], {}, batches_of(3, 6, 6))
    group = group_of(8, "expand", [])
    group = Group("expand", 8, ("expand",), ("project",), group.slices, macs=0, scope="interior")
    with pytest.raises(PlanError, match="does not say where its channels enter"):
        compensate(Block(), group, [0], {}, batches_of(3, 6, 6))


def test_calibration_data_must_be_there_and_be_images():
    with pytest.raises(CalibrationError, match="no calibration batches"):
        compensate(Block(), group_of(8, "expand", ["project"]), [0], {}, [])
    with pytest.raises(CalibrationError, match="batch is a str"):
        compensate(Block(), group_of(8, "expand", ["project"]), [0], {}, ["cat.png"])


def _double(batches):
    return [(x.double(), y) for x, y in batches]


def _hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
