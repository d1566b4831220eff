"""Each structure of a network is solved towards what it should be: numpy's least squares on what the layer reads."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import RebuildConfig
from cosep.groups import find_groups
from cosep.rebuilding import rebuild
from cosep.surgery import apply_layout, layout_of
from tests.groups import nets
from tests.rebuilding.test_rebuild import Basic, Standardised, basic, check_no_worse, error, halved, images

EXACT = RebuildConfig(
    pull=1e-9, rows=1_000_000, positions=64, refine=0
)  # hardly any pull, and every position of every image


def fitted(batches):
    """The images that fits see: all but every sixteenth."""
    x = torch.cat(batches)
    return x[torch.arange(len(x)) % 16 != 0]


def flat(values):
    """(images, channels, ...) -> (images * positions, channels) for numpy."""
    return values.flatten(2).transpose(1, 2).flatten(0, 1).double().numpy() if values.ndim > 2 else values.numpy()


def closest(rows, wanted, *, constant=True):
    """What least squares makes of rows, with a constant or without one."""
    design = np.hstack([rows, np.ones((len(rows), 1))]) if constant else rows
    return design @ np.linalg.lstsq(design, wanted, rcond=None)[0]


def cut_in(model, name, kept, example):
    group = next(g for g in find_groups(model, example) if g.name == name)
    layout = layout_of(model, group, kept, {})
    return apply_layout(model, layout), layout


class InGroups(nn.Module):
    """A layer in groups, or one for each channel, behind a layer that can be cut; its outputs go on by themselves."""

    def __init__(self, groups, outputs):
        super().__init__()
        self.a = nn.Conv2d(3, 12, 1)
        self.b = nn.Conv2d(12, 12, 1)
        self.g = nn.Conv2d(12, outputs, 3, groups=groups)
        self.f = nn.Linear(outputs, 3)

    def forward(self, x):
        return self.f(F.relu(self.g(F.relu(self.b(F.relu(self.a(x)))))).mean((2, 3)))


@pytest.mark.parametrize(
    ("groups", "outputs"), [(3, 6), (12, 12), (12, 24)], ids=["groups", "depthwise", "two of each"]
)
def test_each_group_of_a_convolution_is_the_least_squares_solution_of_its_own_inputs(groups, outputs):
    torch.manual_seed(0)
    model, batches = InGroups(groups, outputs).eval(), images((3, 8, 8))
    cut, layout = cut_in(model, "a", (0, 1, 5, 7), batches[0][:1])
    done = rebuild(model, cut, layout, batches, EXACT)
    assert next(each for each in done.layers if each.layer == "g").reason == "re-solved"
    x = fitted(batches)
    with torch.no_grad():
        wanted = model.g(F.relu(model.b(F.relu(model.a(x)))))
        read = F.relu(done.model.b(F.relu(done.model.a(x))))
        found = done.model.g(read)
    for part in range(groups):
        own = slice(part * 12 // groups, (part + 1) * 12 // groups)
        made = slice(part * outputs // groups, (part + 1) * outputs // groups)
        patches = F.unfold(read[:, own], 3).transpose(1, 2).flatten(0, 1).double().numpy()
        np.testing.assert_allclose(flat(found[:, made]), closest(patches, flat(wanted[:, made])), atol=2e-3)


class PreActivated(nn.Module):
    """BatchNorm and activation before the convolutions: what a BatchNorm reads is a sum, and others read it too."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1, self.a = nn.BatchNorm2d(8), nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn2, self.b = nn.BatchNorm2d(12), nn.Conv2d(12, 8, 3, padding=1, bias=False)
        self.bn3, self.f = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def summed(self, x):
        x = self.stem(x)
        return x + self.b(F.relu(self.bn2(self.a(F.relu(self.bn1(x))))))

    def forward(self, x):
        return self.f(F.relu(self.bn3(self.summed(x))).mean((2, 3)))


class Concatenated(PreActivated):
    """DenseNet's: a BatchNorm reads the outputs of several layers."""

    def __init__(self):
        super().__init__()
        self.bn3, self.f = nn.BatchNorm2d(16), nn.Linear(16, 3)

    def summed(self, x):
        x = self.stem(x)
        return torch.cat([x, self.b(F.relu(self.bn2(self.a(F.relu(self.bn1(x))))))], dim=1)


def settled(kind):
    torch.manual_seed(0)
    model = kind()
    for x in images((3, 8, 8), seed=9):
        model(x)  # BatchNorm learns its statistics
    return nets.shaken(model)


@pytest.mark.parametrize("kind", [PreActivated, Concatenated])
def test_a_batchnorm_behind_no_single_layer_is_fitted_channel_by_channel(kind):
    model, batches = settled(kind), images((3, 8, 8))
    cut, layout = cut_in(model, "a", (0, 2, 3, 7, 9), batches[0][:1])
    done = rebuild(model, cut, layout, batches, EXACT)
    x = fitted(batches)
    with torch.no_grad():
        read, wanted = done.model.summed(x), model.bn3(model.summed(x))
        found = done.model.bn3(read)
    for channel in range(read.shape[1]):
        one = slice(channel, channel + 1)
        np.testing.assert_allclose(flat(found[:, one]), closest(flat(read[:, one]), flat(wanted[:, one])), atol=2e-3)
    assert_close(done.model.bn3.running_mean, read.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    assert_close(done.model.bn3.running_var, read.var((0, 2, 3), correction=0), rtol=1e-3, atol=1e-4)


def test_where_a_constant_has_no_home_the_fit_does_without_and_none_is_added():
    model, batches = settled(Concatenated), images((3, 8, 8))
    cut, layout = cut_in(model, "a", (0, 2, 3, 7, 9), batches[0][:1])
    done = rebuild(model, cut, layout, batches, EXACT)  # behind b nothing could take a constant
    assert done.model.b.bias is None
    x = fitted(batches)
    with torch.no_grad():
        wanted = model.summed(x)[:, 8:]
        hidden = F.relu(done.model.bn2(done.model.a(F.relu(done.model.bn1(done.model.stem(x))))))
        found = done.model.b(hidden)
    patches = F.unfold(hidden, 3, padding=1).transpose(1, 2).flatten(0, 1).double().numpy()
    np.testing.assert_allclose(flat(found), closest(patches, flat(wanted), constant=False), atol=2e-3)


def test_with_many_images_the_classifier_is_solved_and_with_few_it_keeps_its_weights():
    model = basic()
    for count, moves in ((12, False), (64, True)):
        batches = images((3, 8, 8), count=count)
        cut, layout = halved(model, batches[0][:1])
        done = rebuild(model, cut, layout, batches, EXACT).model
        assert torch.equal(done.fc.weight, cut.fc.weight) is not moves
    x = fitted(batches)
    with torch.no_grad():
        features = {
            net: F.relu(net.bn2(net.b(F.relu(net.bn1(net.a(s))))) + s).mean((2, 3))
            for net in (model, done)
            for s in [F.relu(net.bn0(net.stem(x)))]
        }
        wanted, found = (net.fc(features[net]).double().numpy() for net in (model, done))
    np.testing.assert_allclose(found, closest(features[done].double().numpy(), wanted), atol=2e-3)


def test_gates_with_one_row_an_image_are_pulled_strongly_and_the_record_says_so():
    model, _ = nets.built(nets.Inverted, seed=3)
    batches = images((3, 8, 8), count=32, batches=1)
    cut, layout = halved(model, batches[0][:1])
    records = {each.layer: each for each in rebuild(model, cut, layout, batches).layers}
    gate, project = records["squeeze"], records["project"]
    assert (gate.rows, gate.columns) == (len(fitted(batches)), 4) == (30, 4)
    assert gate.reason == "re-solved, pulled 4.6 times as strongly"  # 16 rows a column are wanted: (64 / 30) squared
    assert (project.rows, project.reason) == (8 * 30, "re-solved")  # an image has many positions


@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_a_layer_scale_near_zero_blows_nothing_up(scale):
    model, _ = nets.built(nets.Scaled)
    with torch.no_grad():
        model.gamma.fill_(scale)
    done = check_no_worse(model, images((3, 8, 8)))
    largest = max(float(p.detach().abs().max()) for p in model.parameters())
    assert max(float(p.detach().abs().max()) for p in done.model.parameters()) < 3 * largest


@pytest.mark.parametrize("kept", [range(4), range(4, 8), (0, 5, 2, 7)])
def test_a_stream_whose_channels_are_there_twice_loses_half_of_them_without_a_trace(kept):
    """Channels that a sum ties go too: what stays must be held against the same channels of the uncut network."""
    model, batches = basic(), images((3, 8, 8))
    with torch.no_grad():
        for layer in (model.stem, model.bn0, model.b, model.bn2):
            for tensor in [*layer.parameters(), *(b for b in layer.buffers() if b.ndim)]:
                tensor[4:] = tensor[:4]
    cut, layout = cut_in(model, "stem", sorted(kept), batches[0][:1])
    assert cut.b.weight.shape[0] == cut.stem.weight.shape[0] == 4
    done = rebuild(model, cut, layout, batches)
    assert error(done.model, model, batches) < 0.05 * error(cut, model, batches)
    assert done.divergence < 1e-3 * done.divergence_cut


class Attending(nn.Module):
    """torch's own attention, whose projections are never called as layers, between two hidden layers."""

    def __init__(self):
        super().__init__()
        self.up1, self.down1 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up2, self.down2, self.f = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.down1(F.relu(self.up1(x)))
        x = x + self.attention(x, x, x)[0]
        return self.f((x + self.down2(F.relu(self.up2(x)))).mean(1))


def test_the_projections_of_torchs_own_attention_are_layers_like_others():
    torch.manual_seed(0)
    model, batches = Attending().eval(), images((6, 8), count=96)
    layout = {}
    for group in find_groups(model, batches[0][:1]):
        if group.name in ("up1", "up2"):
            layout = {**layout, **layout_of(model, group, range(0, 16, 2), layout)}
    done = rebuild(model, apply_layout(model, layout), layout, batches)
    assert done.notes == ()  # it could be run in steps
    solved = {each.layer: each.towards for each in done.layers if each.applied}
    assert (
        solved.items()
        >= {
            "down1": "sum",
            **{f"attention.{name}": "output" for name in ("query", "key", "value")},
            "attention.out_proj": "sum",
            "down2": "sum",
        }.items()
    )
    assert done.divergence < 0.5 * done.divergence_cut
    assert type(model.attention) is nn.MultiheadAttention  # the caller's is left


def test_a_solution_that_is_worse_on_images_set_aside_is_not_taken_and_said():
    """Where fits are made the second channel is as the first, so it can do for both; on images set aside it is not."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[2].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    x = torch.rand(192, 1, generator=torch.Generator().manual_seed(0)).expand(-1, 2).clone()
    x[::16] = torch.tensor([3.0, 0.2])
    cut, layout = cut_in(model, "0", (0,), x[:1])
    done = rebuild(model, cut, layout, list(x.split(64)))
    record = next(each for each in done.layers if each.layer == "2")
    assert not record.applied
    assert record.reason == "the solution was not closer to the uncut network than the weights at hand"
    # What the second channel gave there, 0.2 and -0.2 beside sums of 3.2 and 2.8 for every image set aside.
    assert record.error_after == record.error_before == pytest.approx(2 * 12 * 0.2**2, rel=1e-4)
    assert torch.equal(done.model[2].weight, cut[2].weight)
    assert torch.equal(done.model[2].bias, cut[2].bias)  # nor would another constant be better
    # Without such images it is twice the first channel, and none of it.
    alike = x[torch.arange(192) % 16 != 0]
    taken = rebuild(model, cut, layout, list(alike.split(60))).model
    assert_close(taken[2].weight, torch.tensor([[2.0], [0.0]]), rtol=0.01, atol=0.01)


def test_a_network_that_is_further_off_as_a_whole_is_given_up_for_the_plain_cut(monkeypatch):
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    module = sys.modules[rebuild.__module__]  # the function has its name
    real = module.solve

    def spoilt(net, task, *rest):
        record = real(net, task, *rest)
        if task.last:
            with torch.no_grad():
                net.fc.bias[0] += 100
        return record

    monkeypatch.setattr(module, "solve", spoilt)
    done = rebuild(model, cut, layout, batches)
    assert "further from the uncut one than plain cutting" in done.notes[0]
    assert done.divergence == done.divergence_cut
    weights = dict(cut.named_parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in done.model.named_parameters())
    assert not torch.equal(done.model.bn2.running_mean, cut.bn2.running_mean)  # measured again


def test_not_even_the_classifiers_constant_moves_where_that_is_worse_on_images_set_aside():
    model, (x,) = basic(), images((3, 8, 8), count=24, batches=1)
    x[torch.arange(24) % 16 != 0] += 5  # what is learnt from bright images is wrong for the dark ones that judge
    cut, layout = halved(model, x[:1])
    done = rebuild(model, cut, layout, [x])
    record = next(each for each in done.layers if each.layer == "fc")
    assert not record.applied
    assert record.reason == "the solution was not closer to the uncut network than the weights at hand"
    assert torch.equal(done.model.fc.weight, cut.fc.weight)
    assert torch.equal(done.model.fc.bias, cut.fc.bias)


class Deep(nn.Module):
    """Residual blocks, as many as asked for."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Basic() for _ in range(blocks))
        self.f = nn.Linear(8, 3)

    def forward(self, x):
        x = self.blocks[0].stem(x)
        for block in self.blocks:
            x = F.relu(block.bn2(block.b(F.relu(block.bn1(block.a(x))))) + x)
        return self.f(x.mean((2, 3)))


def test_a_layer_runs_equally_often_for_each_image_however_deep_the_network_is(monkeypatch):
    ran = []
    real = nn.Conv2d.forward

    def counted(self, x):
        ran.append(len(x))
        return real(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    times = []
    for blocks in (2, 8):
        torch.manual_seed(0)
        model, batches = nets.shaken(Deep(blocks)), images((3, 8, 8), count=16, batches=4)
        cut, layout = halved(model, batches[0][:1])
        ran.clear()
        rebuild(model, cut, layout, batches)
        times.append(sum(ran) / (2 * blocks + 1) / 64)
    assert times[0] == pytest.approx(times[1], rel=0.1)


class ReadByPython(Basic):
    """Its forward leaves torch behind the block: no list of steps holds for other images."""

    def forward(self, x):
        x = F.relu(self.bn0(self.stem(x)))
        x = F.relu(self.bn2(self.b(F.relu(self.bn1(self.a(x))))) + x)
        return self.fc(x.mean((2, 3)) / float(x.detach().abs().numpy().max()))


def read_by_python():
    model = ReadByPython()
    model.load_state_dict(basic().state_dict())
    return model.eval()


def test_without_steps_a_batchnorm_gets_the_statistics_of_the_rebuilt_network():
    model, batches = read_by_python(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, EXACT)
    assert "layer by layer" in done.notes[0]
    assert done.divergence < done.divergence_cut
    x = fitted(batches)
    with torch.no_grad():
        ours, theirs = (net.b(F.relu(net.bn1(net.a(F.relu(net.bn0(net.stem(x))))))) for net in (done.model, model))
        found, wanted = done.model.bn2(ours), model.bn2(theirs)
    assert_close(done.model.bn2.running_mean, ours.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    assert_close(done.model.bn2.running_var, ours.var((0, 2, 3), correction=0), rtol=1e-3, atol=1e-4)
    for channel in range(8):
        one = slice(channel, channel + 1)
        np.testing.assert_allclose(flat(found[:, one]), closest(flat(ours[:, one]), flat(wanted[:, one])), atol=2e-3)


def test_without_steps_few_images_move_only_the_classifiers_constant_too():
    model, batches = read_by_python(), images((3, 8, 8), count=12, batches=2)
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches)
    assert "layer by layer" in done.notes[0]
    assert next(each for each in done.layers if each.layer == "fc").reason.startswith("only its constant")
    assert torch.equal(done.model.fc.weight, cut.fc.weight)


def test_without_steps_only_the_layers_that_may_change_do():
    model, batches = read_by_python(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    before = copy.deepcopy(cut.state_dict())
    done = rebuild(model, cut, layout, batches, only={"a", "bn1", "b"})
    changed = {name for name, tensor in done.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"b.weight"}  # nothing was cut in front of the others


class Aside(nn.Module):
    """Every way in which a layer's weights are no part of a layer that runs."""

    def __init__(self, leaves):
        super().__init__()
        self.leaves = leaves
        self.first, self.up = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 6, 2)
        self.normed = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 6, 1))
        self.standardised, self.by_function = Standardised(6, 6, 1, 0, True), nn.Linear(6, 6)
        self.never, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.standardised(F.relu(self.normed(F.relu(self.up(F.relu(self.first(x)))))))
        x = F.relu(x.mean((2, 3)))
        if self.leaves:
            x = x / float(x.detach().abs().numpy().max())
        return self.last(F.relu(F.linear(x, self.by_function.weight)))


@pytest.mark.parametrize("leaves", [False, True])
def test_of_layers_that_the_rebuild_does_not_see_it_is_said_too(leaves):
    torch.manual_seed(0)
    model, batches = Aside(leaves).eval(), images((3, 8, 8))
    cut = copy.deepcopy(model)
    with torch.no_grad():
        cut.first.weight[:4] = 0
    done = rebuild(model, cut, {}, batches)
    assert bool(done.notes) is leaves
    said = {each.layer: each.reason for each in done.layers}
    code = "it does not run by itself: its weights are changed or used by other code"
    assert (
        said.items()
        >= {
            "up": "the outputs of a transposed convolution overlap",
            "normed": "its weight is computed from other parameters",
            "standardised": code,
            "by_function": code,
            "never": code,
        }.items()
    )
    assert said.keys() >= {name for name, layer in model.named_modules() if hasattr(layer, "in_features")}
