"""How many images are looked at: the network behind every group runs on those set aside, so deep ones get fewer."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from cosep.config import preset
from cosep.criteria.eliminating import _few as few
from cosep.criteria.view import NetworkView, Passes
from cosep.data.batches import images_between
from cosep.groups import find_groups, groups_in_scope


def looked_at(layers, images, side=4):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(3 if i == 0 else 2, 2, 1), nn.ReLU()) for i in range(layers)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).eval()
    x = torch.randn(images, 3, side, side)
    passes = Passes(
        batches=lambda n: ((part, None) for part in images_between(x.split(100), 0, n)),
        of_process=lambda batches: batches,
        merged=dict,
        stage=lambda *_: nullcontext(),
    )
    groups = groups_in_scope(find_groups(model, x[:1]))
    view = NetworkView(model, {}, groups, config=preset(), classes=2, passes=passes, whole=True)
    found = view.looked_at()
    return torch.cat(found.images), torch.cat(found.aside), x


@pytest.mark.parametrize(
    ("layers", "images", "fitted", "aside"), [(3, 900, 512, 256), (60, 900, 512, 96), (3, 30, 20, 10), (3, 3, 2, 1)]
)
def test_images_are_fitted_or_set_aside_and_the_deeper_the_fewer_are_set_aside(layers, images, fitted, aside):
    found, apart, x = looked_at(layers, images)
    assert torch.equal(found, x[:fitted])
    assert torch.equal(apart, x[fitted : fitted + aside])


def test_of_large_images_fewer_are_set_aside():
    _, apart, _ = looked_at(20, 300, side=65)
    assert len(apart) == 96


def test_the_graph_of_few_large_images_is_held_at_a_time():
    small, large = (list(torch.zeros(300, 1, side, side).split(50)) for side in (2, 65))
    assert [len(x) for x in few(small)] == [50, 50, 50, 50, 50, 6]
    assert max(len(x) for x in few(large)) == 4
    assert sum(len(x) for x in few(large)) == 128
    assert few([]) == []


def test_what_a_look_has_freed_is_given_back_once(monkeypatch):
    times = []
    monkeypatch.setattr("cosep.criteria.view.give_back_freed_memory", lambda: times.append(1))
    looked_at(2, 40)
    assert len(times) == 1
