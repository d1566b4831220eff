"""The path of ImageNet, on a folder of its shape: train/ and val/ with 1,000 classes, but of tiny images."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.config import ObserveConfig, batch_and_holdout, paper_recovery, preset, replace_settings
from cosep.data import load_data
from cosep.reporting.evidence import evidence_from_bytes
from cosep.storage.artifacts import load
from cosep.storage.toml import read_toml

CLASSES, SIZE = 1000, 16
SCARCE = 5
NET = """
import torch
from torch import nn

def net(classes=1000):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every class has its own pattern, every image its own light and contrast; three to train with, one to validate.

    The first five classes have two: of these, one is held out, so that no variance follows from what is left.
    """
    root = tmp_path_factory.mktemp("imagenet")
    chance = np.random.default_rng(0)
    for number in range(CLASSES):
        name = f"n{number:08d}"
        pattern = chance.random((5, 5, 3))
        for part, count in (("train", 3 if number >= SCARCE else 2), ("val", 1)):
            (root / part / name).mkdir(parents=True)
            for image in range(count):
                pixels = 255 * (0.4 * pattern * chance.random(3) + 0.6 * chance.random((5, 5, 3)))
                kind = "JPEG" if image else "png"
                Image.fromarray(pixels.repeat(4, 0).repeat(4, 1).astype(np.uint8)).save(
                    root / part / name / f"{name}_{image}.{kind}"
                )
    (root / "net.py").write_text(NET)
    return root


@pytest.fixture(scope="module")
def pruned(folder):
    run = folder / "run"
    words = ["prune", f"{folder / 'net.py'}:net", "--data", f"imagefolder:{folder}", "--image-size", str(SIZE)]
    words += ["--preset", "paper", "--holdout", "0.1", "--accelerator", "cpu", "--out", str(run)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return run, json.loads(done.stdout)


def test_a_thousand_classes_are_screened_to_the_hundred_of_the_paper(pruned):
    run, report = pruned
    assert report["settings"]["profile"]["max_classes"] == 100
    files = sorted((run / "evidence").glob("*.safetensors"))
    assert len(files) == len(report["groups"]) == 2
    for file in files:
        found = evidence_from_bytes(file.read_bytes(), file.name)
        assert found.spanning == len(found.classes) == 100
        assert SCARCE <= min(found.classes) < max(found.classes) < CLASSES


def test_classes_that_the_holdout_left_one_image_are_left_out_and_told(pruned):
    _, report = pruned
    note = "5 classes with fewer than 2 calibration images left out of the class pairs: 0, 1, 2, 3, 4"
    assert all(note in group["notes"] for group in report["groups"])


def test_the_calibration_sample_grows_with_the_classes_and_holds_as_many_of_each(folder):
    assert ObserveConfig().images_for(10) == 5000
    assert ObserveConfig().images_for(CLASSES) == 20 * CLASSES
    assert ObserveConfig(images=300).images_for(CLASSES) == 300
    data = load_data(f"imagefolder:{folder}", image_size=SIZE, workers=0)
    first = data.calibration.labels[: 2 * CLASSES - SCARCE]
    assert first.bincount(minlength=CLASSES).tolist() == [1] * SCARCE + [2] * (CLASSES - SCARCE)


def test_the_paper_preset_recovers_as_the_paper_did_on_imagenet(pruned):
    _, report = pruned
    used = report["settings"]["recover"]
    assert (used["lr"], used["group_epochs"], used["weight_decay"], used["share"]) == (0.001, 3.0, 1e-4, 0.25)
    assert (used["optimizer"], used["momentum"], used["schedule"]) == ("sgd", 0.9, "per-layer")
    assert report["settings"]["observe"]["images"] >= 2 * CLASSES
    cut = [group for group in report["groups"] if group["kept"] < group["width"]]
    assert cut
    # 1,995 images are 7 batches of 256; a quarter of them is one, and three passes over it are three updates.
    assert all(group["recovery"]["updates"] == 3 for group in cut)


def test_the_paper_preset_takes_the_papers_batches(pruned):
    run, _ = pruned
    assert read_toml(run / "config.toml")["about"]["batch_size"] == 256


def test_the_paper_preset_holds_nothing_out_unless_a_limit_needs_it():
    paper, limited = preset("paper"), replace_settings(preset("paper"), {"limits": {"max_drop": 1.0}})
    assert batch_and_holdout("paper", "cifar10:DIR", paper, None, None) == (128, 0.0)
    assert batch_and_holdout("paper", "imagefolder:DIR", paper, None, None) == (256, 0.0)
    assert batch_and_holdout("paper", "imagefolder:DIR", limited, 32, None) == (32, 0.1)
    assert batch_and_holdout("paper", "imagefolder:DIR", paper, 32, 0.2) == (32, 0.2)
    assert batch_and_holdout("default", "imagefolder:DIR", preset(), None, None) == (128, 0.1)


def test_the_papers_mobilenet_on_imagenet_decays_more():
    assert paper_recovery("mobilenetv2_imagenet", "imagefolder:DIR") == {
        "weight_decay": 5e-4,
        "lr": 0.001,
        "group_epochs": 3.0,
    }


def test_the_pruned_network_tells_a_thousand_classes_apart_and_is_measured_on_val(pruned, folder):
    run, report = pruned
    assert 0 <= report["after"]["accuracy"] <= 1
    assert report["after"]["macs"] < report["before"]["macs"]
    scope = {}
    exec(NET, scope)
    data = load_data(f"imagefolder:{folder}", image_size=SIZE, batch_size=500, workers=0)
    assert len(data.class_names) == CLASSES
    model = load(run, scope["net"]).eval()
    hits = images = 0
    for inputs, labels in data.test:
        assert inputs.shape[1:] == (3, SIZE, SIZE)
        with torch.no_grad():
            logits = model(inputs)
        assert logits.shape[1] == CLASSES
        hits, images = hits + int((logits.argmax(1) == labels).sum()), images + len(labels)
    assert images == CLASSES
    assert report["after"]["accuracy"] == pytest.approx(hits / images)
