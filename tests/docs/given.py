"""What pages may take for granted: a small trained-looking network with its data, checkpoints, CIFAR files, a run."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from safetensors.torch import save_model
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.data import load_data
from cosep.groups import find_groups
from cosep.zoo import load_model


def build_model():
    return load_model("digits_cnn", classes=10)


def provide(names, folder):
    """The namespace of a page with these names in it; those with a dot or a slash are files, made in the folder."""
    namespace = {"__name__": "__main__"}
    for name in names:
        if name.endswith(".safetensors"):
            save_model(load_model(name.partition(".")[0]), str(folder / name))
        elif name.startswith("data/"):
            _write_cifar(folder / name)
        elif name.endswith("/"):
            shutil.copytree(_finished_run(), folder / name)
        else:
            namespace[name] = _values()[name]
    return namespace


def _values():
    torch.manual_seed(0)
    model, data = build_model(), load_data("digits", holdout=0.1)
    loaders = {name: _loader(batches) for name, batches in (("train", data.train), ("test", data.test))}
    group = next(g for g in find_groups(model, next(iter(loaders["test"]))[0][:1]) if g.scope == "interior")
    images, labels = loaders["train"].dataset.tensors
    return {
        "model": model,
        "build_model": build_model,
        "train_loader": loaders["train"],
        "test_loader": loaders["test"],
        "holdout_loader": _loader(data.holdout),
        "features": images.flatten(1),
        "labels": labels,
        "group": group,
        "kept": tuple(range(group.width // 2)),
        "layout": {},
        "batches": [images],
    }


def _loader(batches, images=200):
    """The first images of a data set in a plain DataLoader, as users have them."""
    inputs, labels = (torch.cat(parts)[:images] for parts in zip(*batches, strict=True))
    return DataLoader(TensorDataset(inputs, labels), batch_size=50)


def _write_cifar(folder):
    """Random images in the published binary format: the real files are 180 MB."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images = 20 if name == "test_batch" else 120  # a quarter of them, the paper's share, is a batch of 128
        pixels = generator.integers(0, 256, (images, 3072), dtype=np.uint8)
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([i % 10]) + p.tobytes() for i, p in enumerate(pixels)))


@cache
def _finished_run():
    folder = Path(mkdtemp(prefix="cosep-docs-"))
    save_model(build_model(), str(folder / "base.safetensors"))
    words = ["prune", "digits_cnn", "--weights", str(folder / "base.safetensors"), "--data", "digits"]
    done = CliRunner().invoke(app, [*words, "--out", str(folder / "run"), "--observe-images", "200", "--quiet"])
    assert done.exit_code == 0, done.output
    return folder / "run"
