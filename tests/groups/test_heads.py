"""Heads of attention: found however it is written, cut with everything that counts them, and proven."""

import copy
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import cosep
from cosep.criteria.view import NetworkView, Passes
from cosep.groups import find_groups
from cosep.measurement import macs, parameters
from cosep.measurement.cost import layer_macs, layer_parameters
from cosep.profiles.screen import top_classes
from cosep.records import GroupPlan, Selection
from cosep.selection.costs import cost_model
from cosep.storage.artifacts import load, save
from cosep.storage.export import export_onnx
from cosep.surgery import apply_layout, cut_all_checked, cut_checked, with_cuts_tried
from cosep.surgery.plan import plan_for
from cosep.zoo.vit import CifarViT
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


def test_queries_and_keys_may_be_narrower_than_values_and_stay_as_wide_as_they_are():
    class Narrow(Separate):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.scale = nn.Linear(WIDTH, 2 * HEADS), nn.Linear(WIDTH, 2 * HEADS), 0.3

        def forward(self, x):
            q, k, v = (
                layer(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
            )
            mixed = (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
            return self.out(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Tokens(Narrow()).eval()
    group = heads_of(model)
    assert (group.width, group.scope) == (HEADS, "interior")
    held = {(s.module, s.side): s.positions.tolist() for s in group.slices}
    assert held["attention.q", "out"] == held["attention.k", "out"] == [[0, 1], [2, 3], [4, 5]]
    assert held["attention.v", "out"] == places(1)
    result = cut_checked(model, group, KEPT, {}, X)
    assert result.done, result.check.reason
    assert [result.model.attention.get_submodule(name).out_features for name in "qkv"] == [4, 4, 8]
    with torch.no_grad():
        model.attention.out.weight[:, SIZE : 2 * SIZE] = 0
        assert_close(result.model(X), model(X))


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


def test_attention_that_takes_the_size_of_its_heads_from_its_input_is_told_how_wide_it_is_inside(tmp_path):
    torch.manual_seed(0)
    model = Tokens(OfItsInput()).eval()
    tried = with_cuts_tried(model, find_groups(model, X), X)
    heads = next(group for group in tried if group.unit == "head")
    result = cut_checked(model, heads, KEPT, {}, X)
    assert result.done, result.check.reason
    small = result.model
    masked = copy.deepcopy(model)
    with torch.no_grad():
        masked.attention.proj.weight[:, SIZE : 2 * SIZE] = 0
    assert_close(small(X), masked(X))
    small.train()(X).sum().backward()
    small.eval()
    torch.save(small, tmp_path / "whole.pt")
    assert torch.equal(torch.load(tmp_path / "whole.pt", weights_only=False)(X), small(X))
    # Whoever looks at a layer inside sees tensors, and the model that was cut has nothing new about it.
    seen = []
    small.attention.qkv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    small(X)
    assert [type(each) for each in seen] == [torch.Tensor]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_network_whose_attention_was_told_is_saved_exported_and_cut_again(tmp_path):
    torch.manual_seed(0)
    model = Tokens(OfItsInput()).eval()
    tried = with_cuts_tried(model, find_groups(model, X), X)
    heads = next(group for group in tried if group.unit == "head")
    plan = plan_for(model, tried, [GroupPlan(heads.name, selection=Selection(HEADS, KEPT, ""))])
    small = apply_layout(model, plan.layout)
    save(tmp_path / "kept", small, plan)
    torch.manual_seed(0)
    assert torch.equal(load(tmp_path / "kept", Tokens(OfItsInput()).eval())(X), small(X))
    export_onnx(small, tmp_path / "small.onnx", X)  # compares what both compute
    again = with_cuts_tried(small, find_groups(small, X), X)
    fewer = next(group for group in again if group.unit == "head")
    assert (fewer.width, fewer.scope) == (2, "interior")
    assert cut_checked(small, fewer, (1,), {}, X).done


def test_attention_that_was_told_its_width_may_call_its_layers_with_named_tuples():
    class Grid(NamedTuple):
        rows: int
        columns: int

    class Gridded(nn.Linear):
        def forward(self, x, grid):
            assert (grid.rows * grid.columns, type(grid)) == (TOKENS, Grid)
            return super().forward(x)

    class InGrid(OfItsInput):
        def __init__(self):
            super().__init__()
            self.before = Gridded(WIDTH, WIDTH)

        def forward(self, x):
            return super().forward(x) + 0 * self.before(x, Grid(1, TOKENS)).mean()

    torch.manual_seed(0)
    model = Tokens(InGrid()).eval()
    heads = next(group for group in with_cuts_tried(model, find_groups(model, X), X) if group.unit == "head")
    assert heads.scope == "interior", heads.why_not
    assert cut_checked(model, heads, KEPT, {}, X).done


@pytest.mark.parametrize("most", [100, 3])
def test_the_values_of_all_heads_are_gathered_in_one_more_pass_each_of_its_own_classes(most):
    torch.manual_seed(0)
    model, x, y = Embedded(Separate).eval(), torch.randn(40, TOKENS, 6), torch.arange(40) % 4
    config = cosep.config.replace_settings(cosep.config.preset(), {"profile": {"max_classes": most}})
    stages = []

    def stage(name, group):
        stages.append(name)
        return nullcontext()

    passes = Passes(lambda images: iter([(x, y)]), lambda batches: batches, dict, stage)
    groups = [group for group in find_groups(model, X) if group.unit == "head"]
    view = NetworkView(model, {}, groups, config=config, classes=4, passes=passes, whole=True)
    for group in groups:
        classes = top_classes(view.of(group).moments(config.observe), most)
        assert len(classes) == min(most, 4)
        records = view.of(group).heads(config.observe, classes)
        for name, record in zip(group.producers, records, strict=True):
            caught = []
            with model.get_submodule(name).register_forward_hook(lambda *args, caught=caught: caught.append(args[2])):
                model(x)
            values = caught[0].detach().double().mean(1).unflatten(1, (HEADS, SIZE))
            for label, scatter in zip(classes, record.scatter, strict=True):
                for head in range(HEADS):
                    expected = torch.cov(values[y == label, head].T) * (10 - 1)
                    assert_close(scatter[head], expected, rtol=1e-4, atol=1e-5)
    assert stages == ["observe", "observe"]


class Stubborn(OfItsInput):
    """Uses the width of its input for something else, too, as attention with fewer keys than queries does."""

    def forward(self, x):
        b, n, width = x.shape
        return super().forward(x.transpose(1, 2).reshape(b, width, n).transpose(1, 2))


def test_heads_without_which_the_network_does_not_run_stay_and_say_why():
    model = Tokens(Stubborn()).eval()
    groups = with_cuts_tried(model, find_groups(model, X), X)
    heads = next(group for group in groups if group.unit == "head")
    assert heads.scope is None
    assert heads.why_not.startswith("the network does not run with fewer heads: its code takes their number from")
    others = [group.name for group in groups if group.scope == "interior"]
    assert others == ["up"]
    free = find_groups(network("fused"), X)
    assert with_cuts_tried(network("fused"), free, X) == free


def test_a_network_with_heads_that_must_stay_is_pruned_all_the_same():
    y = torch.arange(40) % 4
    settings = {"device": {"accelerator": "cpu"}, "recover": {"schedule": "none"}, "limits": {"max_macs": "80%"}}
    config = cosep.config.replace_settings(cosep.config.preset(), settings)
    result = cosep.prune(Tokens(Stubborn()), [(torch.randn(40, TOKENS, 6), y)], config=config)
    assert [each.group for each in result.plan.groups] == ["up"]
    assert any("fewer heads" in str(each) for each in result.report.not_pruned)


class Embedded(nn.Module):
    """A class token, positions and two attentions of a kind: the width of the embedding runs through all of it."""

    def __init__(self, kind):
        super().__init__()
        self.hidden_dim = WIDTH
        self.embed, self.token = nn.Linear(6, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, TOKENS + 1, WIDTH))
        self.blocks = nn.ModuleList(kind() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], dim=1) + self.places
        x = x.reshape(len(x), -1, self.hidden_dim)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x)[:, 0])


def narrowed(model, kept, heads):
    """What is left of every weight, written down by hand."""
    plain, inner = copy.deepcopy(model), [head * SIZE + i for head in heads for i in range(SIZE)]
    plain.hidden_dim, plain.norm.normalized_shape = len(kept), (len(kept),)
    with torch.no_grad():
        for tensor in (plain.embed.bias, plain.token, plain.places, plain.head.weight):
            tensor.set_(tensor[..., kept].clone())
        plain.embed.weight.set_(model.embed.weight[kept])
        for name, value in (("weight", model.norm.weight), ("bias", model.norm.bias)):
            plain.norm.get_parameter(name).set_(value[kept])
        for own, block in zip(plain.blocks, model.blocks, strict=True):
            own.num_heads = len(heads)
            for name in ("q", "k", "v"):
                own.get_submodule(name).weight.set_(block.get_submodule(name).weight[inner][:, kept])
                own.get_submodule(name).bias.set_(block.get_submodule(name).bias[inner])
            own.out.weight.set_(block.out.weight[kept][:, inner])
            own.out.bias.set_(block.out.bias[kept])
    return plain


@pytest.mark.parametrize("kind", [Separate, OfItsInput, Fused])
def test_the_width_of_the_embedding_is_cut_through_the_whole_network(kind):
    torch.manual_seed(0)
    model = Embedded(kind).eval()
    tried = with_cuts_tried(model, find_groups(model, X), X)
    width = next(group for group in tried if group.name == "embed")
    assert (width.width, width.scope) == (WIDTH, "all")
    heads = [(group, KEPT) for group in tried if group.unit == "head"]
    assert len(heads) == 2
    assert not {piece.module for piece in width.slices if piece.module.endswith("attn_dim")}  # counts heads
    kept = [0, 1, 2, 4, 5, 7, 11]
    small, _, checks = cut_all_checked(model, [(width, kept), *heads], X)
    assert all(check.equal for check in checks.values()), checks
    assert (small.token.shape, small.places.shape) == ((1, 1, 7), (1, TOKENS + 1, 7))
    if kind is Separate:
        assert_close(small(X), narrowed(model, kept, KEPT)(X))


@pytest.mark.parametrize("operation", [False, True])
def test_a_table_that_layers_compute_goes_with_the_heads(operation):
    class Looked(Fused):
        def __init__(self):
            super().__init__()
            self.of_distance = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, HEADS, bias=False))

        def forward(self, x):
            b, n, _ = x.shape
            token = torch.arange(n)
            table = self.of_distance(torch.linspace(-1, 1, 2 * n - 1).unsqueeze(1))
            bias = table[(token[:, None] - token[None, :] + n - 1).flatten()].view(n, n, -1).permute(2, 0, 1)
            q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            if operation:  # of torch, which adds it as a mask
                mixed = nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=bias.unsqueeze(0).expand(b, -1, -1, -1)
                )
            else:
                mixed = (q @ k.transpose(-2, -1) + bias).softmax(-1) @ v
            return self.proj(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Tokens(Looked()).eval()
    group = heads_of(model)
    assert (group.producers, group.scope) == (("attention.qkv",), "interior"), group.why_not
    result = cut_checked(model, group, KEPT, {}, X)
    assert result.done, result.check.reason
    assert result.model.attention.of_distance[2].out_features == 2
    with torch.no_grad():
        model.attention.proj.weight[:, SIZE : 2 * SIZE] = 0
        assert_close(result.model(X), model(X))


def test_what_a_module_keeps_of_its_tensors_is_made_anew():
    class Keeping(Fused):
        """Keeps the biases that it looked up, and drops them when it moves, as LeViT does."""

        def __init__(self):
            super().__init__()
            self.biases, self.kept = nn.Parameter(torch.randn(HEADS, TOKENS)), {}

        def _apply(self, function, *args, **settings):
            self.kept = {}
            return super()._apply(function, *args, **settings)

        def forward(self, x):
            b, n, _ = x.shape
            if "bias" not in self.kept:
                self.kept["bias"] = self.biases[:, torch.zeros(n, n, dtype=torch.int64) + torch.arange(n)]
            q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            attention = (q @ k.transpose(-2, -1) + self.kept["bias"]).softmax(-1)
            return self.proj((attention @ v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Tokens(Keeping()).eval()
    with torch.no_grad():
        model(X)  # fills what it keeps
    group = heads_of(model)
    assert group.scope == "interior", group.why_not
    plan = plan_for(model, [group], [GroupPlan(group.name, selection=Selection(HEADS, KEPT, ""))])
    assert apply_layout(model, plan.layout)(X).shape == (3, 4)


def test_neurons_that_gate_one_another_are_cut_in_pairs():
    class Gated(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function
            self.embed, self.both, self.down = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 16), nn.Linear(8, 4)

        def forward(self, x):
            return self.down(self.function(self.both(self.embed(x)))).mean(1)

    def swiglu(x):
        gate, value = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * value

    for function in (swiglu, nn.functional.glu):
        model = Gated(function).eval()
        group = next(group for group in find_groups(model, X) if group.name == "both")
        assert (group.width, group.scope) == (8, "interior")
        assert group.slices[0].positions.tolist() == [[i, i + 8] for i in range(8)]
        assert cut_checked(model, group, (1, 2, 6), {}, X).done


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_neurons_of_two_layers_that_gate_one_another_are_cut_with_and_without_dropout(dropout):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.gate, self.value = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
            self.down, self.head, self.drop = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4), nn.Dropout(dropout)

        def forward(self, x):
            x = self.embed(x)
            return self.head((x + self.down(self.drop(nn.functional.silu(self.gate(x)) * self.value(x)))).mean(1))

    torch.manual_seed(0)
    model, kept = Gated().eval(), (1, 2, 6)
    group = next(group for group in find_groups(model, X) if group.name == "gate")
    assert (group.producers, group.width, group.scope) == (("gate", "value"), 8, "interior")
    result = cut_checked(model, group, kept, {}, X)
    assert result.done, result.check.reason
    result.model.train()(X).sum().backward()
    result.model.eval()
    with torch.no_grad():
        model.down.weight[:, [i for i in range(8) if i not in kept]] = 0
        assert_close(result.model(X), model(X))


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


def narrow_by_hand(model, kept, x):
    """What `CifarViT` computes where its tokens have only these channels, from its tensors and nothing of its code."""
    own = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    functions = nn.functional

    def normed(tokens, name):
        return functions.layer_norm(tokens, (len(kept),), own[f"{name}.weight"][kept], own[f"{name}.bias"][kept])

    def read(tokens, name):
        return tokens @ own[f"{name}.weight"][:, kept].T + own[f"{name}.bias"]

    def write(values, name):
        return values @ own[f"{name}.weight"][kept].T + own[f"{name}.bias"][kept]

    made = functions.conv2d(x, own["patches.weight"][kept], own["patches.bias"][kept], stride=4)
    tokens = (made + own["positions"][:, kept]).flatten(2).transpose(1, 2)
    for block in range(len(model.blocks)):
        name = f"blocks.{block}"
        q, k, v = (
            read(normed(tokens, f"{name}.norm1"), f"{name}.attention.{part}").unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
        tokens = tokens + write(mixed.transpose(1, 2).flatten(2), f"{name}.attention.output")
        hidden = functions.gelu(read(normed(tokens, f"{name}.norm2"), f"{name}.linear1"))
        tokens = tokens + write(hidden, f"{name}.linear2")
    return read(normed(tokens, "norm").mean(1), "head")


def test_the_width_of_tokens_goes_with_positions_in_the_form_of_an_image(tmp_path):
    torch.manual_seed(0)
    model = CifarViT(2, width=WIDTH, heads=HEADS, classes=4, size=16).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 3, 16, 16)
    tokens = next(g for g in with_cuts_tried(model, find_groups(model, x), x) if g.name == "patches")
    assert (tokens.width, tokens.scope) == (WIDTH, "all")
    kept = [0, 3, 4, 7, 10]
    result = cut_checked(model, tokens, tuple(kept), {}, x)
    assert result.done, result.check.reason
    assert tuple(result.model.positions.shape) == (1, 5, 4, 4)
    with torch.no_grad():
        assert_close(narrow_by_hand(model, list(range(WIDTH)), x), model(x))
        assert_close(result.model(x), narrow_by_hand(model, kept, x))
    counted = cost_model(parameters(model), layer_parameters(model), [tokens])({"patches": 5})
    assert counted == pytest.approx(parameters(result.model))
    plan = plan_for(model, [tokens], [GroupPlan("patches", WIDTH, tuple(kept), "")])
    save(tmp_path / "kept", result.model, plan)
    again = load(tmp_path / "kept", CifarViT(2, width=WIDTH, heads=HEADS, classes=4, size=16).eval())
    assert torch.equal(again(x), result.model(x))
