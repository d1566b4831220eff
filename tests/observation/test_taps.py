"""Taps: pooling by hand, following into activations, and leaving no hook behind."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.errors import CalibrationError
from cosep.observation import tapped


def hooks_of(model):
    return [
        len(h) for m in model.modules() for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)
    ], torch.overrides._get_current_function_mode()


def run(model, inputs, layers, tap="output"):
    model.eval()
    before = hooks_of(model)
    with torch.no_grad(), tapped(model, layers, tap) as latest:
        model(inputs)
    assert hooks_of(model) == before
    return latest


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (nn.Conv2d(3, 4, 3, stride=2), (2, 3, 9, 7)),
        (nn.Conv3d(3, 4, 3), (2, 3, 5, 6, 7)),
        (nn.ConvTranspose1d(3, 4, 3), (2, 3, 9)),
        (nn.ConvTranspose2d(3, 4, 3), (2, 3, 9, 7)),
    ],
)
def test_convolutions_give_the_mean_over_space(layer, shape):
    inputs = torch.randn(shape)
    found = run(nn.Sequential(layer), inputs, ["0"])["0"]
    output = layer(inputs).detach().numpy()
    for image in range(2):
        for channel in range(4):
            assert_close(float(found[image, channel]), float(output[image, channel].mean()), rtol=1e-4, atol=1e-6)
    assert found.shape == (2, 4)


def test_linear_layers_give_the_value():
    layer, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    assert torch.equal(run(nn.Sequential(layer), inputs, ["0"])["0"], layer(inputs))


@pytest.mark.parametrize("between", [(7,), (4, 6)])
def test_linear_layers_on_sequences_give_the_mean_over_tokens(between):
    layer, inputs = nn.Linear(3, 5), torch.randn(2, *between, 3)
    found = run(nn.Sequential(layer), inputs, ["0"])["0"]
    tokens = layer(inputs).detach().reshape(2, -1, 5)
    assert_close(found, sum(tokens[:, t] for t in range(tokens.shape[1])) / tokens.shape[1])


def test_half_precision_is_averaged_in_single():
    model = nn.Sequential(nn.Identity())
    values = torch.full((1, 1, 3, 1), 1.0, dtype=torch.float16)
    values[0, 0, 0, 0] = 1 + 2**-10
    assert_close(run(model, values, ["0"])["0"], torch.tensor([[1 + 2**-10 / 3]]), rtol=0, atol=1e-7)


def test_every_pass_refills_the_dict():
    model = nn.Sequential(nn.Linear(2, 2))
    with tapped(model, ["0"]) as latest:
        model(torch.ones(3, 2))
        first = latest["0"]
        model(torch.zeros(5, 2))
        assert latest["0"].shape == (5, 2)
        assert first.shape == (3, 2)


def test_later_changes_in_place_do_not_reach_the_tap():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(inplace=True))
    inputs = torch.randn(8, 2)
    assert torch.equal(run(model, inputs, ["0"])["0"], model[0](inputs))


def test_many_layers_are_caught_in_one_pass_in_the_order_they_ran():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 4))
    found = run(model, torch.randn(2, 1, 8, 8), ["4", "0", "2"])
    assert {name: tuple(t.shape) for name, t in found.items()} == {"0": (2, 2), "2": (2, 3), "4": (2, 4)}
    assert list(found) == ["0", "2", "4"]


@pytest.mark.parametrize("tap", ["output", "activation"])
def test_no_hook_survives_an_exception(tap):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = hooks_of(model)
    with pytest.raises(ZeroDivisionError), tapped(model, ["0"], tap) as latest:
        latest["missing"] = model(torch.ones(1, 2)) / (1 // 0)
    with pytest.raises(RuntimeError), tapped(model, ["0"], tap):
        model(torch.ones(1, 3))
    assert hooks_of(model) == before


def test_an_unknown_layer_is_refused_before_any_hook_with_the_nearest_names():
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(1, 1, 1))
    before = hooks_of(model)
    with pytest.raises(CalibrationError, match=r"no layer 'conv2'. Did you mean 'conv1'\?"), tapped(model, ["conv2"]):
        pass
    with pytest.raises(CalibrationError, match=r"no layer 'xyz'. See model.named_modules"), tapped(model, ["xyz"]):
        pass
    with pytest.raises(CalibrationError, match=r"give a list of names: \['conv1'\]"), tapped(model, "conv1"):
        pass
    with pytest.raises(CalibrationError, match="give at least one"), tapped(model, []):
        pass
    assert hooks_of(model) == before


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(self.fc(x).relu())


@pytest.mark.parametrize("tap", ["output", "activation"])
def test_a_layer_that_runs_twice_is_refused(tap):
    with pytest.raises(
        CalibrationError, match=r"layer 'fc' ran twice in one forward pass \(a shared module\).*Leave it"
    ):
        run(Shared(), torch.randn(3, 2), ["fc"], tap)


class Uncalled(nn.Module):
    """A linear layer whose weight is used, and which is never called."""

    def __init__(self, times=1):
        super().__init__()
        self.fc, self.times = nn.Linear(2, 2), times

    def forward(self, x):
        for _ in range(self.times):
            x = F.relu(F.linear(x, self.fc.weight, self.fc.bias))
        return x


def test_a_layer_that_is_used_without_being_called_is_followed_as_one_that_is():
    torch.manual_seed(0)
    model, x = Uncalled(), torch.randn(3, 2)
    output = x @ model.fc.weight.detach().T + model.fc.bias.detach()
    assert (output < 0).any()
    assert_close(run(model, x, ["fc"], "output")["fc"], output)
    assert_close(run(model, x, ["fc"], "activation")["fc"], output.clamp(min=0))


@pytest.mark.parametrize("tap", ["output", "activation"])
def test_a_layer_that_is_used_twice_without_being_called_is_refused(tap):
    with pytest.raises(CalibrationError, match="layer 'fc' ran twice in one forward pass"):
        run(Uncalled(times=2), torch.randn(3, 2), ["fc"], tap)


def test_only_networks_with_linear_layers_to_look_at_run_in_a_mode_of_torch():
    class Seeing(nn.Module):
        def forward(self, x):
            modes.append(torch.overrides._get_current_function_mode())
            return x

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Seeing(), nn.Flatten(), nn.Linear(4, 2))
    for layers, expected in (["0"], 0), (["0", "3"], 1):
        modes = []
        run(model, torch.randn(2, 3, 3, 3), layers)
        assert len([mode for mode in modes if mode is not None]) == expected


def test_a_layer_with_several_outputs_is_refused():
    model = nn.Sequential(nn.LSTM(2, 3))
    with pytest.raises(CalibrationError, match="layer '0' returned tuple; only layers whose output is one tensor"):
        run(model, torch.randn(4, 2, 2), ["0"])


def test_an_output_without_channels_is_refused():
    with pytest.raises(CalibrationError, match=r"layer '0' returned torch.float32 of the shape \(2,\)"):
        run(nn.Sequential(nn.Linear(3, 2)), torch.randn(3), ["0"])


# --- after the activation ------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """conv, norm and an activation that is a function of the caller's choice."""

    def __init__(self, activation):
        super().__init__()
        self.conv, self.norm, self.activation = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), activation
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.weight)

    def forward(self, x):
        return self.activation(self.norm(self.conv(x)))


ACTIVATIONS = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.ReLU6(),
    nn.SiLU(),
    nn.GELU(),
    nn.Hardswish(),
    nn.LeakyReLU(),
    nn.ELU(),
    nn.PReLU(4),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Hardsigmoid(),
    nn.Mish(),
    nn.Softplus(),
    F.relu,
    F.relu_,
    torch.relu,
    torch.relu_,
    torch.Tensor.relu,
    lambda x: F.relu(x, inplace=True),
    lambda x: F.relu(input=x),
    lambda x: x.relu_(),
    lambda x: x.clamp(min=0),
    lambda x: F.relu(F.dropout(x, training=False)),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=[str(getattr(a, "__name__", a)) for a in ACTIVATIONS])
def test_the_activation_is_found_behind_the_norm_as_module_or_function(activation):
    model, inputs = Functional(activation).eval(), torch.randn(5, 3, 6, 6)
    found = run(model, inputs, ["conv"], "activation")["conv"]
    assert_close(found, model(inputs).mean((2, 3)).detach())


def test_the_activation_of_a_linear_layer_on_tokens_is_averaged_over_them():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), torch.randn(2, 6, 3)
    found = run(model, inputs, ["0", "2"], "activation")
    assert_close(found["0"], model[:2](inputs).mean(1).detach())
    assert_close(found["2"], model(inputs).mean(1).detach())  # nothing follows the last layer


class Block(nn.Module):
    """A residual block that adds in place, as torchvision's do."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        nn.init.normal_(self.bn2.running_mean)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        assert out.shape == x.shape
        out += x
        return F.relu(out)


def test_before_a_residual_sum_the_value_after_the_norm_is_taken():
    block, inputs = Block().eval(), torch.randn(3, 4, 5, 5)
    found = run(block, inputs, ["conv1", "conv2"], "activation")
    hidden = F.relu(block.bn1(block.conv1(inputs)))
    assert_close(found["conv1"], hidden.mean((2, 3)).detach())
    assert_close(found["conv2"], block.bn2(block.conv2(hidden)).mean((2, 3)).detach())


def test_before_another_layer_the_own_output_is_taken():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.ReLU()), torch.randn(5, 3)
    found = run(model, inputs, ["0", "1"], "activation")
    assert_close(found["0"], model[0](inputs).detach())
    assert_close(found["1"], model(inputs).detach())


def test_branches_that_meet_in_a_concatenation_give_their_own_values():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return F.relu(torch.cat([self.a(x), self.b(x)], 1))

    model, inputs = Branches(), torch.randn(4, 3)
    found = run(model, inputs, ["a", "b"], "activation")
    assert_close(found["a"], model.a(inputs).detach())
    assert_close(found["b"], model.b(inputs).detach())


def test_taps_do_not_change_what_the_model_computes():
    model, inputs = Block().eval(), torch.randn(3, 4, 5, 5)
    expected = model(inputs)
    for tap in ("output", "activation"):
        with tapped(model, ["conv1", "conv2"], tap):
            assert torch.equal(model(inputs), expected)
