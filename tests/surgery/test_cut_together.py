"""Many groups are cut in one copy and compared with one masked copy; a wrong one is still found and left whole."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from cosep.groups import find_groups, groups_in_scope
from cosep.records import Slice
from cosep.surgery import cut_all_checked, cut_checked
from tests.groups import nets


class Chain(nn.Sequential):
    """Counts how often it runs."""

    def __init__(self, layers):
        torch.manual_seed(0)
        super().__init__(
            *(nn.Sequential(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1), nn.ReLU()) for i in range(layers)),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
        self.runs = [0]

    def forward(self, x):
        self.runs[0] += 1
        return super().forward(x)

    def __deepcopy__(self, memo):
        memo[id(self.runs)] = self.runs  # one counter for all copies
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made


def cut_in_half(model, x):
    groups = groups_in_scope(find_groups(model, x))
    model.runs[0] = 0
    return cut_all_checked(model, [(group, (0, 2)) for group in groups], x)


def test_the_number_of_passes_does_not_grow_with_the_number_of_groups():
    x = torch.randn(1, 3, 4, 4)
    runs = []
    for layers in (3, 9):
        model = Chain(layers)
        _, _, checks = cut_in_half(model, x)
        assert len(checks) >= layers - 1
        assert all(check.equal for check in checks.values())
        runs.append(model.runs[0])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", [nets.Plain, nets.Dense, nets.Inverted, nets.Normed, nets.Grouped])
def test_cut_together_is_what_one_after_the_other_gives(kind):
    model, x = nets.built(kind)
    chosen = [(group, nets.some(group)) for group in groups_in_scope(find_groups(model, x))]
    together, layout, checks = cut_all_checked(model, chosen, x)
    current, so_far = model, {}
    for group, kept in chosen:
        result = cut_checked(current, group, kept, so_far, x)
        assert result.done
        assert checks[group.name].equal
        current, so_far = result.model, result.layout
    assert layout == so_far
    expected = current.state_dict()
    assert together.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in together.state_dict().items())


def test_the_one_group_that_is_wrong_stays_whole_and_the_others_are_cut():
    x = torch.randn(1, 3, 4, 4)
    model = Chain(4)
    groups = list(groups_in_scope(find_groups(model, x)))
    wrong = groups[1]
    slices = tuple(
        Slice(s.module, s.side, s.positions.flip(0)) if s.module in wrong.consumers else s for s in wrong.slices
    )
    groups[1] = replace(wrong, slices=slices)
    small, _, checks = cut_all_checked(model, [(group, (0, 1)) for group in groups], x)
    assert [check.equal for check in checks.values()] == [group.name != wrong.name for group in groups]
    assert "differs from its masked copy" in checks[wrong.name].reason
    widths = [small.get_submodule(group.producers[0]).weight.shape[0] for group in groups]
    assert widths == [4 if group.name == wrong.name else 2 for group in groups]
