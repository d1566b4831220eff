"""Damage, and the costs and widths that follow from it."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import RebuildConfig
from cosep.groups import find_groups, groups_in_scope
from cosep.layers.maps import LinearMap
from cosep.measurement import macs, parameters
from cosep.measurement.cost import layer_macs, layer_parameters
from cosep.rebuilding import gather_grams, measure_damage
from cosep.rebuilding.damage import without_channels
from cosep.selection.costs import cost_model
from cosep.surgery import apply_layout, layout_of
from cosep.zoo import load_model
from tests.groups import nets
from tests.rebuilding.test_rebuild import basic, images
from tests.rebuilding.test_structures import read_by_python


def measured(model, shape, kept):
    batches = images(shape, count=48)
    groups = groups_in_scope(find_groups(model, batches[0][:1]))
    consumers = [name for group in groups for name in group.consumers]
    grams = gather_grams(model, consumers, batches[:2], RebuildConfig())
    return groups, measure_damage(model, groups, {g.name: kept(g) for g in groups}, grams, batches[2:])


@pytest.mark.parametrize("kind", nets.NETS, ids=lambda kind: kind.__name__)
def test_keeping_all_does_no_damage_and_halves_do_some(kind):
    model, _ = nets.built(kind)
    _, none = measured(model, kind.shape, lambda group: range(group.width))
    _, some = measured(model, kind.shape, nets.some)
    assert all(abs(value) < 1e-6 for value in none.values())
    assert all(math.isfinite(value) and value >= 0 for value in some.values())


def test_a_channel_that_repeats_another_costs_nothing():
    model = basic()
    with torch.no_grad():
        for layer in (model.a, model.bn1):
            for tensor in [*layer.parameters(), *(b for b in layer.buffers() if b.ndim)]:
                tensor[11] = tensor[0]
    _, spared = measured(model, (3, 8, 8), lambda group: range(group.width - 1))
    _, lost = measured(model, (3, 8, 8), lambda group: range(1, group.width - 1))
    assert spared["a"] < 0.01 * lost["a"]


def test_a_consumer_without_channels_is_the_regression_on_the_others():
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3).double()
    x = torch.randn(400, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64) + 1
    model = torch.nn.Sequential(layer).double()
    grams = gather_grams(model, ["0"], [x], RebuildConfig(rows=1000))
    done = without_channels(LinearMap(layer), grams.moments["0"], torch.tensor([0, 1, 3]), torch.tensor([2, 4]), 1e-12)
    with torch.no_grad():
        wanted = layer(x)
        design = torch.cat([x[:, [0, 1, 3]], torch.ones(400, 1, dtype=torch.float64)], dim=1)
        expected = design @ torch.linalg.lstsq(design, wanted).solution
        assert_close(done(x), expected, rtol=1e-5, atol=1e-6)
    assert not done.weight[:, [2, 4]].any()


def test_what_leaves_torch_is_measured_on_cut_copies_and_nothing_is_gathered_of_it():
    model, batches = read_by_python(), images((3, 8, 8))
    assert not gather_grams(model, ["a", "b"], batches[:2], RebuildConfig()).maps
    groups, found = measured(model, (3, 8, 8), nets.some)
    for group in groups:
        cut = apply_layout(model, layout_of(model, group, nets.some(group), {}))
        assert found[group.name] == pytest.approx(divergence_of_all(model, cut, images((3, 8, 8), count=48)[2]))


def divergence_of_all(original, model, x):
    """KL of the outputs at temperature 4, written out."""
    with torch.no_grad():
        goal, got = (torch.softmax(net(x).double() / 4, dim=1) for net in (original, model))
    return float(16 * (goal * (goal / got).log()).sum(1).mean())


def test_a_model_in_training_mode_is_looked_at_as_it_will_be_used():
    model, batches = basic(), images((3, 8, 8))
    resting = gather_grams(model, ["b"], batches, RebuildConfig())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = gather_grams(model.train(), ["b"], batches, RebuildConfig())
    group = next(g for g in find_groups(model, batches[0][:1]) if g.name == "a")
    measure_damage(model, [group], {"a": range(4)}, training, batches[2:])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(resting.moments["b"].xx, training.moments["b"].xx)
    assert all(module.training for module in model.modules())


COUNTED = ["resnet20", "vgg16", "mobilenetv2", "densenet40"]


@pytest.mark.parametrize("name", [*COUNTED, *nets.NETS], ids=lambda name: getattr(name, "__name__", name))
def test_costs_without_building_the_network_are_those_of_the_built_one(name):
    model, x = (load_model(name), torch.randn(1, 3, 32, 32)) if isinstance(name, str) else nets.built(name)
    model, x = model.eval(), x[:1]
    groups = groups_in_scope(find_groups(model, x))
    count = cost_model(macs(model, x), layer_macs(model, x), groups)
    size = cost_model(parameters(model), layer_parameters(model), groups)
    layout, widths = {}, {}
    for number, group in enumerate(groups):
        kept = nets.some(group, number) if number % 3 else tuple(range(group.width))
        widths[group.name] = len(kept)
        layout = {**layout, **layout_of(model, group, kept, layout)}
    cut = apply_layout(model, layout)
    assert count(widths) == pytest.approx(macs(cut, x), rel=1e-9)
    assert size(widths) == pytest.approx(parameters(cut), rel=1e-9)


def test_softer_outputs_differ_less():
    from cosep.rebuilding import divergence_of

    a, b = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    p, q = F.softmax(b / 4, 1), F.softmax(a / 4, 1)
    expected = 16 * sum(float(x * math.log(x / y)) for x, y in zip(p[0], q[0], strict=True))
    assert float(divergence_of(a, b)) == pytest.approx(expected)
    assert list(itertools.chain(divergence_of(a, a).reshape(1).tolist())) == [pytest.approx(0, abs=1e-12)]
