"""Blocks refined by gradient steps: closer to the uncut network, exact in BatchNorm, taken back where they harm."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import RebuildConfig
from cosep.models.tape import Pass, record
from cosep.rebuilding import rebuild, refining
from cosep.rebuilding.refining import find_blocks
from cosep.rebuilding.tasks import find_tasks, in_order
from tests.groups import nets
from tests.rebuilding.test_rebuild import basic, halved, images

CLOSED, REFINED = RebuildConfig(refine=0), RebuildConfig(refine=4)


def blocks_of(model, x, layout):
    """The layers of each block, by name."""
    tape = record(model, x)
    tasks, _ = find_tasks(tape, model, layout)
    return [[task.layer for task in block.tasks] for block in find_blocks(tape, tasks, in_order(tape, tasks))]


def missed(model, whole, batches):
    """How far a block's output is from the uncut network's, on these images: computed by the model's own code."""
    found = []
    for net in (model, whole):
        kept = []
        handle = net.fc.register_forward_hook(lambda _m, inputs, _o, kept=kept: kept.append(inputs[0]))
        with torch.no_grad():
            for x in batches:
                net(x)
        handle.remove()
        found.append(torch.cat(kept))
    return float((found[0] - found[1]).square().sum())


def test_on_images_that_no_step_has_seen_the_network_is_closer_to_the_uncut_one():
    model, batches = basic(), images((3, 8, 8), batches=8)
    cut, layout = halved(model, batches[0][:1])
    closed, refined = (rebuild(model, cut, layout, batches, config) for config in (CLOSED, REFINED))
    unseen = images((3, 8, 8), seed=5)
    assert missed(refined.model, model, unseen) < 0.95 * missed(closed.model, model, unseen)
    assert closed.blocks == ()
    assert [(block.layers, block.applied) for block in refined.blocks] == [(("a", "b"), True)]
    assert refined.blocks[0].error_after < refined.blocks[0].error_before


def test_what_a_block_gives_is_judged_behind_its_activation():
    """The error of the closed form's network on the images set aside, from the model's own layers at every position."""
    model, batches = basic(), images((3, 8, 8), batches=4)
    cut, layout = halved(model, batches[0][:1])
    every = RebuildConfig(refine=1, rows=10_000, positions=64)
    made = rebuild(model, cut, layout, batches, every)
    closed = rebuild(model, cut, layout, batches, RebuildConfig(refine=0, rows=10_000, positions=64)).model

    def block(net, x):
        x = F.relu(net.bn0(net.stem(x)))
        return F.relu(net.bn2(net.b(F.relu(net.bn1(net.a(x))))) + x)

    with torch.no_grad():
        x = torch.cat([x[torch.arange(i * 64, i * 64 + 64) % 16 == 0] for i, x in enumerate(batches)])
        aims = block(model, x)
        spread = (aims - aims.mean((0, 2, 3), keepdim=True)).square().sum()
        errors = [float((block(net, x) - aims).square().sum() / spread) for net in (closed, made.model)]
    assert_close((made.blocks[0].error_before, made.blocks[0].error_after), tuple(errors), rtol=1e-3, atol=1e-6)


def test_batchnorm_carries_the_statistics_of_the_refined_network_and_computes_the_same():
    model, batches = basic(), images((3, 8, 8), batches=4)
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, REFINED).model
    with torch.no_grad():
        x = torch.cat(batches)
        made = done.b(F.relu(done.bn1(done.a(F.relu(done.bn0(done.stem(x)))))))
    assert_close(done.bn2.running_mean, made.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    assert_close(done.bn2.running_var, made.var((0, 2, 3), unbiased=False), rtol=1e-3, atol=1e-4)


def test_steps_that_bring_it_no_closer_are_taken_back_to_the_bit(monkeypatch):
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    closed = rebuild(model, cut, layout, batches, CLOSED).model
    monkeypatch.setattr(refining, "RATE", 1e3)
    done = rebuild(model, cut, layout, batches, REFINED)
    assert [(block.applied, block.error_before == block.error_after) for block in done.blocks] == [(False, True)]
    for name, tensor in closed.state_dict().items():
        assert torch.equal(tensor, done.model.state_dict()[name]), name


@pytest.mark.parametrize("trains", [True, False])
def test_afterwards_every_weight_asks_for_gradients_as_it_did(trains):
    model, batches = basic().requires_grad_(trains), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, REFINED)
    assert done.blocks[0].applied
    assert all(p.requires_grad == trains and p.grad is None for p in done.model.parameters())


def test_values_on_disk_give_nearly_the_same_network():
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    inside, spilled = (
        rebuild(model, cut, layout, batches, RebuildConfig(refine=4, memory=memory)) for memory in (1.0, 0.0)
    )
    assert spilled.blocks[0].applied
    assert abs(spilled.blocks[0].error_after - inside.blocks[0].error_after) < 0.1 * inside.blocks[0].error_after


def test_coarse_weights_are_left():
    model, batches = basic().bfloat16(), [x.bfloat16() for x in images((3, 8, 8))]
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, REFINED)
    assert [block.reason for block in done.blocks] == ["its weights are too coarse for small steps"]


class Chain(nn.Module):
    """Five convolutions in a row, of which each is cut, and a classifier."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(5))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.fc(x.mean((2, 3)))


class Bottleneck(nn.Module):
    """A block whose shortcut is a convolution, which runs last, and another block behind it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 8, 1)
        self.short = nn.Conv2d(3, 8, 1)
        self.d, self.e, self.fc = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        y = self.c(F.relu(self.b(F.relu(self.a(x)))))
        x = F.relu(self.short(x) + y)
        x = x + self.e(F.relu(self.d(x)))
        return self.fc(x.mean((2, 3)))


def test_frozen_layers_stay():
    torch.manual_seed(0)
    model, batches = Bottleneck().eval(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    cut.b.requires_grad_(False)
    done = rebuild(model, cut, layout, batches, REFINED)
    assert any(block.applied and "a" in block.layers and "b" not in block.layers for block in done.blocks)
    assert torch.equal(cut.b.weight, done.model.b.weight)


def test_a_block_ends_where_one_value_goes_on():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    cut, layout = halved(model := Chain().eval(), x[:1])
    # Four at the most where every output is cut; what is left with the classifier ends at its scores.
    chain = [["layers.0", "layers.1", "layers.2", "layers.3"], ["layers.4", "fc"]]
    assert blocks_of(cut, x, layout) == chain
    cut, layout = halved(Bottleneck().eval(), x[:1])
    assert [sorted(names) for names in blocks_of(cut, x, layout)] == [["a", "b", "c", "short"], ["d", "e"]]
    assert len(model.layers) == 5


@pytest.mark.parametrize(("count", "moved"), [(64, True), (16, False)])  # of the latter 15 enter a fit
def test_with_few_images_the_last_layer_is_in_no_block(count, moved):
    torch.manual_seed(0)
    model, batches = Chain().eval(), images((3, 8, 8), count=count, batches=1)
    cut, layout = halved(model, batches[0][:1])
    done = rebuild(model, cut, layout, batches, REFINED)
    last = done.blocks[-1]
    assert last.layers == ("layers.4", "fc")
    assert done.model.fc.in_features in range(4, 9)  # four rows are needed for each
    assert (last.reason == "15 rows are too few to move the last layer") != moved


@pytest.mark.parametrize("kind", nets.NETS, ids=lambda kind: kind.__name__)
def test_no_block_leaves_a_value_behind(kind):
    """A block's steps can be run from what goes in alone, and nothing behind it reads anything but what it gives."""
    model, x = nets.built(kind)
    cut, layout = halved(model, x[:1])
    if not layout:
        pytest.skip("nothing to cut")
    tape = record(cut, x)
    tasks, _ = find_tasks(tape, cut, layout)
    blocks = find_blocks(tape, tasks, in_order(tape, tasks))
    for block in blocks:
        made = set(block.steps)
        readers = {step for step in made - {block.end} for step in tape.steps[step].users}
        assert readers <= made
    names = [task.layer for block in blocks for task in block.tasks]
    assert len(names) == len(set(names))


def test_a_pass_that_was_taken_back_gives_the_same_again():
    model, x = nets.built(nets.Residual)
    tape = record(model, x)
    run = Pass.begun(tape, x)
    half = len(tape.steps) // 2
    run.run(range(half))
    there, waiting = dict(run.values), run.waiting.copy()
    mark = run.marked()
    run.run(range(half, len(tape.steps)))
    run.rewind(mark)
    assert run.values.keys() == there.keys()
    assert run.waiting == waiting
    run.run(range(half, len(tape.steps)))
    with torch.no_grad():
        assert_close(run.values[tape.output], model(x))
    assert set(run.values) == {tape.output}


def test_the_network_that_was_handed_over_is_left():
    model, batches = basic(), images((3, 8, 8))
    cut, layout = halved(model, batches[0][:1])
    before = copy.deepcopy(cut.state_dict())
    rebuild(model, cut, layout, batches, REFINED)
    assert all(torch.equal(before[name], tensor) for name, tensor in cut.state_dict().items())
