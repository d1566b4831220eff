import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cosep.config import DeviceConfig, RecoverConfig
from cosep.errors import DataError, RecoveryError
from cosep.recovery import make_optimizer, recover
from cosep.recovery.losses import block_outputs, comparable_blocks, recovery_loss, relative_error
from cosep.runs.fabric import launched

PLAIN = {"distill": 0.0, "features": 0.0, "warmup": 0.0, "decay": "constant", "clip": 0.0}


@pytest.fixture
def fabric():
    return launched(DeviceConfig(accelerator="cpu"))


@pytest.fixture
def batches():
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=g)
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    return [(inputs[i : i + 16], labels[i : i + 16]) for i in range(0, 96, 16)]


class Net(nn.Module):
    def __init__(self, hidden=8, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 5))
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.body(x))


def run(model, batches, fabric, updates=12, **settings):
    extra = {k: settings.pop(k) for k in ("teacher", "blocks", "progress", "checkpoint", "on_update") if k in settings}
    config = RecoverConfig(**{**PLAIN, "lr": 0.1, **settings})
    return recover(model, batches, updates, config, fabric=fabric, batches_a_pass=len(batches), **extra)


def test_updates_are_those_of_torchs_own_sgd_written_out(fabric, batches):
    ours, theirs = Net(), Net()
    run(ours, batches, fabric, updates=8, lr=0.05, weight_decay=1e-3)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    theirs.train()
    for step in range(8):
        inputs, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        F.cross_entropy(theirs(inputs), labels).backward()
        optimizer.step()
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_training_lowers_the_loss_and_says_how_many_updates_it_made(fabric, batches):
    done = run(Net(), batches, fabric, updates=60)
    assert done.updates == 60
    assert len(done.losses) == 60
    assert sum(done.losses[-6:]) < 0.5 * sum(done.losses[:6])


def test_a_recovery_that_goes_on_from_any_update_ends_bit_identical(fabric, batches):
    whole = Net()
    saved = {}

    def keep(done, progress):
        p = progress()
        saved[done] = (p, {k: v.clone() for k, v in p.weights.items()}, _copied(p.optimizer))

    run(whole, batches, fabric, updates=14, checkpoint=keep, decay="cosine")
    for start in (1, 6, 11):
        progress, weights, optimizer = saved[start]
        resumed = Net(seed=9)
        run(
            resumed,
            batches,
            fabric,
            updates=14,
            decay="cosine",
            progress=type(progress)(progress.update, weights, optimizer, progress.rng_state, progress.losses),
        )
        for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def _copied(state):
    return {
        "state": {i: {k: v.clone() for k, v in s.items()} for i, s in state["state"].items()},
        "param_groups": state["param_groups"],
    }


def test_a_loss_that_is_not_finite_brings_the_last_good_weights_back(fabric, batches):
    model = Net()
    start = {k: v.clone() for k, v in model.named_parameters()}
    poisoned = [*batches[:3], (batches[3][0] * float("nan"), batches[3][1]), *batches[4:]]
    done = run(model, poisoned, fabric)
    assert done.updates == 0
    assert "update 4 was nan" in done.outcome
    assert all(torch.equal(v, start[k]) for k, v in model.named_parameters())
    assert all(b.isfinite().all() for b in model.buffers())


def test_modes_of_student_and_teacher_are_left_as_found_and_no_gradient_stays(fabric, batches):
    model, teacher = Net().eval(), Net(seed=1).train()
    model.body[1].train()
    run(model, batches, fabric, teacher=teacher, blocks=("body",), distill=0.5, features=1.0)
    assert not model.training
    assert model.body[1].training
    assert teacher.training
    assert all(p.grad is None for p in model.parameters())


def test_no_hook_survives_an_exception(fabric, batches):
    model, teacher = Net(), Net(seed=1)

    def fail(done, total, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, batches, fabric, teacher=teacher, blocks=("body",), features=1.0, on_update=fail)
    assert not any(m._forward_hooks for net in (model, teacher) for m in net.modules())


def test_the_teacher_does_not_change(fabric, batches):
    teacher = Net(seed=1)
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    run(Net(), batches, fabric, teacher=teacher, blocks=("body",), distill=0.9, features=3.0)
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())


def test_a_student_that_learns_from_a_teacher_alone_comes_to_agree_with_it(fabric, batches):
    teacher, student = Net(seed=1), Net(hidden=16, seed=2)
    inputs = torch.cat([b[0] for b in batches])
    teacher.eval()
    student.eval()

    def apart():
        """Without what all classes share, which no softmax sees and so nothing teaches."""
        differences = teacher(inputs) - student(inputs)
        return (differences - differences.mean(1, keepdim=True)).square().mean()

    before = apart()
    run(student, batches, fabric, updates=150, teacher=teacher, distill=1.0, lr=0.05)
    assert apart() < 0.3 * before


def test_only_blocks_of_the_same_shape_in_both_networks_are_compared():
    wide, narrow = Net(hidden=8), Net(hidden=3)
    names = comparable_blocks(narrow, wide, ("body", "body.0", "head"), torch.randn(1, 6))
    assert names == ("body", "head")


def test_the_loss_is_the_weighted_sum_of_its_parts_written_out():
    g = torch.Generator().manual_seed(0)
    logits, target = torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g)
    labels = torch.tensor([0, 1, 2, 0])
    blocks, goals = {"b": torch.full((4, 2), 3.0)}, {"b": torch.full((4, 2), 2.0)}
    config = RecoverConfig(distill=0.75, temperature=2.0, features=4.0)
    p, q = torch.softmax(target / 2, 1), torch.softmax(logits / 2, 1)
    soft = 4 * (p * (p.log() - q.log())).sum(1).mean()
    hard = -torch.log_softmax(logits, 1)[torch.arange(4), labels].mean()
    expected = 0.75 * soft + 0.25 * hard + 4.0 * 0.25  # (3 - 2)² / 2² = 1/4
    assert_close(recovery_loss(logits, labels, config, target, blocks, goals), expected)


def test_the_relative_error_does_not_change_with_the_scale_of_a_block():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    assert_close(relative_error(a * 100, b * 100), relative_error(a, b))


def test_the_relative_error_of_half_precisions_is_that_of_their_values():
    g = torch.Generator().manual_seed(0)
    target = torch.randn(64, 50, generator=g).bfloat16()
    output = (target.float() * 1.004).bfloat16()  # a step or none of bfloat16 away
    expected = ((output.double() - target.double()) ** 2).sum() / (target.double() ** 2).sum()
    found = relative_error(output, target)
    assert found.dtype == torch.float32
    assert_close(float(found), float(expected), rtol=1e-4, atol=0)


def test_the_teacher_runs_in_the_precision_in_which_the_student_is_trained():
    class Scale(nn.Module):  # no product of matrices: some processors have none in bfloat16
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.mixed = []

        def forward(self, x):
            self.mixed.append(torch.is_autocast_enabled("cpu"))
            return x * self.weight

    student, teacher = Scale(), Scale()
    fabric = launched(DeviceConfig(accelerator="cpu", precision="bf16-mixed"))
    run(student, [(torch.randn(8, 4), torch.arange(8) % 4)], fabric, updates=3, teacher=teacher, distill=1.0)
    assert student.mixed == teacher.mixed == [True] * 3


def test_block_outputs_go_when_the_context_ends():
    model = Net()
    with block_outputs(model, ["body"]) as outputs:
        model(torch.randn(2, 6))
        assert outputs["body"].shape == (2, 5)
    assert not model.body._forward_hooks


def test_the_optimizer_holds_exactly_the_parameters_that_can_learn():
    model = Net()
    model.body[0].requires_grad_(False)
    held = {id(p) for g in make_optimizer(model, RecoverConfig()).param_groups for p in g["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(RecoveryError, match="no parameter of the model requires a gradient"):
        make_optimizer(Net().requires_grad_(False), RecoverConfig())


def test_making_the_fabric_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched(DeviceConfig(accelerator="cpu"))


def test_batches_of_another_form_are_refused(fabric):
    batches = [{"image": torch.randn(4, 6), "label": torch.zeros(4, dtype=torch.long)}]
    with pytest.raises(DataError, match="for recovery is a dict with the keys 'image', 'label'; a pair of tensors"):
        run(Net(), batches, fabric)
