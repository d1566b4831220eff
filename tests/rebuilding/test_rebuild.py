"""The rebuild: exact where the channels that stay suffice, never worse than plain cutting, honest about the rest."""

import copy
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import RebuildConfig
from cosep.errors import CalibrationError
from cosep.groups import find_groups, groups_in_scope
from cosep.rebuilding import rebuild, reestimate_batchnorm
from cosep.surgery import apply_layout, layout_of
from tests.groups import nets


def images(shape, count=64, batches=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, *shape, generator=generator) for _ in range(batches)]


def halved(model, example, scope="interior", kept=nets.some):
    """The model with half of every group, and its layout."""
    layout = {}
    for group in groups_in_scope(find_groups(model, example), scope):
        layout = {**layout, **layout_of(model, group, kept(group), layout)}
    return apply_layout(model, layout), layout


class Basic(nn.Module):
    """A stem, a block with a residual sum, and a classifier."""

    def __init__(self, width=8, inner=12):
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.a, self.bn1 = nn.Conv2d(width, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.b, self.bn2 = nn.Conv2d(inner, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        x = F.relu(self.bn0(self.stem(x)))
        x = F.relu(self.bn2(self.b(F.relu(self.bn1(self.a(x))))) + x)
        return self.fc(x.mean((2, 3)))


def basic(seed=0):
    torch.manual_seed(seed)
    model = Basic()
    for x in images((3, 8, 8), seed=9):
        model(x)  # BatchNorm learns its statistics
    return nets.shaken(model, seed)


def error(model, other, batches):
    with torch.no_grad():
        return max(float((model(x) - other(x)).abs().max()) for x in batches)


def test_nothing_cut_changes_no_bit():
    model, batches = basic(), images((3, 8, 8))
    done = rebuild(model, copy.deepcopy(model), {}, batches)
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), done.model.state_dict().values(), strict=True)
    )
    assert {each.reason for each in done.layers} == {"nothing to repair"}
    assert done.divergence == 0


def test_a_network_that_is_handed_over_in_training_mode_is_judged_as_any_other():
    batches, found = images((3, 8, 8)), []
    for training in (False, True):
        model = basic().train(training)
        small, layout = halved(model, batches[0][:1])
        made = rebuild(model, small, layout, batches)
        found.append((made.divergence, made.divergence_cut))
        assert made.model.training == training
    assert found[0] == found[1]


def test_channels_that_repeat_others_can_go_without_a_trace():
    model, batches = basic(), images((3, 8, 8))
    with torch.no_grad():
        for layer in (model.a, model.bn1):
            for tensor in [*layer.parameters(), *(b for b in layer.buffers() if b.ndim)]:
                tensor[6:] = tensor[:6]
    group = next(g for g in find_groups(model, batches[0][:1]) if g.name == "a")
    layout = layout_of(model, group, range(6), {})
    cut = apply_layout(model, layout)
    done = rebuild(model, cut, layout, batches)
    assert error(done.model, model, batches) < 0.1 * error(cut, model, batches)  # the pull keeps it from being exact
    assert done.divergence < 1e-3 * done.divergence_cut
    sums = [each for each in done.layers if each.towards == "sum"]
    assert [each.layer for each in sums] == ["b"]
    assert sums[0].error_after < 1e-3 < sums[0].error_before


def test_the_last_layer_of_a_block_is_the_least_squares_solution_of_the_sum():
    """Numpy's own solution, from patches that torch's unfold makes, of T's sum less S's other branch."""
    model, batches = basic(), images((3, 8, 8), count=48, batches=2)
    group = next(g for g in find_groups(model, batches[0][:1]) if g.name == "a")
    layout = layout_of(model, group, (0, 2, 3, 7, 9), {})
    cut = apply_layout(model, layout)
    config = RebuildConfig(pull=1e-9, rows=10_000, positions=64, refine=0)  # every position of every image
    done = rebuild(model, cut, layout, batches, config)
    with torch.no_grad():
        x = torch.cat([x[torch.arange(i * 48, i * 48 + 48) % 16 != 0] for i, x in enumerate(batches)])
        stem = F.relu(model.bn0(model.stem(x)))
        whole = model.bn2(model.b(F.relu(model.bn1(model.a(stem))))) + stem
        hidden = F.relu(done.model.bn1(done.model.a(stem)))
        patches = F.unfold(hidden, 3, padding=1).transpose(1, 2).flatten(0, 1).double().numpy()
        wanted = (whole - stem).flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
        found = (done.model.bn2(done.model.b(hidden))).flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
    design = np.hstack([patches, np.ones((len(patches), 1))])
    best = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    np.testing.assert_allclose(found, best, atol=2e-3)


def test_batchnorm_carries_the_statistics_of_the_rebuilt_network():
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, RebuildConfig(rows=10_000, refine=0)).model
    with torch.no_grad():
        x = torch.cat(batches)
        made = done.b(F.relu(done.bn1(done.a(F.relu(done.bn0(done.stem(x)))))))
    assert_close(done.bn2.running_mean, made.mean((0, 2, 3)), rtol=0.05, atol=0.02)
    assert_close(done.bn2.running_var, made.var((0, 2, 3)), rtol=0.05, atol=0.02)
    sizes = [layer.weight.flatten(1).norm(dim=1) for layer in (cut.b, done.b)]
    assert_close(*sizes)  # the weights keep their size; the scale is BatchNorm's


@pytest.mark.parametrize("scope", ["interior", "all"])
@pytest.mark.parametrize("kind", nets.NETS, ids=lambda kind: kind.__name__)
def test_no_structure_is_worse_off_than_plainly_cut(kind, scope):
    model, x = nets.built(kind)
    cut, layout = halved(model, x[:1], scope)
    if not layout:
        pytest.skip("nothing to cut")
    before = copy.deepcopy(cut.state_dict())
    done = rebuild(model, cut, layout, images(kind.shape, count=32))
    assert done.divergence <= done.divergence_cut
    assert all(bool(t.isfinite().all()) for t in done.model.state_dict().values() if t.is_floating_point())
    assert all(torch.equal(before[name], tensor) for name, tensor in cut.state_dict().items())  # the caller's is left


def test_layers_that_run_twice_are_shared_or_frozen_are_left_alone_and_say_so():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.twice, self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.frozen, self.out = nn.Linear(8, 8), nn.Linear(8, 3)
            self.two.weight = self.one.weight
            self.frozen.requires_grad_(False)

        def forward(self, x):
            x = F.relu(self.twice(F.relu(self.twice(F.relu(self.a(x))))))
            return self.out(F.relu(self.frozen(F.relu(self.two(F.relu(self.one(x)))))))

    torch.manual_seed(0)
    model = Odd().eval()
    cut = copy.deepcopy(model)
    with torch.no_grad():
        cut.a.weight[:4] = 0  # damage of the same shape: there is no group here that could be cut
        cut.frozen.bias += 1  # of the other damage next to nothing is left in front of the last layer
    done = rebuild(model, cut, {}, images((5,)))
    said = {each.layer: each.reason for each in done.layers if not each.applied}
    assert said["twice"] == "it runs 2 times"
    assert said["one"] == said["two"] == "its weights are shared with another layer"
    assert said["frozen"] == "it is frozen"
    for name in ("twice", "one", "two", "frozen"):
        assert torch.equal(done.model.get_submodule(name).weight, model.get_submodule(name).weight)
    assert next(each for each in done.layers if each.layer == "out").applied


def test_an_output_with_several_readers_is_solved_towards_itself_not_the_sum():
    class Forked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.out = nn.Linear(6, 10), nn.Linear(10, 6), nn.Linear(6, 6), nn.Linear(12, 3)

        def forward(self, x):
            y = self.b(F.relu(self.a(x)))
            return self.out(torch.cat([y + x, self.c(y)], dim=1))

    torch.manual_seed(0)
    model, batches = Forked().eval(), images((6,))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches)
    assert next(each for each in done.layers if each.layer == "b").towards == "output"


def test_a_shortcut_that_runs_after_the_block_is_settled_first():
    class Late(Basic):
        def __init__(self):
            super().__init__()
            self.short, self.bn3 = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x):
            x = F.relu(self.bn0(self.stem(x)))
            y = self.bn2(self.b(F.relu(self.bn1(self.a(x)))))
            y += self.bn3(self.short(x))
            return self.fc(F.relu(y).mean((2, 3)))

    torch.manual_seed(0)
    model, batches = nets.shaken(Late()), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches)
    towards = {each.layer: each.towards for each in done.layers}
    assert (towards["b"], towards["short"]) == ("sum", "output")
    assert done.divergence < done.divergence_cut


def test_a_model_that_cannot_be_run_in_steps_is_rebuilt_layer_by_layer():
    class Leaves(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x):
            x = F.relu(self.b(F.relu(self.a(x))))
            return self.c(x / float(x.detach().abs().numpy().max()))

    torch.manual_seed(0)
    model, batches = Leaves().eval(), images((6,))
    group = next(g for g in find_groups(model, batches[0][:1]) if g.name == "a")
    layout = layout_of(model, group, range(5), {})
    done = rebuild(model, apply_layout(model, layout), layout, batches)
    assert "layer by layer" in done.notes[0]
    assert done.divergence < done.divergence_cut
    assert {each.layer for each in done.layers if each.applied} >= {"b"}


def test_values_on_disk_give_nearly_the_same_network():
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    inside = rebuild(model, cut, layout, batches).model
    spilled = rebuild(model, cut, layout, batches, RebuildConfig(memory=0.0)).model
    assert error(inside, spilled, batches) < 0.02


@pytest.mark.parametrize("memory", [0.0, 1.0])
def test_freed_memory_goes_back_after_every_layer_once_there_was_no_room(monkeypatch, memory):
    times = []
    module = sys.modules[rebuild.__module__]  # the function has its name
    monkeypatch.setattr(module, "give_back_freed_memory", lambda: times.append(1))
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    rebuild(model, cut, layout, batches, RebuildConfig(memory=memory))
    assert len(times) == (4 if memory == 0 else 0)  # the stem, both convolutions of the block and the classifier


class Padding(nn.Conv2d):
    """A convolution with a forward of its own, which pads first, as EfficientNets have it."""

    def __init__(self, inputs, outputs, size, padding, bias):
        super().__init__(inputs, outputs, size, bias=bias)
        self.around = [padding] * 4

    def forward(self, x):
        return F.conv2d(F.pad(x, self.around), self.weight, self.bias, self.stride, self.padding)


class Standardised(Padding):
    """Its weights are not what it multiplies by."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(F.pad(x, self.around), weight, self.bias, self.stride, self.padding)


def with_convolutions(model, kind):
    """A copy of a `Basic` whose convolutions are of another class, with the same weights."""
    result = copy.deepcopy(model)
    for name in ("stem", "a", "b"):
        old = getattr(model, name)
        new = kind(old.in_channels, old.out_channels, 3, padding=1, bias=False)
        new.load_state_dict(old.state_dict())
        setattr(result, name, new)
    return result.eval()


def test_convolutions_that_pad_by_themselves_are_solved_like_plain_ones():
    plain, batches = basic(), images((3, 8, 8))
    padding = with_convolutions(plain, Padding)
    (cut, layout), (cut_padding, layout_padding) = (halved(m, batches[0][:1]) for m in (plain, padding))
    assert layout == layout_padding
    every = RebuildConfig(rows=10_000, positions=64, refine=0)  # which positions are drawn depends on a step's number
    expected = rebuild(plain, cut, layout, batches, every)
    found = rebuild(padding, cut_padding, layout, batches, every)
    assert [(e.layer, e.towards, e.reason) for e in found.layers] == [
        (e.layer, e.towards, e.reason) for e in expected.layers
    ]
    for x in batches:
        with torch.no_grad():
            assert_close(found.model(x), expected.model(x), rtol=1e-3, atol=1e-4)


def test_convolutions_that_compute_their_weights_are_not_taken_for_plain_ones():
    model, batches = with_convolutions(basic(), Standardised), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches)
    assert not {"stem", "a", "b"} & {each.layer for each in done.layers if each.applied}
    assert torch.equal(done.model.b.weight, cut.b.weight)
    assert done.divergence <= done.divergence_cut


def test_only_the_layers_that_may_change_do():
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, only={"b", "bn2"})
    changed = {name for name, t in cut.state_dict().items() if not torch.equal(t, done.model.state_dict()[name])}
    assert changed == {"b.weight", "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"}
    assert math.isnan(done.divergence)


def test_few_images_move_only_the_classifiers_constant():
    model, batches = basic(), images((3, 8, 8), count=12, batches=2)
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches)
    last = next(each for each in done.layers if each.layer == "fc")
    assert last.reason.startswith("only its constant")
    assert torch.equal(done.model.fc.weight, cut.fc.weight)
    assert not torch.equal(done.model.fc.bias, cut.fc.bias)


ATTACKS = {
    "one image": lambda x: [x[0][:1]],
    "two images": lambda x: [x[0][:2]],
    "one class": lambda x: [3 * x[0][:1] + 0.3 * part for part in x],
    "all zero": lambda x: [torch.zeros_like(part) for part in x],
    "the same image": lambda x: [x[0][:1].expand(40, -1, -1, -1).clone() for _ in x],
    "huge": lambda x: [1e30 * part for part in x],
    "one huge image": lambda x: [part.index_fill(0, torch.tensor([3]), 1e30) for part in x],
    "nan": lambda x: [part.index_fill(0, torch.tensor([3]), math.nan) for part in x],
    "another distribution": lambda x: [100 + 40 * part for part in x],
    "batches of many sizes": lambda x: [x[0][:5], x[1][:17], x[2][:17], x[0][5:6]],
}
REFUSED = {"huge", "one huge image", "nan"}  # statistics that cannot be: refused in words, and nothing is changed


def divergence(original, model, batches):
    """Of outputs, on every sixteenth image, which no fit sees: KL at temperature 4, written out."""
    found, first = [], 0
    for x in batches:
        some = torch.arange(first, first + len(x)) % 16 == 0
        first += len(x)
        if some.any():
            with torch.no_grad():
                goal, got = (torch.softmax(net(x[some]).double() / 4, dim=1) for net in (original, model))
            found.append(16 * (goal * (goal / got).log()).sum(1))
    return float(torch.cat(found).mean())


def check_no_worse(model, batches, kept=nets.some):
    """Rebuild a halved model: finite, and on images set aside no further from the whole one than without."""
    cut, layout = halved(model, batches[0][:1], kept=kept)
    before = copy.deepcopy(cut.state_dict())
    done = rebuild(model, cut, layout, batches)
    assert all(bool(t.isfinite().all()) for t in done.model.state_dict().values() if t.is_floating_point())
    assert all(torch.equal(before[name], tensor) for name, tensor in cut.state_dict().items())
    plain = copy.deepcopy(cut)
    if several := [x for x in batches if len(x) > 1]:
        reestimate_batchnorm(plain, several)
    with_it, without = (divergence(model, net.eval(), batches) for net in (done.model, plain))
    assert with_it <= without * (1 + 1e-6)
    assert all(each.reason for each in done.layers)  # of every layer it is said what became of it, and why
    return done


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - REFUSED))
def test_whatever_the_images_the_network_stays_finite_and_no_worse(attack):
    check_no_worse(basic(), ATTACKS[attack](images((3, 8, 8))))


@pytest.mark.parametrize("attack", sorted(REFUSED))
def test_images_without_finite_statistics_are_refused_and_the_network_is_left(attack):
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    before = copy.deepcopy(cut.state_dict())
    with pytest.raises(CalibrationError, match="is not finite on the calibration data"):
        rebuild(model, cut, layout, ATTACKS[attack](batches))
    assert all(torch.equal(before[name], tensor) for name, tensor in cut.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_coarse_and_fine_numbers_are_rebuilt_in_their_own_type(dtype):
    done = check_no_worse(basic().to(dtype), [x.to(dtype) for x in images((3, 8, 8))])
    assert {p.dtype for p in done.model.parameters()} == {dtype}


class Centred(Basic):
    """Every image is compared with its batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0, keepdim=True))


class Counting(Basic):
    """What it computes changes with the number of images."""

    def forward(self, x):
        return super().forward(x if len(x) % 2 else 2 * x)


@pytest.mark.parametrize("kind", [Centred, Counting])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 20, 33)])
def test_a_forward_that_changes_with_the_batch_does_no_harm(kind, sizes):
    torch.manual_seed(0)
    model, batches = nets.shaken(kind()), images((3, 8, 8))
    done = check_no_worse(model, [x[:size] for x, size in zip(batches, sizes, strict=True)])
    if kind is Counting and len(set(sizes)) > 1:
        assert "another number of images" in done.notes[0]


@pytest.mark.parametrize("harm", ["dead", "constant", "duplicate", "tiny scale", "zero scale"])
def test_odd_channels_do_no_harm(harm):
    model, batches = basic(), images((3, 8, 8))
    with torch.no_grad():
        if harm == "dead":
            model.a.weight[:3] = 0
        elif harm == "constant":
            model.a.weight[:3], model.bn1.bias[:3] = 0, 2
        elif harm == "duplicate":
            model.a.weight[1] = model.a.weight[0]
        else:
            model.bn2.weight[:4] = 1e-12 if harm == "tiny scale" else 0
            model.bn1.weight[:4] = 1e-12 if harm == "tiny scale" else 0
    done = check_no_worse(model, batches, kept=lambda group: range((group.width + 1) // 2))
    assert max(float(p.detach().abs().max()) for p in done.model.parameters()) < 1e3
