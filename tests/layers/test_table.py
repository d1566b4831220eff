"""The table of layer kinds: it is complete, it is the only place, and a new kind needs nothing else."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cosep
from cosep.groups import find_groups
from cosep.layers import Channelwise, kind_of, places_now, register, table
from cosep.records import GroupPlan
from cosep.storage.artifacts import load, save
from cosep.surgery import check_cut, cut_checked, plan_for

SOURCE = Path(cosep.__file__).parent
LAYERS = {name for name in dir(nn) if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)}
LAYERS |= {"_ConvNd", "_ConvTransposeNd", "_BatchNorm", "_NormBase", "_InstanceNorm"}
CONTAINERS = {"Module", "DataParallel", "Sequential", "ModuleList", "ModuleDict", "Container"}


class Scale(nn.Module):
    """A layer of nobody's: two parameters a channel, and a width that its forward insists on."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.shift = nn.Parameter(torch.randn(1, width, 1, 1))

    def forward(self, x):
        return x * self.gain.view(1, self.width, 1, 1) + self.shift


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.scale, self.b = nn.Conv2d(3, 8, 3), Scale(8), nn.Conv2d(8, 6, 3)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(F.relu(self.b(F.relu(self.scale(self.a(x))))).mean((2, 3)))


@pytest.fixture
def with_scale(monkeypatch):
    monkeypatch.setattr(table, "KINDS", list(table.KINDS))
    register(Channelwise((Scale,), ("gain", "shift"), "width"))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 3, 8, 8)


def test_a_layer_that_nobody_told_us_about_is_left_whole(net):
    model, x = net
    group = find_groups(model, x)[0]
    result = cut_checked(model, group, (0, 2, 5), {}, x)
    assert not result.done
    assert "the cut model fails" in result.check.reason


def test_a_new_kind_is_followed_cut_checked_and_saved(with_scale, net, tmp_path):
    model, x = net
    group = find_groups(model, x)[0]
    assert [(s.module, s.side) for s in group.slices] == [("a", "out"), ("scale", "out"), ("b", "in")]
    kept = (0, 2, 5)
    result = cut_checked(model, group, kept, {}, x)
    assert result.done
    small = result.model
    assert small.scale.width == len(small.scale.gain) == small.scale.shift.shape[1] == 3

    # An oracle that knows no masks: the channels that go are zero where they leave the new layer's activation.
    gone = torch.tensor([c for c in range(8) if c not in kept])
    handle = model.b.register_forward_pre_hook(lambda _, args: (args[0].index_fill(1, gone, 0.0),))
    expected = model(x)
    handle.remove()
    torch.testing.assert_close(small(x), expected)

    plan = plan_for(model, [group], [GroupPlan("a", 8, kept, "by hand")])
    save(tmp_path / "saved", small, plan)
    torch.testing.assert_close(load(tmp_path / "saved", Net)(x), small(x), rtol=0, atol=0)


def test_a_wrong_slice_of_a_new_kind_is_found(with_scale, net):
    model, x = net
    group = find_groups(model, x)[0]
    result = cut_checked(model, group, (0, 2, 5), {}, x)
    with torch.no_grad():
        result.model.scale.gain.copy_(result.model.scale.gain.roll(1))
    assert not check_cut(model, result.model, group, (0, 2, 5), {}, x).equal


def test_a_new_kind_may_refine_one_that_is_there(monkeypatch):
    class Own(nn.BatchNorm2d): ...

    monkeypatch.setattr(table, "KINDS", list(table.KINDS))
    before = kind_of(Own(3))
    mine = Channelwise((Own,), ("weight", "bias"), "num_features")
    register(mine)
    assert kind_of(Own(3)) is mine
    assert kind_of(nn.BatchNorm2d(3)) is before


def test_places_are_those_of_a_search_by_hand():
    alive = (0, 3, 4, 9, 11)
    positions = torch.tensor([[0, 1], [4, 9], [11, 12]])
    expected = [[alive.index(p) if p in alive else -1 for p in row] for row in positions.tolist()]
    assert places_now({("a", "in"): alive}, "a", "in", positions).tolist() == expected
    assert places_now({("a", "in"): alive}, "a", "out", positions) is positions
    assert places_now({("a", "in"): ()}, "a", "in", positions).eq(-1).all()


def asked_kinds(path):
    """The layer types that a file asks for with isinstance, as (line, type)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            for part in ast.walk(node.args[1]):
                name = getattr(part, "attr", getattr(part, "id", ""))
                if name in LAYERS - CONTAINERS:
                    yield node.lineno, name


def test_kinds_of_layers_are_told_apart_in_the_table_alone():
    elsewhere = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("layers", "zoo")]
    found = [(str(path.relative_to(SOURCE)), *asked) for path in elsewhere for asked in asked_kinds(path)]
    assert found == []


def test_the_table_knows_nothing_of_the_stages():
    for path in (SOURCE / "layers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cosep."):
                assert node.module.split(".")[1] in ("layers", "records", "errors"), path
