import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cosep.rebuilding.sweep import PrefixCache, sweep


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.conv2(F.relu(self.norm(self.conv1(x)))))


class Dense(nn.Module):
    """Every layer reads all earlier ones: nothing inside separates the network."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 1) for i in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def residual(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 1), *[Block(4) for _ in range(3)], nn.Flatten(), nn.Linear(4 * 25, 2)).eval()


def batches_of(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, 3, 5, 5, generator=generator) for n in sizes]


def inputs_of(model, batches, name, **kwargs):
    """What a sweep shows of one module's inputs."""
    found = []
    rehearsal = sweep(model, batches, {name: lambda x: found.append(x.clone())}, **kwargs)
    return found, rehearsal


def expected_inputs(model, batches, name):
    """The same from plain forward passes."""
    found = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda _, args: found.append(args[0].clone()))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    handle.remove()
    return found


def test_readers_are_told_every_input_once_and_later_layers_do_not_run():
    model, batches = residual(), batches_of(20, 20, 9)
    calls = []
    handle = model[5].register_forward_hook(lambda *_: calls.append(1))
    found, _ = inputs_of(model, batches, "2.conv2")
    handle.remove()
    assert [len(x) for x in found] == [20, 20, 9]
    assert all(map(torch.equal, found, expected_inputs(model, batches, "2.conv2")))
    assert len(calls) == 1  # the rehearsal


def test_a_module_that_is_called_twice_is_read_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.conv(self.conv(x))

    found, _ = inputs_of(Twice(), batches_of(4, 4), "conv")
    assert len(found) == 4


def test_a_later_sweep_starts_where_an_earlier_one_left_off_and_sees_the_same():
    model, batches, cache = residual(), batches_of(20, 20, 9), PrefixCache()
    inputs_of(model, batches, "1.conv2", entries=("1.conv1", "1"), cache=cache)
    assert (cache.entry, cache.reused) == ("1", 0)  # not 1.conv1: the shortcut reaches around it
    with torch.no_grad():
        model[1].conv2.weight.mul_(0.5)  # what a cut of this block would change
    ran = []
    handle = model[0].register_forward_hook(lambda *args: ran.append(args[-1].isnan().any().item()))
    for name in ("2", "3"):
        found, _ = inputs_of(model, batches, f"{name}.conv2", entries=(f"{name}.conv1", name), cache=cache)
        assert all(map(torch.equal, found, expected_inputs(model, batches, f"{name}.conv2")))
        assert cache.entry == name
    handle.remove()
    assert cache.reused == 6
    assert any(ran)  # the first layer was skipped at least once
    assert not any("forward" in vars(m) for m in model.modules())


def test_weights_that_changed_before_the_entry_are_noticed():
    model, batches, cache = residual(), batches_of(20, 20), PrefixCache()
    inputs_of(model, batches, "2.conv2", entries=("2",), cache=cache)
    with torch.no_grad():
        model[1].conv1.weight.mul_(1.5)
    found, _ = inputs_of(model, batches, "3.conv2", entries=("3",), cache=cache)
    assert cache.reused == 0
    assert all(map(torch.equal, found, expected_inputs(model, batches, "3.conv2")))
    assert cache.entry == "3"


def test_other_batches_are_noticed():
    model, batches, cache = residual(), batches_of(20, 20, 20), PrefixCache()
    inputs_of(model, batches, "1.conv2", entries=("1",), cache=cache)
    others = [batches[0], torch.randn(20, 3, 5, 5), batches[2]]
    found, _ = inputs_of(model, others, "2.conv2", entries=("2",), cache=cache)
    assert cache.reused == 2
    assert all(map(torch.equal, found, expected_inputs(model, others, "2.conv2")))


def test_an_entry_that_comes_earlier_than_the_kept_one_is_not_started_from():
    model, batches, cache = residual(), batches_of(20, 20), PrefixCache()
    inputs_of(model, batches, "3.conv2", entries=("3",), cache=cache)
    found, _ = inputs_of(model, batches, "1.conv2", entries=("1",), cache=cache)
    assert all(map(torch.equal, found, expected_inputs(model, batches, "1.conv2")))
    found, _ = inputs_of(model, batches, "2.conv2", entries=("2",), cache=cache)
    assert all(map(torch.equal, found, expected_inputs(model, batches, "2.conv2")))


def test_nothing_is_kept_where_nothing_separates():
    torch.manual_seed(0)
    model, batches, cache = Dense(), batches_of(10, 10), PrefixCache()
    inputs_of(model, batches, "layers.1", entries=("layers.1", "layers"), cache=cache)
    assert (cache.entry, cache.inputs) == ("", {})
    found, _ = inputs_of(model, batches, "layers.2", cache=cache)
    assert all(map(torch.equal, found, expected_inputs(model, batches, "layers.2")))


def test_the_cache_keeps_to_its_limit():
    model, batches = residual(), batches_of(20, 20, 20)
    cache = PrefixCache(limit=2 * 20 * 4 * 25 * 4)
    inputs_of(model, batches, "1.conv2", entries=("1",), cache=cache)
    assert sorted(cache.inputs) == [0, 1]
    found, _ = inputs_of(model, batches, "2.conv2", entries=("2",), cache=cache)
    assert cache.reused == 2
    assert all(map(torch.equal, found, expected_inputs(model, batches, "2.conv2")))


def test_in_place_operations_on_a_kept_input_are_noticed():
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)) for _ in range(2)]
    model, batches, cache = nn.Sequential(nn.Conv2d(3, 4, 1), *inner).eval(), batches_of(20, 20), PrefixCache()
    inputs_of(model, batches, "1.1", entries=("1",), cache=cache)
    found, _ = inputs_of(model, batches, "2.1", entries=("2",), cache=cache)
    assert all(map(torch.equal, found, expected_inputs(model, batches, "2.1")))


def test_a_failing_sweep_leaves_model_and_cache_usable():
    model, batches, cache = residual(), batches_of(20, 20), PrefixCache()
    inputs_of(model, batches, "1.conv2", entries=("1",), cache=cache)
    before = copy.deepcopy(model.state_dict())

    def fail(x):
        raise OSError("reader failed")

    def fail_late():
        yield batches[0]
        raise OSError("loader failed")

    with pytest.raises(OSError, match="reader failed"):
        sweep(model, batches, {"2.conv2": fail}, entries=("2",), cache=cache)
    with pytest.raises(OSError, match="loader failed"):
        inputs_of(model, fail_late(), "2.conv2", entries=("2",), cache=cache)
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    found, _ = inputs_of(model, batches, "3.conv2", entries=("3",), cache=cache)
    assert all(map(torch.equal, found, expected_inputs(model, batches, "3.conv2")))


def test_the_rehearsal_finds_the_batchnorm_behind_a_layer():
    _, rehearsal = inputs_of(residual(), batches_of(4), "2.conv1")
    assert rehearsal.behind == {"2.norm": "2.conv1"}
