import errno
import json
import os
import re
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import cosep.recovery.training
from cosep.cli.app import app
from cosep.config import DeviceConfig
from cosep.errors import ConfigError, RecoveryError, RunError
from cosep.recovery.averaging import moving_average
from cosep.recovery.inputs import Growing, cutmix
from cosep.recovery.training import TrainConfig, recipe, train, training_seconds
from cosep.runs.fabric import launched
from cosep.runs.place import held, write_weights
from cosep.zoo import input_shape, load_model


@pytest.fixture(scope="module")
def fabric():
    return launched(DeviceConfig(accelerator="cpu"))


@pytest.fixture(scope="module")
def batches():
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 6, generator=g)
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    return [(inputs[i : i + 16], labels[i : i + 16]) for i in range(0, 80, 16)]


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def test_a_training_tells_its_seconds_those_before_a_stop_included(fabric, batches, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(cosep.recovery.training.time, "monotonic", lambda: now[0])

    def update(done, updates, loss):
        now[0] += 2.0
        if done == 3 and not stopped:
            stopped.append(done)
            raise KeyboardInterrupt

    stopped, told, partial_file = [], [], tmp_path / "net.partial"
    again = partial(
        train, net, batches, TrainConfig(epochs=1), fabric=fabric, on_update=update, partial=partial_file,
        checkpoint_seconds=0, on_end=told.append,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        again()
    now[0] += 1e6  # how long it lay there does not count
    again()
    assert told == [10.0]  # five updates; the third was done again after the stop, its first try was not stored


def test_the_seconds_of_a_training_are_beside_its_weights_and_in_the_report_of_a_pruning(tmp_path):
    weights, run = tmp_path / "net.safetensors", tmp_path / "run"
    words = [
        "train",
        "digits_cnn",
        "--data",
        "digits",
        "--out",
        str(weights),
        "--epochs",
        "0.2",
        "--accelerator",
        "cpu",
    ]
    assert CliRunner().invoke(app, [*words, "--quiet"]).exit_code == 0
    with safe_open(weights, "pt") as file:
        seconds = float(file.metadata()["training_seconds"])
    assert seconds > 0
    words = ["prune", "digits_cnn", "--weights", str(weights), "--data", "digits", "--out", str(run), "--quiet"]
    words += ["--accelerator", "cpu", "--observe-images", "100", "--rebuild-images", "50", "--schedule", "none"]
    assert CliRunner().invoke(app, words).exit_code == 0
    told = CliRunner().invoke(app, ["report", str(run), "--json"])
    report = json.loads(told.stdout)
    assert report["share_of_training"] == pytest.approx(sum(report["seconds"].values()) / seconds)
    assert "of the time that training the uncut network took" in CliRunner().invoke(app, ["report", str(run)]).output


def test_weights_of_elsewhere_say_no_time(tmp_path):
    torch.save(net().state_dict(), tmp_path / "net.pt")
    save_file(net().state_dict(), tmp_path / "net.safetensors", {"training_seconds": "soon"})
    for name in ("net.pt", "net.safetensors", "nowhere"):
        assert training_seconds(tmp_path / name) is None


def test_the_average_is_the_recursion_of_its_definition_over_the_weights_of_every_update(fabric, batches):
    models, history = [], []

    def build():
        models.append(net())
        return models[0]

    def keep(done, updates, loss):
        history.append({name: t.detach().clone() for name, t in models[0].state_dict().items()})

    result = train(build, batches, TrainConfig(epochs=6, ema=0.8), fabric=fabric, on_update=keep)
    assert len(history) == 30
    expected = {name: t.double() for name, t in history[0].items()}
    for n, weights in enumerate(history[1:], start=1):
        decay = min(0.8, (1 + n) / (10 + n))
        expected = {name: decay * e + (1 - decay) * weights[name] for name, e in expected.items()}
    found = result.state_dict()
    for name in found:
        if "num_batches" not in name:  # an integer, which nothing reads
            assert_close(found[name].double(), expected[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(found["1.running_mean"], history[-1]["1.running_mean"])


def test_without_an_average_the_result_is_the_last_update(fabric, batches):
    models = []

    def build():
        models.append(net())
        return models[0]

    assert train(build, batches, TrainConfig(epochs=1), fabric=fabric) is models[0]


def test_averaging_does_not_disturb_the_training_itself(fabric, batches):
    losses = {0.0: [], 0.9: []}
    for ema, told in losses.items():
        config = TrainConfig(epochs=3, ema=ema)
        train(net, batches, config, fabric=fabric, on_update=lambda done, updates, loss, told=told: told.append(loss))
    assert losses[0.0] == losses[0.9]


def test_a_constant_model_is_its_own_average():
    model = net()
    average = moving_average(model, 0.999)
    for _ in range(5):
        average.update_parameters(model)
    for name, tensor in model.state_dict().items():
        assert_close(average.module.state_dict()[name], tensor)


def test_the_average_of_a_short_training_has_forgotten_its_first_steps():
    """With the plain decay of 0.999, the first of a hundred models would still weigh 0.9."""
    model = nn.Linear(1, 1, bias=False)
    average = moving_average(model, 0.999)
    for step in range(100):
        nn.init.constant_(model.weight, float(step == 0))
        average.update_parameters(model)
    assert average.module.weight.item() < 1e-3


def test_training_that_diverges_is_told_and_gives_no_network(fabric, batches):
    with pytest.raises(RecoveryError, match=r"the training stopped: the loss of update \d+ was .* lower learning rate"):
        train(net, [(x * 1e30, y) for x, y in batches], TrainConfig(lr=1e30), fabric=fabric)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ema": 1.0}, "ema is 1.0; it must be a decay from 0"),
        ({"warmup": 1.5}, "warmup is 1.5; it must be between 0 and 1"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        TrainConfig(**changes)


@pytest.mark.parametrize("model", ["vgg16", "vgg19", "mobilenetv2", "densenet40"])
def test_the_papers_cifar_models_have_recipes_with_all_four_ingredients(model):
    assert input_shape(model) == (3, 32, 32)  # the name is one of the zoo's
    found = recipe(model)
    assert min(found.warmup, found.label_smoothing, found.ema) > 0
    assert found.epochs <= 100


def wider():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))


class Stopped(Exception):
    pass


def stop_at(update):
    def on_update(done, updates, loss):
        if done == update:
            raise Stopped

    return on_update


@pytest.mark.parametrize(("ema", "optimizer"), [(0.0, "sgd"), (0.8, "sgd"), (0.0, "muon")])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(ema, optimizer, fabric, tmp_path):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 6, generator=generator)
    loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16, shuffle=True)
    config, partial = TrainConfig(epochs=6, ema=ema, optimizer=optimizer), tmp_path / "net.partial"
    undisturbed = train(net, loader, config, fabric=fabric).state_dict()
    for update in (7, 18):
        with pytest.raises(Stopped):
            train(net, loader, config, fabric=fabric, on_update=stop_at(update), partial=partial, checkpoint_seconds=0)
    seen = []
    resumed = train(net, loader, config, fabric=fabric, on_update=lambda *told: seen.append(told[0]), partial=partial)
    assert seen == list(range(18, 31))
    assert all(torch.equal(resumed.state_dict()[name], undisturbed[name]) for name in undisturbed)


def test_the_rest_of_another_training_or_a_damaged_one_is_refused(fabric, batches, tmp_path):
    partial = tmp_path / "net.partial"
    with pytest.raises(Stopped):
        train(
            net,
            batches,
            TrainConfig(epochs=6),
            fabric=fabric,
            on_update=stop_at(9),
            partial=partial,
            about={"data": "one"},
            checkpoint_seconds=0,
        )
    with pytest.raises(RunError, match=r"net.partial holds another training: epochs was 6 there and is 7 now"):
        train(net, batches, TrainConfig(epochs=7), fabric=fabric, partial=partial, about={"data": "one"})
    with pytest.raises(RunError, match=r"data was 'one' there and is 'other' now"):
        train(net, batches, TrainConfig(epochs=6), fabric=fabric, partial=partial, about={"data": "other"})
    with pytest.raises(RunError, match=r"batches was 5 there and is 4 now"):
        train(net, batches[:4], TrainConfig(epochs=6), fabric=fabric, partial=partial, about={"data": "one"})
    with pytest.raises(RunError, match=r"net.partial is of another network than this one"):
        train(wider, batches, TrainConfig(epochs=6), fabric=fabric, partial=partial, about={"data": "one"})
    partial.write_bytes(partial.read_bytes()[:100])
    with pytest.raises(RunError, match=r"net.partial is damaged .* Remove it to start over"):
        train(net, batches, TrainConfig(epochs=6), fabric=fabric, partial=partial, about={"data": "one"})


def test_a_training_that_diverged_leaves_nothing_to_go_on_from(fabric, batches, tmp_path):
    partial, config = tmp_path / "net.partial", TrainConfig(epochs=6, lr=1e30)
    with pytest.raises(RecoveryError, match="Use a lower learning rate"):
        train(net, batches, config, fabric=fabric, partial=partial, checkpoint_seconds=0)
    assert not partial.exists()


def test_a_place_that_cannot_be_written_is_told(fabric, batches, tmp_path):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "net.partial"
    with pytest.raises(RunError, match="could not be written"):
        train(net, batches, TrainConfig(epochs=1), fabric=fabric, partial=place, checkpoint_seconds=0)


def test_the_command_goes_on_and_leaves_only_the_result(tmp_path, monkeypatch):
    out = tmp_path / "net.safetensors"
    words = ["train", "digits_cnn", "--data", "digits", "--accelerator", "cpu", "--epochs", "1", "--out"]
    whole = tmp_path / "whole.safetensors"
    assert CliRunner().invoke(app, [*words, str(whole)]).exit_code == 0
    real = cosep.recovery.training.train
    hurried = partial(real, checkpoint_seconds=0)
    monkeypatch.setattr("cosep.recovery.training.train", lambda *a, **k: hurried(*a, **{**k, "on_update": stop_at(5)}))
    stopped = CliRunner().invoke(app, [*words, str(out)])
    assert isinstance(stopped.exception, Stopped)
    assert [path.name for path in tmp_path.iterdir() if "whole" not in path.name] == ["net.safetensors.partial"]
    monkeypatch.setattr("cosep.recovery.training.train", real)
    done = CliRunner().invoke(app, [*words, str(out)])
    assert done.exit_code == 0, done.output
    assert "going on from" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.safetensors", "whole.safetensors"]
    found, expected = load_file(out), load_file(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_other_models_have_the_plain_defaults():
    assert recipe("resnet20") == recipe("my.py:net") == TrainConfig()


def test_flags_win_over_the_recipe_and_what_is_written_is_the_average(tmp_path):
    out = tmp_path / "net.safetensors"
    words = ["train", "digits_cnn", "--data", "digits", "--out", str(out), "--accelerator", "cpu"]
    words += ["--epochs", "1", "--batch-size", "64", "--ema", "0.9", "--label-smoothing", "0.1", "--warmup", "0.2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = "epochs 1, batch size 64, lr 0.1, weight decay 0.0005, warmup 0.2, label smoothing 0.1, ema 0.9, seed 0"
    assert told in done.stderr
    plain = tmp_path / "plain.safetensors"
    CliRunner().invoke(app, [*words[:5], str(plain), *words[6:], "--ema", "0"])
    averaged, last = load_file(out), load_file(plain)
    assert averaged.keys() == last.keys() == dict(load_model("digits_cnn").state_dict()).keys()
    assert not torch.equal(averaged["conv1.weight"], last["conv1.weight"])


def test_every_setting_of_training_has_a_flag():
    told = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).stdout
    for field in fields(TrainConfig):
        assert f"--{field.name.replace('_', '-')}" in told


def test_a_fast_training_that_was_stopped_goes_on_to_the_same_bits(fabric, tmp_path):
    """Images that grow and are mixed: the size and the chance of an update do not depend on a stop before it."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(40, 3, 24, 24, generator=generator), torch.arange(40) % 4
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    config = replace(recipe("any", fast=True), epochs=4, cutmix=0.5)

    def build():
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(4, 4),
        )

    undisturbed = train(build, loader, config, fabric=fabric).state_dict()
    for update in (7, 13):
        with pytest.raises(Stopped):
            train(
                build,
                loader,
                config,
                fabric=fabric,
                on_update=stop_at(update),
                partial=tmp_path / "p",
                checkpoint_seconds=0,
            )
    resumed = train(build, loader, config, fabric=fabric, partial=tmp_path / "p").state_dict()
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)
    assert all(tensor.is_contiguous() for tensor in resumed.values())


def test_the_images_of_a_fast_training_grow_from_half_to_the_whole(fabric):
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            if self.training:
                seen.append(tuple(x.shape[2:]))
            return self.linear(x.mean((2, 3)))

    batches = [(torch.randn(4, 3, 32, 32), torch.arange(4))] * 10
    model = train(Net, batches, TrainConfig(epochs=1, first_size=0.5), fabric=fabric)
    assert seen == [(side, side) for side in (16, 20, 24, 28, 32) for _ in range(2)]
    seen.clear()
    model.train()(batches[0][0])
    assert seen == [(32, 32)]  # the training leaves nothing behind in the model


def test_images_that_are_small_already_are_left_whole():
    model = nn.Identity().train()
    with Growing(model, 0.5, updates=10):
        assert model(torch.zeros(1, 3, 8, 20)).shape == (1, 3, 8, 16)


def test_cutmix_labels_are_the_shares_of_the_pixels():
    images = torch.stack([torch.full((1, 10, 10), float(label)) for label in range(3)])
    for area, down, right in ((0.25, 0.0, 0.99), (0.5, 0.3, 0.1), (0.0, 0.5, 0.5), (1.0, 0.5, 0.5)):
        mixed, labels = cutmix(images, torch.eye(3), area, down, right)
        for image, probabilities in zip(mixed, labels, strict=True):
            counted = torch.tensor([(image == label).float().mean() for label in range(3)])
            assert_close(probabilities, counted)


def test_a_model_that_views_its_maps_is_trained_all_the_same(fabric):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 4)

        def forward(self, x):
            x = self.conv(x)
            return self.linear(x.view(x.size(0), -1))

    batches = [(torch.randn(4, 3, 8, 8), torch.arange(4))] * 2
    train(Net, batches, TrainConfig(epochs=1, channels_last=True), fabric=fabric)


def test_a_flipped_bit_in_what_was_stored_is_seen(fabric, batches, tmp_path):
    partial, config = tmp_path / "net.partial", TrainConfig(epochs=6)
    with pytest.raises(Stopped):
        train(net, batches, config, fabric=fabric, on_update=stop_at(9), partial=partial, checkpoint_seconds=0)
    whole = partial.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        partial.write_bytes(damaged)
        with pytest.raises(RunError, match=r"net\.partial is damaged .* Remove it to start over"):
            train(net, batches, config, fabric=fabric, partial=partial)


TRAIN = ["train", "digits_cnn", "--data", "digits", "--accelerator", "cpu", "--epochs", "0.2", "--out"]


@pytest.mark.parametrize("place", ["/", ".", "file/net.safetensors"])
def test_a_place_for_no_file_is_told_in_a_line_before_any_training(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("cosep.recovery.training.train", lambda *_, **__: pytest.fail("it trained"))
    done = CliRunner().invoke(app, [*TRAIN, place])
    assert isinstance(done.exception, RunError)  # which the command says in a line
    assert re.search("is a folder; give the file to write|could not be written", str(done.exception))


def test_one_training_at_a_time_makes_a_file(tmp_path):
    out = tmp_path / "net.safetensors"
    with held(out):
        done = CliRunner().invoke(app, [*TRAIN, str(out)])
    assert isinstance(done.exception, RunError)
    assert "another process is making" in str(done.exception)
    assert CliRunner().invoke(app, [*TRAIN, str(out)]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_weights_have_the_mode_of_any_file_of_the_user(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_weights(net(), tmp_path / "net.safetensors")
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "net.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_disk_that_fills_up_leaves_the_old_weights_and_a_line(tmp_path, monkeypatch):
    out = tmp_path / "net.safetensors"
    write_weights(net(), out)
    before = out.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cosep.storage.files.sync", full)
    with pytest.raises(RunError, match=r"net\.safetensors could not be written: No space left on device"):
        write_weights(net(), out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_teacher_is_learnt_from_where_the_labels_say_nothing(fabric, batches):
    torch.manual_seed(5)
    teacher = nn.Linear(6, 4, bias=False)
    nn.init.orthogonal_(teacher.weight, gain=8.0)  # four classes that are far apart and about as frequent
    inputs = torch.cat([images for images, _ in batches])
    meant = teacher(inputs).argmax(1)
    useless = [(images, torch.zeros(len(images), dtype=torch.long)) for images, _ in batches]
    config = TrainConfig(epochs=60, lr=0.02, distill=1.0)
    taught = train(net, useless, config, fabric=fabric, teacher=teacher).eval()
    alone = train(net, useless, config, fabric=fabric).eval()
    assert meant.eq(0).float().mean() < 0.5  # what the labels alone can teach
    assert taught(inputs).argmax(1).eq(meant).float().mean() > 0.75  # 0.90 at least with six seeds
    assert alone(inputs).argmax(1).eq(0).all()


def test_a_teacher_needs_its_weights_and_both_are_of_this_training(tmp_path):
    out = tmp_path / "net.safetensors"
    words = ["train", "digits_cnn", "--data", "digits", "--out", str(out), "--accelerator", "cpu", "--epochs", "0.2"]
    done = CliRunner().invoke(app, [*words, "--teacher", "digits_cnn"])
    assert isinstance(done.exception, ConfigError)
    assert "--teacher-weights" in str(done.exception)
    teacher = tmp_path / "teacher.safetensors"
    torch.manual_seed(1)
    save_file(dict(load_model("digits_cnn").state_dict()), teacher)
    done = CliRunner().invoke(app, [*words, "--teacher", "digits_cnn", "--teacher-weights", str(teacher)])
    assert done.exit_code == 0, done.output
    assert out.exists()


def test_training_in_bfloat16_works_with_images_that_grow():
    fabric = launched(DeviceConfig(accelerator="cpu", precision="bf16-mixed"))
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    seen = []

    class Seen(nn.Sequential):
        def forward(self, x):
            if self.training:
                seen.append(x.shape[-1])
            return super().forward(x)

    build = partial(
        Seen, nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    trained = train(
        build, [(images, torch.arange(8) % 2)] * 5, TrainConfig(epochs=1, first_size=0.5, lr=0.01), fabric=fabric
    )
    assert seen == [16, 20, 24, 28, 32]
    assert all(parameter.dtype == torch.float32 for parameter in trained.parameters())
