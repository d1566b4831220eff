"""The laws of surgery on the zoo's own architectures: every cut proven, plans replayed, and the cut models trained."""

import pytest
import torch
from torch.nn import functional as F

from cosep.groups import find_groups, groups_in_scope
from cosep.records import GroupPlan
from cosep.surgery import apply_layout, cut, cut_all_checked, plan_for, plan_from_document, plan_to_document
from cosep.zoo import input_shape, load_model
from tests.groups import nets

FAMILIES = {
    # interior groups, counted by hand in the architectures' definitions
    # one a residual block; a bottleneck has two, and the stem of ResNet-50 feeds convolutions only; every layer of VGG
    # and DenseNet; MobileNet: the stem, 16 expansions, the outputs of the two blocks without addition, the last layer
    "digits_cnn": 3,
    "resnet20": 9,
    "vgg16": 13,
    "mobilenetv2": 1 + 16 + 2 + 1,
    "densenet40": 39,
    "resnet50": 32 + 1,
}


def found(name, seed=0):
    torch.manual_seed(seed)
    model = nets.shaken(load_model(name), seed)
    channels, height, width = input_shape(name)
    x = torch.randn(2, channels, min(height, 32), min(width, 32), generator=torch.Generator().manual_seed(1))
    return model, x, find_groups(model, x)


@pytest.mark.parametrize("name", FAMILIES)
def test_interior_groups_can_be_cut_and_are_proven(name):
    model, x, groups = found(name)
    interior = groups_in_scope(groups)
    assert len(interior) == FAMILIES[name]
    small, layout, checks = cut_all_checked(
        model, [(g, nets.some(g)) for g in interior[:: 1 + len(interior) // 12]], x[:1]
    )
    assert {n: c.reason for n, c in checks.items() if not c.equal} == {}
    again = apply_layout(model, layout)
    assert torch.equal(again(x), small(x))


@pytest.mark.parametrize("name", ["digits_cnn", "resnet56", "vgg19", "mobilenetv2_imagenet", "densenet40"])
def test_whole_plans_keep_outputs_replay_and_train(name):
    model, x, groups = found(name)
    whole = plan_for(model, groups, [GroupPlan(g.name, g.width, tuple(range(g.width)), "whole") for g in groups])
    assert torch.equal(cut(model, whole)(x), model(x))
    interior = groups_in_scope(groups)
    plan = plan_for(model, groups, [GroupPlan(g.name, g.width, nets.some(g), "half") for g in interior])
    small, again = cut(model, plan), cut(model, plan_from_document(plan_to_document(plan)))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in small.state_dict().items())
    before = {k: p.detach().clone() for k, p in small.named_parameters()}
    optimizer = torch.optim.SGD(small.parameters(), lr=1.0)
    F.cross_entropy(small.train()(x), torch.tensor([0, 1])).backward()
    optimizer.step()
    layers = {k.rpartition(".")[0] for k in before}
    assert {k.rpartition(".")[0] for k, p in small.named_parameters() if not torch.equal(p, before[k])} == layers
