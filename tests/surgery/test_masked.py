from dataclasses import replace

import pytest
import torch

from cosep.groups import find_groups, groups_in_scope
from cosep.records import Slice
from cosep.surgery import check_cut, cut_checked, cut_group
from tests.groups import nets


def first_group(kind, name):
    model, x = nets.built(kind)
    group = next(g for g in groups_in_scope(find_groups(model, x), "all") if g.name == name)
    return model, x, group


@pytest.mark.parametrize(
    ("kind", "name", "layer", "tensor"),
    [
        (nets.Plain, "a", "a", "weight"),
        (nets.Plain, "a", "bn", "running_mean"),
        (nets.Plain, "a", "b", "weight"),
        (nets.Inverted, "expand", "deep", "weight"),
        (nets.Inverted, "expand", "excite", "bias"),
        (nets.Flattened, "a", "h", "weight"),
        (nets.Grouped, "g", "g", "weight"),
        (nets.Normed, "a", "g", "weight"),
        (nets.Scaled, "up", "up", "bias"),
    ],
)
def test_one_wrong_slice_anywhere_is_found(kind, name, layer, tensor):
    model, x, group = first_group(kind, name)
    kept = nets.some(group)
    after, _ = cut_group(model, group, kept, {})
    assert check_cut(model, after, group, kept, {}, x).equal
    with torch.no_grad():
        values = getattr(after.get_submodule(layer), tensor)
        axis = 1 if layer in group.consumers and tensor == "weight" else 0
        values.copy_(values.roll(1, axis))
    check = check_cut(model, after, group, kept, {}, x)
    assert not check.equal
    assert "differs from its masked copy" in check.reason


def test_a_cut_that_is_not_the_masked_model_is_taken_back():
    model, x, group = first_group(nets.Plain, "a")
    wrong = tuple(Slice(s.module, s.side, s.positions.flip(0)) if s.module == "b" else s for s in group.slices)
    result = cut_checked(model, replace(group, slices=wrong), (0, 1, 2), {}, x)
    assert not result.done
    assert result.model is model
    assert result.layout == {}
    assert "differs from its masked copy" in result.check.reason


def test_a_model_with_a_width_written_into_its_code_is_left_whole():
    class Stubborn(nets.Plain):
        def forward(self, x):
            x = self.b(self.a(x).reshape(-1, 8, 36).reshape(-1, 8, 6, 6))
            return self.f(x.mean((2, 3)))

    model, x, group = first_group(Stubborn, "a")
    result = cut_checked(model, group, nets.some(group), {}, x)
    assert not result.done
    assert result.model is model
    assert "the cut model fails: RuntimeError" in result.check.reason


def test_outputs_that_are_not_finite_prove_nothing():
    model, x, group = first_group(nets.Plain, "a")
    with torch.no_grad():
        model.f.bias.fill_(float("nan"))
    result = cut_checked(model, group, nets.some(group), {}, x)
    assert not result.done
    assert "not finite" in result.check.reason


def test_a_proof_on_constant_outputs_says_that_it_proves_nothing():
    model, x, group = first_group(nets.Plain, "a")
    kept = nets.some(group)
    assert cut_checked(model, group, kept, {}, x).check.informative
    with torch.no_grad():
        model.b.weight.zero_()
    check = cut_checked(model, group, kept, {}, x).check
    assert check.equal
    assert not check.informative


def test_checking_leaves_no_hooks_modes_or_weights_behind_even_after_a_failure():
    model, x, group = first_group(nets.Normed, "a")
    kept = nets.some(group)
    after, _ = cut_group(model, group, kept, {})
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for example in (x, x[:, :2]):
        check = check_cut(model, after, group, kept, {}, example)
        assert check.equal is (example is x)
        for network in (model, after):
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
        assert all(m.training for m in model.modules())
        assert not after.training
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert "fails" in check.reason


def test_the_check_does_not_touch_global_randomness():
    model, x, group = first_group(nets.Plain, "a")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    cut_checked(model, group, nets.some(group), {}, x)
    assert torch.equal(torch.rand(3), expected)


def test_a_group_is_checked_in_a_model_where_others_were_cut_before():
    model, x, group = first_group(nets.Dense, "a")
    second = next(g for g in find_groups(model, x) if g.name == "b")
    first = cut_checked(model, group, nets.some(group), {}, x)
    result = cut_checked(first.model, second, nets.some(second), first.layout, x)
    assert first.done
    assert result.done
    assert result.layout["f", "in"] == (*nets.some(group), *(4 + c for c in nets.some(second)), 7, 8, 9, 10, 11)


def test_the_former_name_of_the_check_warns_and_still_works():
    from cosep import surgery

    with pytest.warns(DeprecationWarning, match="MaskedCheck"):
        assert surgery.TwinCheck is surgery.MaskedCheck
