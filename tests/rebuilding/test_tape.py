"""A tape computes what its model computes, step by step."""

import ctypes

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.models.tape import Pass, TapeError, check_tape, record, recorded
from tests.groups import nets


@pytest.mark.parametrize("kind", nets.NETS, ids=lambda kind: kind.__name__)
def test_a_tape_gives_the_models_outputs_for_other_images(kind):
    model, x = nets.built(kind)
    tape = record(model, x)
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    run = Pass.begun(tape, other)
    run.run(range(len(tape.steps)))
    with torch.no_grad():
        assert_close(run.values[tape.output], model(other))
    assert set(run.values) == {tape.output}  # everything else was dropped after its last use
    check_tape(tape, model, other)


def test_a_tape_calls_layers_as_they_are_when_it_runs():
    model, x = nets.built(nets.Plain)
    tape = record(model, x)
    with torch.no_grad():
        model.a.weight.mul_(3)
        run = Pass.begun(tape, x)
        run.run(range(len(tape.steps)))
        assert_close(run.values[tape.output], model(x))


def test_recording_leaves_no_trace_in_the_model():
    model, x = nets.built(nets.Residual)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    flags = [module.training for module in model.train().modules()]
    record(model, x)
    assert [module.training for module in model.modules()] == flags
    assert all("forward" not in vars(module) for module in model.modules())
    assert {name: vars(module).keys() for name, module in model.named_modules()} == {
        name: held.keys() for name, held in before.items()
    }


class LeavesTorch(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.a, self.b = way, nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        largest = self.way(x.detach())
        return self.b((self.a(x) / largest).mean((2, 3)))


WAYS_OUT = {
    "numpy": lambda x: float(x.numpy().max()),
    "numpy.asarray": lambda x: float(np.asarray(x).max()),
    "numpy.from_dlpack": lambda x: float(np.from_dlpack(x).max()),
    "its address": lambda x: ctypes.c_float.from_address(x.data_ptr()).value + 9,
    "tolist": lambda x: max(x.flatten().tolist()),
    "item": lambda x: x.max().item(),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_what_leaves_torch_is_refused_before_anything_reads_memory_that_is_not_there(way):
    """Large images: whoever reads as many values from a tensor that has none runs out of the process's memory."""
    torch.manual_seed(0)
    model, x = LeavesTorch(WAYS_OUT[way]).eval(), torch.randn(64, 3, 224, 224)
    model(x[:2])
    with pytest.raises(TapeError, match="it cannot be traced"):
        record(model, x)


def test_numbers_that_numpy_reads_from_the_models_own_tensors_are_constants():
    class Tabled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 3)
            self.register_buffer("table", torch.tensor([2.0, 3.0]))

        def forward(self, x):
            return self.a(x) * float(self.table.numpy().sum())

    torch.manual_seed(0)
    model, x = Tabled().eval(), torch.randn(4, 5)
    check_tape(record(model, x), model, torch.randn(4, 5))


class Remembers(nn.Module):
    """What it computes depends on what it has seen: no trace shows that."""

    def __init__(self):
        super().__init__()
        self.a, self.seen = nn.Linear(5, 3), 0

    def forward(self, x):
        self.seen += 1
        return self.a(x) * self.seen


@pytest.mark.parametrize("sizes", [(8,), (8, 5), (8, 8)])
def test_what_no_trace_shows_is_found_out_on_other_images(sizes):
    torch.manual_seed(0)
    batches = [torch.randn(size, 5) for size in sizes]
    with pytest.raises(TapeError, match="on other inputs its steps compute something else"):
        recorded(Remembers().eval(), batches)
    assert recorded(nn.Sequential(nn.Linear(5, 3)), batches).keys() == {tuple(x.shape) for x in batches}


def test_a_layer_that_runs_twice_has_two_steps_and_a_branch_does_not_disturb_the_pass():
    layer = nn.Linear(3, 3)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(F.relu_(self.layer(x)))

    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(5, 3)
    tape = record(model, x)
    assert len(tape.layers["layer"]) == 2
    run = Pass.begun(tape, x)
    run.run(range(tape.layers["layer"][1]))
    instead = nn.Linear(3, 3)
    branch = run.branched()
    branch.run(range(tape.layers["layer"][1], len(tape.steps)), instead={"layer": instead})
    run.run(range(tape.layers["layer"][1], len(tape.steps)))
    with torch.no_grad():
        assert_close(run.values[tape.output], model(x))
        assert_close(branch.values[tape.output], instead(F.relu(layer(x))))
