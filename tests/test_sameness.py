"""A run goes on with the same data and the same function, wherever they lie, and with no others."""

import copy
import random
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import cosep
from cosep.cli.app import app
from cosep.errors import ConfigError, CosepError, ModelError, RunError
from cosep.runs.sameness import identity_of

FAST = {
    "observe": {"images": 40},
    "rebuild": {"images": 20},
    "recover": {"schedule": "none"},
    "device": {"accelerator": "cpu"},
}


class Net(nn.Module):
    """Small, with a forward that a test may change."""

    def __init__(self, slope=0.0):
        super().__init__()
        self.slope = slope
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3), nn.Linear(12, 3)

    def forward(self, x):
        x = nn.functional.leaky_relu(self.conv1(x), self.slope)
        return self.fc(torch.relu(self.conv2(x)).mean((2, 3)))


class Stop(Exception):
    """What a test throws in the middle of a run."""


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def batches(shift=0, seed=0):
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(48) % 3
    images = torch.randn(48, 1, 6, 6, generator=chance) + labels.view(-1, 1, 1, 1)
    return list(zip(images.split(8), ((labels + shift) % 3).split(8), strict=True))


def start(net, calibration, folder, *, stop=False, **others):
    def after_the_first(_entry):
        raise Stop

    config = cosep.replace_settings(cosep.preset(), FAST)
    callbacks = cosep.Callbacks(on_group=after_the_first if stop else None)
    return cosep.prune(net, calibration, config=config, run=folder, callbacks=callbacks, **others)


@pytest.fixture
def stopped(net, tmp_path):
    """A run that was stopped when it had pruned its first group."""
    with pytest.raises(Stop):
        start(net, batches(), tmp_path / "run", stop=True, holdout=batches(seed=1))
    return tmp_path / "run"


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_other_labels_images_or_parts_behind_the_same_name_are_refused(net, stopped):
    before = contents(stopped)
    held = batches(seed=1)
    with pytest.raises(RunError, match=r"its calibration data were others \(other labels\)"):
        start(net, batches(shift=1), stopped, holdout=held)
    with pytest.raises(RunError, match=r"its calibration data were others \(other inputs\)"):
        start(net, batches(seed=2), stopped, holdout=held)
    with pytest.raises(RunError, match=r"its calibration data were others \(6 batches, 5 here\)"):
        start(net, batches()[:5], stopped, holdout=held)
    with pytest.raises(RunError, match=r"its holdout data were others \(other labels\)"):
        start(net, batches(), stopped, holdout=batches(shift=1, seed=1))
    with pytest.raises(RunError, match="it was started with holdout, and this one is not"):
        start(net, batches(), stopped)
    assert contents(stopped) == before


def test_a_changed_forward_with_the_same_weights_is_refused(net, stopped):
    other = Net(slope=0.2)
    other.load_state_dict(net.state_dict())
    with pytest.raises(RunError, match="its forward is another one"):
        start(other, batches(), stopped, holdout=batches(seed=1))


def test_the_same_data_and_model_in_other_objects_go_on(net, stopped):
    whole = start(net, batches(), stopped.with_name("whole"), holdout=batches(seed=1))
    resumed = start(copy.deepcopy(net), batches(), stopped, holdout=batches(seed=1), evaluate=batches(seed=2))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_places_do_not_matter_where_the_content_is_the_same(net, tmp_path):
    facts = {"model": "net.py:build", "data": "dat.py:load", "checkpoint": "/a/net.pt"}
    with pytest.raises(Stop):
        start(net, batches(), tmp_path / "run", stop=True, about=facts)
    moved = {"model": "./net.py:build", "data": "./dat.py:load", "checkpoint": "/b/copy.pt"}
    assert start(net, batches(), tmp_path / "run", about=moved).plan.groups


def test_another_number_of_threads_goes_on_with_a_warning(net, stopped):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(UserWarning, match=f"threads {threads}, now {threads + 1}.*may differ from that of a run"):
            start(net, batches(), stopped, holdout=batches(seed=1))
        with warnings.catch_warnings():  # what is finished is only read
            warnings.simplefilter("error")
            torch.set_num_threads(threads)
            start(net, batches(), stopped, holdout=batches(seed=1))
    finally:
        torch.set_num_threads(threads)


def test_a_shuffled_loader_is_known_again_and_one_of_other_chance_is_not_held_against_a_run(net):
    images, labels = (torch.cat(part) for part in zip(*batches(), strict=True))
    shuffled = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)

    class Noisy:
        def __iter__(self):
            return iter([(images[:8] + random.random(), labels[:8])])  # chance that no seed of torch's decides

    def known(loader):
        found = identity_of(net, {"calibration": loader}, None, seed=0, device="cpu")["identity"]
        return found["calibration_labels"], found["calibration_images"]

    first = known(shuffled)
    torch.rand(7)
    assert known(shuffled) == first
    assert first[0]
    assert known(Noisy()) == ("", [])


def test_rounding_is_no_other_data_and_no_other_model(net, stopped):
    rounded = [(images * (1 + 1e-7), labels) for images, labels in batches()]
    with torch.no_grad():
        assert start(net, rounded, stopped, holdout=batches(seed=1)).plan.groups


def test_a_start_that_failed_before_it_computed_anything_leaves_no_claim(net, tmp_path):
    wrong = [(images.repeat(1, 2, 1, 1), labels) for images, labels in batches()]
    with pytest.raises(ModelError, match="the model fails on"):
        start(net, wrong, tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ModelError):
        start(net, wrong, tmp_path / "mine")
    assert {p.name for p in (tmp_path / "mine").iterdir()} <= {".lock"}
    assert start(net, batches(), tmp_path / "mine").plan.groups


def test_data_that_are_repaired_after_a_failed_look_at_them_are_no_other_run(net, tmp_path):
    first, second, *others = batches()
    wrong = [first, (second[0], torch.full((8,), 7)), *others]
    with pytest.raises(CosepError, match="7"):
        start(net, wrong, tmp_path / "run", criterion="cosep", holdout=batches(seed=1))
    assert start(net, batches(), tmp_path / "run", criterion="cosep", holdout=batches(seed=1)).plan.groups


def test_a_start_that_was_killed_before_it_computed_anything_leaves_no_claim(net, stopped):
    for path in sorted(stopped.rglob("*"), reverse=True):  # what is inside a folder before the folder
        if path.is_dir():
            path.rmdir()
        elif path.name != "config.toml":
            path.unlink()
    assert start(net, batches(seed=3), stopped).plan.groups


def test_a_config_that_is_not_of_a_run_is_never_replaced(net, tmp_path):
    (tmp_path / "config.toml").write_text('theme = "dark"\n')
    with pytest.raises(RunError, match="belongs to another run"):
        start(net, batches(), tmp_path)
    assert (tmp_path / "config.toml").read_text() == 'theme = "dark"\n'


@pytest.mark.parametrize("name", ["log.jsonl", "manifest.json", "checkpoint.safetensors", "config.toml"])
def test_a_folder_in_the_place_of_a_file_is_refused_and_nothing_changed(net, stopped, name):
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).mkdir()
    before = contents(stopped)
    with pytest.raises(RunError, match=f"{name} is a folder"):
        start(net, batches(), stopped, holdout=batches(seed=1))
    assert contents(stopped) == before


@pytest.mark.parametrize("value", [torch.ones(2), None, {"deep": 1}, [torch.ones(1)]])
def test_facts_that_are_no_plain_values_are_refused(net, tmp_path, value):
    with pytest.raises(ConfigError, match="about: x must be text, a number"):
        start(net, batches(), tmp_path / "run", about={"x": value})
    assert not (tmp_path / "run").exists()


class Same(Net):
    """A model that is its own copy."""

    def __deepcopy__(self, memo):
        return self


class Shares(Net):
    """A model whose copies share its weights."""

    def __deepcopy__(self, memo):
        other = type(self)()
        other.__dict__ = dict(self.__dict__)
        return other


@pytest.mark.parametrize("kind", [Same, Shares])
def test_a_model_whose_copy_is_the_model_itself_is_refused(kind):
    torch.manual_seed(0)
    net = kind()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(CosepError, match="__deepcopy__"):
        cosep.prune(net, batches(), config=cosep.replace_settings(cosep.preset(), FAST))
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())


def test_the_command_goes_on_with_the_same_file_under_another_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dat.py").write_text(
        "from cosep.data import load_data\n\ndef load():\n    data = load_data('digits')\n"
        "    names = list('0123456789')\n"
        "    return {'train': data.train, 'test': data.test, 'calibration': data.calibration, 'class_names': names}\n"
    )
    net = cosep.load_model("digits_cnn", classes=10)
    for name in ("a.pt", "b.pt"):
        torch.save(net.state_dict(), name)
    quick = ["--accelerator", "cpu", "--schedule", "none", "--observe-images", "100", "--rebuild-images", "50"]

    def prune(weights, data):
        words = ["prune", "digits_cnn", "--weights", weights, "--data", data, "--out", "run", *quick]
        return CliRunner().invoke(app, words)

    first = prune("a.pt", "dat.py:load")
    assert first.exit_code == 0, first.output
    again = prune("b.pt", "./dat.py:load")
    assert again.exit_code == 0, again.output
