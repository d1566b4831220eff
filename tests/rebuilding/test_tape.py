"""A tape computes what its model computes, step by step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.models.tape import Pass, TapeError, check_tape, record
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
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        x = self.a(x)
        return self.b((x / float(abs(x.detach().numpy()).max())).mean((2, 3)))


def test_what_leaves_torch_is_found_out_on_other_images():
    torch.manual_seed(0)
    model, x = LeavesTorch().eval(), torch.randn(4, 3, 8, 8)
    with pytest.raises(TapeError):
        check_tape(record(model, x), model, 5 * torch.randn(4, 3, 8, 8))


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
