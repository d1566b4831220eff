"""Heads of attention: found however it is written, cut with everything that counts them, and proven."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import cosep
from cosep.groups import find_groups
from cosep.measurement import macs, parameters
from cosep.measurement.cost import layer_macs, layer_parameters
from cosep.records import GroupPlan, Selection
from cosep.selection.costs import cost_model
from cosep.storage.artifacts import load, save
from cosep.surgery import apply_layout, cut_checked, with_cuts_tried
from cosep.surgery.plan import plan_for
from tests.groups.transformers import HEADS, KINDS, SIZE, TOKENS, WIDTH, Fused, OfItsInput, Separate, Tokens, network

X = torch.randn(3, TOKENS, 6, generator=torch.Generator().manual_seed(0))
KEPT = (0, 2)


def heads_of(model, x=X):
    found = [group for group in find_groups(model, x) if group.unit == "head"]
    assert len(found) == 1
    return found[0]


def places(blocks):
    """The places of each head in a layer that holds so many parts one after the other."""
    return [[part * WIDTH + head * SIZE + i for part in range(blocks) for i in range(SIZE)] for head in range(HEADS)]


def by_hand(model, kind):
    """The network with zeros where the output layer reads the head that goes."""
    _, _, output = KINDS[kind]
    masked = network(kind)
    with torch.no_grad():
        masked.attention.get_submodule(output).weight[:, SIZE : 2 * SIZE] = 0
    return masked


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_its_rows_of_three_projections_and_its_columns_of_the_output_layer(kind):
    _, producers, output = KINDS[kind]
    group = heads_of(network(kind))
    assert (group.width, group.scope, group.why_not) == (HEADS, "interior", "")
    assert group.producers == tuple(f"attention.{name}" for name in producers)
    assert group.consumers == (f"attention.{output}",)
    held = {(s.module, s.side): s.positions.tolist() for s in group.slices}
    for name in producers:
        assert held[f"attention.{name}", "out"] == places(3 // len(producers))
    assert held[f"attention.{output}", "in"] == places(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_without_a_head_computes_what_one_that_ignores_it_does(kind):
    model = network(kind)
    result = cut_checked(model, heads_of(model), KEPT, {}, X)
    assert result.done, result.check.reason
    assert_close(result.model(X), by_hand(model, kind)(X))
    assert parameters(result.model) < parameters(model)
    result.model.train()(X).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_is_repeated_saved_and_loaded_from_the_constructor(kind, tmp_path):
    model = network(kind)
    group = heads_of(model)
    plan = plan_for(model, [group], [GroupPlan(group.name, selection=Selection(HEADS, KEPT, ""))])
    small = apply_layout(model, plan.layout)
    save(tmp_path / "kept", small, plan)
    again = load(tmp_path / "kept", lambda: network(kind))
    assert torch.equal(again(X), small(X))
    assert_close(small(X), by_hand(model, kind)(X))


def test_keeping_every_head_changes_no_bit():
    for kind in KINDS:
        model = network(kind)
        group = heads_of(model)
        plan = plan_for(model, [group], [GroupPlan(group.name, selection=Selection(HEADS, tuple(range(HEADS)), ""))])
        assert torch.equal(apply_layout(model, plan.layout)(X), model(X))


@pytest.mark.parametrize("kind", KINDS)
def test_costs_without_building_the_network_are_those_of_the_built_one(kind):
    model = network(kind)
    groups = [group for group in find_groups(model, X) if group.scope == "interior"]
    assert len(groups) == 2
    cut, layout = model, {}
    for group in groups:
        result = cut_checked(cut, group, KEPT, layout, X)
        cut, layout = result.model, result.layout
    widths = {group.name: len(KEPT) for group in groups}
    assert cost_model(macs(model, X), layer_macs(model, X), groups, between=True)(widths) == pytest.approx(macs(cut, X))
    assert cost_model(parameters(model), layer_parameters(model), groups)(widths) == pytest.approx(parameters(cut))


def test_the_products_of_attention_are_counted():
    # Queries with keys and attention with values: tokens x tokens x width each.
    layers = sum(layer.product for layer in layer_macs(network("fused"), X).values())
    assert macs(network("fused"), X) == layers + 2 * TOKENS * TOKENS * WIDTH


def test_one_head_cannot_be_spared():
    class One(Separate):
        def __init__(self):
            super().__init__()
            self.num_heads, self.head_dim = 1, WIDTH

    assert all(g.scope is None for g in find_groups(Tokens(One()), X) if g.name.startswith("attention"))


def test_heads_that_a_table_of_fixed_size_tells_apart_stay():
    class Biased(Fused):
        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
            bias = torch.linspace(0, 1, HEADS).reshape(1, -1, 1, 1).expand(b, -1, n, n)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return self.proj(mixed.transpose(1, 2).flatten(2))

    group = heads_of(Tokens(Biased()))
    assert group.scope is None
    assert "masked head by head in attention" in group.why_not


def test_heads_without_which_the_network_does_not_run_stay_and_say_why():
    model = Tokens(OfItsInput()).eval()
    groups = with_cuts_tried(model, find_groups(model, X), X)
    heads = next(group for group in groups if group.unit == "head")
    assert heads.scope is None
    assert heads.why_not.startswith("the network does not run with fewer heads (RuntimeError: shape")
    others = [group.name for group in groups if group.scope == "interior"]
    assert others == ["up"]
    free = find_groups(network("fused"), X)
    assert with_cuts_tried(network("fused"), free, X) == free


def test_a_network_with_heads_that_must_stay_is_pruned_all_the_same():
    y = torch.arange(40) % 4
    settings = {"device": {"accelerator": "cpu"}, "recover": {"schedule": "none"}, "limits": {"max_macs": "80%"}}
    config = cosep.config.replace_settings(cosep.config.preset(), settings)
    result = cosep.prune(Tokens(OfItsInput()), [(torch.randn(40, TOKENS, 6), y)], config=config)
    assert [each.group for each in result.plan.groups] == ["up"]
    assert any("fewer heads" in str(each) for each in result.report.not_pruned)


def test_parts_that_meet_no_product_are_divided_as_before():
    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            x = self.first(x)
            b, c, h, w = x.shape
            return self.second(x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)).mean((2, 3))

    group = find_groups(Shuffled(), torch.randn(1, 3, 2, 2))[0]
    assert (group.unit, group.width, group.scope) == ("channel", 4, "all")


@pytest.mark.parametrize("criterion", ["elimination", "cosep", "l2", "taylor"])
def test_the_chain_cuts_heads_and_neurons_in_one_budget(criterion):
    torch.manual_seed(0)
    y = torch.arange(96) % 4
    x = torch.randn(4, TOKENS, 6)[y] + 0.3 * torch.randn(96, TOKENS, 6)
    settings = {
        "device": {"accelerator": "cpu"},
        "observe": {"images": 96},
        "recover": {"schedule": "none"},
        "limits": {"max_macs": "60%"},
        "select": {"criterion": criterion},
    }
    config = cosep.config.replace_settings(cosep.config.preset(), settings)
    result = cosep.prune(network("separate"), list(zip(x.split(32), y.split(32), strict=True)), config=config)
    widths = {each.group: len(each.kept) for each in result.plan.groups}
    assert set(widths) == {"attention.q", "up"}
    assert result.report.change.macs <= 0.6
    assert result.model.attention.num_heads == widths["attention.q"]
