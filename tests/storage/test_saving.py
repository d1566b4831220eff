import copy

import pytest
import torch
from torch import nn

from cosep.errors import ArtifactError, ModelError
from cosep.records import GroupPlan, Plan
from cosep.storage import read_artifact, write_artifact
from cosep.storage.artifacts import is_saved, load, read_documents, save
from cosep.surgery.cut import apply_layout
from cosep.surgery.plan import fingerprint, plan_to_document

KEPT = (0, 2, 5)


class Net(nn.Module):
    """Two convolutions with BatchNorm and a classifier."""

    def __init__(self, hidden=6, out=4, classes=3):
        super().__init__()
        self.first = nn.Conv2d(3, hidden, 3, padding=1)
        self.norm = nn.BatchNorm2d(hidden)
        self.second = nn.Conv2d(hidden, out, 3)
        self.head = nn.Linear(out, classes)

    def forward(self, x):
        return self.head(self.second(self.norm(self.first(x)).relu()).mean((2, 3)))


def plan_for(model):
    layout = {("first", "out"): KEPT, ("norm", "out"): KEPT, ("second", "in"): KEPT}
    return Plan((GroupPlan("first", 6, KEPT, "by hand"),), layout, fingerprint(model))


@pytest.fixture
def run(tmp_path):
    """The folder, the cut model with weights of its own, and its plan."""
    torch.manual_seed(0)
    uncut = Net()
    plan = plan_for(uncut)
    cut = apply_layout(uncut, plan.layout)
    cut.train()
    cut(torch.randn(8, 3, 6, 6))
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.add_(0.1)
    return save(tmp_path / "run", cut, plan, {"accuracy": 0.5}), cut.eval(), plan


def same_state(one, other):
    state = other.state_dict()
    return one.state_dict().keys() == state.keys() and all(
        torch.equal(t, state[n]) for n, t in one.state_dict().items()
    )


@pytest.mark.parametrize("source", [Net, lambda: Net(6), Net()], ids=["class", "factory", "instance"])
def test_a_saved_model_comes_back_bit_by_bit(run, source):
    folder, cut, _ = run
    found = load(folder, source)
    assert type(found) is Net
    assert found.first.weight.shape == (3, 3, 3, 3)
    assert same_state(found, cut)
    inputs = torch.randn(2, 3, 6, 6)
    assert torch.equal(found.eval()(inputs), cut(inputs))


def test_an_instance_is_left_as_it_was(run):
    instance = Net().train()
    instance.norm.eval()
    instance.head.requires_grad_(False)
    before = copy.deepcopy(instance)
    found = load(run[0], instance)
    assert same_state(instance, before)
    assert (instance.training, instance.norm.training) == (True, False)
    assert (found.training, found.norm.training) == (True, False)
    assert not found.head.weight.requires_grad
    assert found.second.weight.requires_grad


def test_plan_and_report_come_back(run):
    folder, _, plan = run
    found, report = read_documents(folder)
    assert (found.groups, dict(found.layout), found.fingerprint) == (plan.groups, dict(plan.layout), plan.fingerprint)
    assert report == {"accuracy": 0.5}
    assert is_saved(folder)
    assert not is_saved(folder.parent)


def test_saving_twice_gives_the_same_bytes(run, tmp_path):
    folder, cut, plan = run
    again = save(tmp_path / "again", cut, plan, {"accuracy": 0.5})
    assert all((again / path.name).read_bytes() == path.read_bytes() for path in folder.iterdir())


def test_precision_comes_back_though_the_constructor_makes_another(tmp_path):
    model = Net().half()
    folder = save(tmp_path / "half", model, Plan(fingerprint=fingerprint(model)))
    found = load(folder, Net)
    assert found.first.weight.dtype == found.norm.running_mean.dtype == torch.float16
    assert found.norm.num_batches_tracked.dtype == torch.int64
    assert same_state(found, model)


class Tied(nn.Module):
    """A linear map and its own transpose-free copy: one weight under two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(8, 8)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(self.encoder(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_weights_stay_tied(tmp_path, dtype):
    model = Tied().to(dtype)
    folder = save(tmp_path / "tied", model, Plan(fingerprint=fingerprint(model)))
    found = load(folder, Tied)
    assert found.decoder.weight is found.encoder.weight
    assert same_state(found, model)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            lambda: Net(classes=5),
            r"another architecture than this Net: head\.weight is \(5, 4\) in the model and \(3, 4\)",
        ),
        (lambda: Net(hidden=2), r"first\.weight is \(2, 3, 3, 3\) in the model and \(3, 3, 3, 3\) in the artifact"),
        (lambda: Net(hidden=7), "cut layers have another width"),
        (
            lambda: nn.Linear(4, 2),
            r"this Linear: weight \(2, 4\) is not in the artifact; .*; and \d+ more\. Pass the con",
        ),
        (lambda: nn.Sequential(), r"the artifact's first\.bias \(3,\) is not in the model"),
    ],
)
def test_another_architecture_is_refused_with_its_first_differences(run, factory, message):
    with pytest.raises(ArtifactError, match=message):
        load(run[0], factory)


def test_a_factory_must_make_a_module(run):
    with pytest.raises(ModelError, match=r"the factory returned a dict; an nn\.Module is needed"):
        load(run[0], dict)


def test_weights_that_do_not_fit_their_own_plan_are_refused(tmp_path):
    model = Net()
    folder = write_artifact(tmp_path, weights=model.state_dict(), plan=plan_to_document(plan_for(model)), report={})
    with pytest.raises(ArtifactError, match=r"do not fit its plan: first\.weight is \(3, 3, 3, 3\) in the model"):
        load(folder, Net)


def test_a_plan_that_is_none_is_refused(tmp_path):
    folder = write_artifact(tmp_path, weights=Net().state_dict(), plan={"groups": 5}, report={})
    with pytest.raises(ArtifactError, match=r"the plan in .* cannot be used"):
        load(folder, Net)


def test_a_damaged_file_is_noticed_before_the_factory_is_called(run):
    path = run[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="cut short"):
        load(run[0], lambda: pytest.fail("the factory was called"))


def test_a_model_with_extra_state_that_is_no_tensor_is_refused(tmp_path):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"anything": 1}

        def set_extra_state(self, state): ...

    with pytest.raises(ArtifactError, match=r"_extra_state is a dict; only tensors"):
        save(tmp_path / "run", Odd(2, 2), Plan())


def test_no_pickle_is_in_the_folder(run):
    artifact = read_artifact(run[0])
    assert set(artifact.manifest["files"]) == {"model.safetensors", "plan.json", "report.json"}
    assert not any(path.read_bytes().startswith(b"\x80") for path in run[0].iterdir())
