import re
import time
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cosep.errors import TraceError
from cosep.groups import find_groups, groups_in_scope
from tests.groups import nets


def groups_of(kind):
    model, x = nets.built(kind)
    return {g.name: g for g in find_groups(model, x)}


def positions(group):
    return {(s.module, s.side): s.positions.tolist() for s in group.slices}


def test_a_plain_chain_has_a_group_a_layer_and_the_classifier_is_never_prunable():
    groups = groups_of(nets.Plain)
    assert list(groups) == ["a", "b", "f"]
    assert [(g.width, g.scope, g.producers, g.consumers) for g in groups.values()] == [
        (8, "interior", ("a",), ("b",)),
        (6, "interior", ("b",), ("f",)),
        (3, None, ("f",), ()),
    ]
    assert set(positions(groups["a"])) == {("a", "out"), ("bn", "out"), ("b", "in")}
    assert groups["f"].why_not == "feeds the classifier's output"


def test_macs_of_a_group_are_those_of_its_layers_for_one_input():
    groups = groups_of(nets.Plain)
    a, b, f = 8 * 36 * 27, 6 * 4 * 72, 18  # outputs x inputs of each output, counted by hand
    assert [g.macs for g in groups.values()] == [a + b, b + f, f]


def test_behind_a_flatten_a_channel_is_a_run_of_positions():
    group = groups_of(nets.Flattened)["a"]
    assert positions(group)["h", "in"] == [list(range(9 * c, 9 * c + 9)) for c in range(4)]
    assert positions(group)["p", "out"] == [[0], [1], [2], [3]]


def test_a_residual_sum_ties_its_terms_and_moves_them_to_scope_all():
    groups = groups_of(nets.Residual)
    assert groups["a"].scope == "interior"
    assert groups["stem"].scope == "all"
    assert groups["stem"].producers == ("stem", "b")
    assert groups["stem"].why_not == "tied by an addition with b"
    assert groups_in_scope(groups.values()) == (groups["a"],)
    assert groups_in_scope(groups.values(), "all") == (groups["stem"], groups["a"])


def test_channels_of_zeros_beside_a_shortcut_cannot_go_but_the_others_can():
    groups = groups_of(nets.PaddedShortcut)
    assert groups["a"].scope == "interior"
    assert groups["stem"].scope == "all"
    assert positions(groups["stem"])["b", "out"] == [[2], [3], [4], [5]]
    assert groups["b"].scope is None
    assert "padded by constants" in groups["b"].why_not
    assert positions(groups["b"])["b", "out"] == [[0], [1], [6], [7]]


def test_an_inverted_residual_is_one_group_and_its_gate_comes_last():
    groups = groups_of(nets.Inverted)
    group = groups["expand"]
    assert group.scope == "interior"
    assert group.producers == ("expand", "excite")
    assert group.consumers == ("squeeze", "project")
    assert ("deep", "out") in positions(group)
    assert groups["squeeze"].scope == "interior"


def test_a_depth_multiplier_gives_a_channel_several_positions():
    group = groups_of(nets.Multiplied)["a"]
    assert positions(group)["deep", "out"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert group.consumers == ("b",)


def test_groups_of_a_convolution_must_keep_equally_many_channels():
    groups = groups_of(nets.Grouped)
    assert {name: g.blocks for name, g in groups.items()} == {"a": 2, "g": 2, "b": 1, "f": 1}


def test_concatenation_shifts_positions():
    groups = groups_of(nets.Dense)
    assert positions(groups["b"])["c", "in"] == [[4], [5], [6]]
    assert positions(groups["b"])["f", "in"] == [[4], [5], [6]]
    assert positions(groups["c"])["f", "in"] == [[7], [8], [9], [10], [11]]


def test_a_split_keeps_its_halves_equal_and_sends_each_to_its_own_layer():
    group = groups_of(nets.Split)["a"]
    assert group.scope == "all"
    assert positions(group) == {
        ("a", "out"): [[0, 4], [1, 5], [2, 6], [3, 7]],
        ("b", "in"): [[0], [1], [2], [3]],
        ("c", "in"): [[0], [1], [2], [3]],
    }


def test_a_shuffle_is_followed_to_the_place_where_each_channel_lands():
    group = groups_of(nets.Shuffled)["a"]
    # Place 2j + i of the shuffled tensor holds channel 4i + j, by the definition of the shuffle.
    assert positions(group)["a", "out"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert positions(group)["b", "in"] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_layers_that_share_a_weight_are_one_group_of_scope_all():
    group = groups_of(nets.Tied)["a"]
    assert (group.scope, group.why_not) == ("all", "tied by weights that layers share")
    assert group.producers == ("a", "b", "c")


def test_bare_parameters_are_part_of_a_group():
    groups = groups_of(nets.Scaled)
    assert ("gamma", "out") in positions(groups["a"])
    assert ("shift", "out") in positions(groups["up"])
    assert groups["up"].scope == "interior"


def test_an_operation_across_channels_fixes_them_and_is_named():
    class Softmax(nets.Plain):
        def forward(self, x):
            return self.f(self.b(F.softmax(self.a(x), dim=1)).mean((2, 3)))

    groups = groups_of(Softmax)
    assert groups["a"].scope is None
    assert groups["a"].why_not == "softmax is taken across its channels in the model"


def test_an_operation_without_a_rule_fixes_channels_and_is_named():
    class Sorted(nets.Plain):
        def forward(self, x):
            return self.f(self.b(self.a(x).sort(dim=1).values).mean((2, 3)))

    groups = groups_of(Sorted)
    assert groups["a"].scope is None
    assert "sort" in groups["a"].why_not
    assert groups["b"].scope == "interior"


def test_a_layer_that_is_called_twice_is_left_alone():
    class Twice(nets.Plain):
        def __init__(self):
            super().__init__()
            self.b = nn.Conv2d(8, 8, 1)
            self.f = nn.Linear(8, 3)

        def forward(self, x):
            return self.f(self.b(F.relu(self.b(self.a(x)))).mean((2, 3)))

    groups = groups_of(Twice)
    assert groups["a"].scope is None
    assert groups["a"].why_not == "module b is called several times"


def test_a_layer_that_is_used_twice_without_being_called_is_left_alone():
    class Twice(nets.Plain):
        def __init__(self):
            super().__init__()
            self.u, self.v, self.f = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = F.linear(self.a(x).mean((2, 3)), self.v.weight, self.v.bias)  # used once: that is fine
            x = F.relu(F.linear(x, self.u.weight, self.u.bias))
            return self.f(F.linear(x, self.u.weight))

    groups = groups_of(Twice)
    assert groups["a"].scope == "interior", groups["a"].why_not
    assert groups["v"].why_not == "module u is called several times"


def test_a_parametrised_layer_is_left_alone():
    class Parametrised(nets.Plain):
        def __init__(self):
            super().__init__()
            nn.utils.parametrizations.weight_norm(self.b)

    assert "not a plain parameter" in groups_of(Parametrised)["a"].why_not


def test_heads_that_only_run_in_training_still_count_as_consumers():
    class Helped(nets.Plain):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = F.relu(self.a(x))
            logits = self.f(self.b(x).mean((2, 3)))
            return (logits, self.head(x.mean((2, 3)))) if self.training else logits

    assert groups_of(Helped)["a"].consumers == ("b", "head")


def test_finding_groups_leaves_the_model_as_it_was():
    model, x = nets.built(nets.Residual)
    model.train()
    model.bn.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    find_groups(model, x)
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("kind", [nets.Plain, nets.Residual, nets.Inverted, nets.Flattened, nets.Dense])
def test_ties_agree_with_those_of_torch_pruning(kind):
    tp = pytest.importorskip("torch_pruning")
    model, x = nets.built(kind)
    graph = tp.DependencyGraph().build_dependency(model, x, forward_fn=lambda m, x: m(x), verbose=False)
    names = {m: n for n, m in model.named_modules()}
    for group in find_groups(model, x):
        root = model.get_submodule(group.producers[0])
        pruner = graph.get_pruner_of_module(root)
        theirs = set()
        for item in graph.get_pruning_group(root, pruner.prune_out_channels, list(range(group.width))):
            dependency = item.dep
            module = dependency.target.module
            if module in names and list(module.parameters(recurse=False)):
                into = dependency.handler.__name__ == "prune_in_channels"
                theirs.add((names[module], "in" if into else "out"))
        assert {(s.module, s.side) for s in group.slices} == theirs


class _Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.a, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x):
        return self.wrap(self.a(x))


class ImageClassifierOutput(OrderedDict):
    """What a library for Transformers returns: a dict whose entries are attributes, too."""


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda y: (y.unsqueeze(2), y), "a tuple of 2; one tensor"),
        (lambda y: ImageClassifierOutput(states=y.unsqueeze(2), logits=y), "an ImageClassifierOutput with the keys"),
    ],
)
def test_a_model_that_returns_more_than_scores_is_told_an_expression_that_picks_them(wrap, said):
    model = _Returns(wrap)
    with pytest.raises(TraceError, match=f"returned {said}") as refused:
        find_groups(model, torch.randn(1, 4))
    expression = re.search(r"`return self\.(model\(x\).*)`", str(refused.value))[1]
    x = torch.randn(2, 4)
    assert torch.equal(eval(expression, {"model": model, "x": x}), model.a(x))


def test_a_model_that_fails_is_refused_with_the_layer_it_failed_in():
    with pytest.raises(TraceError, match=r"failed in a on an input of shape \(1, 5, 8, 8\)"):
        find_groups(nets.Plain(), torch.randn(1, 5, 8, 8))


def test_a_model_that_does_not_end_is_given_up_and_the_layer_is_named():
    class Endless(nn.Module):
        def forward(self, x):
            while True:
                x = x + 1

    start = time.monotonic()
    with pytest.raises(TraceError, match=r"did not finish within 0.3 s; it was in 1"):
        find_groups(nn.Sequential(nn.Linear(4, 3), Endless()), torch.randn(1, 4), time_limit=0.3)
    assert time.monotonic() - start < 5


def test_wrappers_and_models_without_values_are_refused_with_the_way_out():
    x = torch.randn(1, 4)
    with pytest.raises(TraceError, match=r"wrapped in DataParallel; give the module inside, `model.module`"):
        find_groups(nn.DataParallel(nn.Linear(4, 3)), x)
    with pytest.raises(TraceError, match="on the meta device"):
        find_groups(nn.Linear(4, 3, device="meta"), x)
    with pytest.raises(TraceError, match="no shape yet"):
        find_groups(nn.LazyLinear(3), x)
    with pytest.raises(TraceError, match="a tensor with a batch axis"):
        find_groups(nn.Linear(4, 3), torch.randn(4))
    with pytest.raises(TraceError, match=r"an nn.Module is needed"):
        find_groups(lambda x: x, x)
