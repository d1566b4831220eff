import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.errors import PlanError
from cosep.groups import find_groups, groups_in_scope
from cosep.records import GroupPlan, Plan
from cosep.surgery import apply_layout, cut, cut_all_checked, cut_group, plan_for
from tests.groups import nets

every_net = pytest.mark.parametrize("kind", nets.NETS)


def prunable(kind):
    model, x = nets.built(kind)
    return model, x, groups_in_scope(find_groups(model, x), "all")


def cut_everything(model, x, groups):
    return cut_all_checked(model, [(g, nets.some(g)) for g in groups], x)


@every_net
def test_keeping_every_channel_changes_no_bit(kind):
    model, x, groups = prunable(kind)
    assert groups
    layout = {}
    same = model
    for group in groups:
        same, layout = cut_group(same, group, range(group.width), layout)
    assert torch.equal(same(x), model(x))
    assert torch.equal(apply_layout(model, layout)(x), model(x))


@every_net
def test_every_cut_of_every_structure_is_proven(kind):
    model, x, groups = prunable(kind)
    small, _, checks = cut_everything(model, x, groups)
    assert {name: check.reason for name, check in checks.items()} == dict.fromkeys(checks, "")
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert small(x).shape == model(x).shape


@every_net
def test_channels_that_carry_nothing_can_go_without_a_trace(kind):
    """Not the masked copy: here the model itself is changed so that removal must be free, by mathematics alone."""
    model, x, groups = prunable(kind)
    if kind in (nets.Normed, nets.Scaled, nets.Standardised):
        pytest.skip("statistics over channels change when channels go")
    for group in groups:
        silenced = copy.deepcopy(model)
        removed = sorted(set(range(group.width)) - set(nets.some(group)))
        with torch.no_grad():
            for piece in group.slices:
                if piece.side != "in":
                    continue
                layer = silenced.get_submodule(piece.module)
                gone = piece.positions[removed].flatten()
                if isinstance(layer, nn.Linear) or (layer.groups == 1 and not layer.transposed):
                    layer.weight[:, gone] = 0
                elif layer.transposed:
                    layer.weight[gone] = 0
                else:
                    per, rows = layer.in_channels // layer.groups, layer.out_channels // layer.groups
                    for position in gone.tolist():
                        block = position // per
                        layer.weight[block * rows : (block + 1) * rows, position % per] = 0
        small, _ = cut_group(silenced, group, nets.some(group), {})
        assert_close(small(x), silenced(x), rtol=1e-4, atol=1e-5)


@every_net
def test_a_plan_replayed_on_a_fresh_copy_gives_identical_weights(kind):
    model, x, groups = prunable(kind)
    small, layout, _ = cut_everything(model, x, groups)
    chosen = [GroupPlan(g.name, g.width, nets.some(g), "half") for g in groups]
    plan = plan_for(model, groups, chosen)
    assert plan.layout == layout
    for again in (cut(model, plan), cut(model, Plan(groups=plan.groups), groups)):
        assert list(again.state_dict()) == list(small.state_dict())
        assert all(torch.equal(v, small.state_dict()[k]) for k, v in again.state_dict().items())


@every_net
def test_groups_can_be_cut_in_any_order(kind):
    model, x, groups = prunable(kind)
    forward, _, _ = cut_everything(model, x, groups)
    backward, _, _ = cut_everything(model, x, groups[::-1])
    assert all(torch.equal(v, backward.state_dict()[k]) for k, v in forward.state_dict().items())


@every_net
def test_a_step_of_training_reaches_every_remaining_parameter(kind):
    model, x, groups = prunable(kind)
    small, _, _ = cut_everything(model, x, groups)
    small.train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert all(id(p) in held for m in small.modules() for p in m.parameters(recurse=False))
    before = {k: p.detach().clone() for k, p in small.named_parameters()}
    F.cross_entropy(small(torch.randn(4, *kind.shape)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    touched = {name.rpartition(".")[0] for name, p in small.named_parameters() if not torch.equal(p, before[name])}
    assert touched == {name.rpartition(".")[0] for name in before}


def test_the_given_model_is_left_as_it_was():
    model, x, groups = prunable(nets.Residual)
    model.train()
    model.bn.eval()
    model.a.weight.requires_grad_(False)
    model(x).sum().backward()
    calls = []
    handle = model.b.register_forward_hook(lambda *_: calls.append(1))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    grads = {k: p.grad for k, p in model.named_parameters()}
    small, _, _ = cut_everything(model, x, groups)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is grads[k] for k, p in model.named_parameters())
    assert model.training
    assert not model.bn.training
    assert list(model.b._forward_hooks) == [handle.id]
    assert not any(m._forward_hooks for n, m in model.named_modules() if n != "b")
    assert small.training
    assert not small.bn.training
    assert not small.a.weight.requires_grad
    assert small.b.weight.requires_grad
    assert all(p.grad is None for p in small.parameters())
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in small.parameters()}
    assert not shared


def test_layers_that_share_a_weight_share_it_afterwards():
    model, x, groups = prunable(nets.Tied)
    small, _, checks = cut_everything(model, x, groups)
    assert small.c.weight is small.b.weight
    assert small.c.weight.shape == (3, 3, 1, 1)
    assert all(check.equal for check in checks.values())


def test_the_memory_format_stays():
    model, x, groups = prunable(nets.Plain)
    small, _, _ = cut_everything(model.to(memory_format=torch.channels_last), x, groups)
    assert small.b.weight.is_contiguous(memory_format=torch.channels_last)
    assert not small.b.weight.is_contiguous()


def test_the_numbers_that_layers_repeat_about_themselves_follow():
    for kind in (nets.Inverted, nets.Multiplied, nets.Transposed, nets.Normed, nets.Grouped):
        model, x, groups = prunable(kind)
        small, _, _ = cut_everything(model, x, groups)
        for layer in small.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                out, into = (1, 0) if layer.transposed else (0, 1)
                size = {0: layer.weight.shape[0], 1: layer.weight.shape[1] * layer.groups}
                assert (layer.out_channels, layer.in_channels) == (size[out], size[into])
            elif isinstance(layer, nn.GroupNorm):
                assert layer.num_channels == len(layer.weight)
            elif isinstance(layer, (nn.BatchNorm2d, nn.InstanceNorm2d)):
                assert layer.num_features == len(layer.weight) == len(layer.running_mean)
            elif isinstance(layer, nn.LayerNorm):
                assert layer.normalized_shape == tuple(layer.weight.shape)


def test_nothing_can_be_cut_away_entirely():
    model, _, groups = prunable(nets.Plain)
    with pytest.raises(PlanError, match=r"nothing would be left of a \(out\)"):
        cut_group(model, groups[0], [], {})


def test_a_grouped_convolution_refuses_unequal_groups():
    model, _, groups = prunable(nets.Grouped)
    with pytest.raises(PlanError, match="2 groups, which must keep equally many channels; between 1 and 4"):
        cut_group(model, groups[0], [0, 1, 2, 3, 4], {})


def test_a_layout_of_another_model_is_refused():
    model, _ = nets.built(nets.Plain)
    with pytest.raises(PlanError, match="no module or parameter 'nothing'"):
        apply_layout(model, {("nothing", "out"): (0,)})
    with pytest.raises(PlanError, match=r"keeps 2 positions of a \(out\), which has 8"):
        apply_layout(model, {("a", "out"): (0, 8)})


def test_a_plan_without_a_layout_needs_its_groups():
    model, _ = nets.built(nets.Plain)
    with pytest.raises(PlanError, match="give the groups it was made for"):
        cut(model, Plan(groups=(GroupPlan("a", 8, (0, 1), "half"),)))
