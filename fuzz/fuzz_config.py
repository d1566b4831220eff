"""config.toml: as settings given with --config, and as what a run folder says of itself."""

import random
from contextlib import suppress

import harness
from harness import tomllib  # the covered one

with harness.covered():
    from cosep.cli.common import run_model
    from cosep.cli.options import configured
    from cosep.config import preset, settings
    from cosep.errors import CosepError
    from cosep.runs.folder import read_description
    from cosep.storage.toml import to_toml

FOLDER = harness.SCRATCH / "run"
FOLDER.mkdir()


def test(data: bytes) -> None:
    path = FOLDER / "config.toml"
    path.write_bytes(data)
    with suppress(CosepError):
        settings(configured("default", path, {}))
    read_description(FOLDER)
    run_model(FOLDER)


def mutator(data: bytes, most: int, seed: int) -> bytes:
    """A mutation of the values that is TOML again, where our writer can write it; or of the bytes."""
    chance = random.Random(seed)
    if chance.random() < 0.6:
        with suppress(Exception):
            document = harness.mutated_document(tomllib.loads(data.decode()), chance)
            new = to_toml(document).encode()
            if len(new) <= most:
                return new
    return harness.atheris.Mutate(data, most)


def seeds():
    about = {
        "model": "resnet20", "checkpoint": "", "classes": 10, "input": [3, 32, 32], "data": "digits",
        "class_names": ["a", "b.c"], "batch_size": 128, "holdout": 0.1, "weights_sha256": "0" * 64,
    }  # fmt: skip
    for name in ("default", "paper"):
        yield to_toml({"about": about, **settings(preset(name))}).encode()
    yield to_toml(settings(preset())).encode()
    yield b'seed = 0x10\nselect.degree = 3\n[recover]\nlr = nan\nepochs = 1e3 # "\nx = {a.b = 1, c = [1, 2]}\n'
    yield b"y = '''a'''\nz = 1979-05-27T07:32:00Z\n[[t]]\n[[t]]\n"


if __name__ == "__main__":
    harness.fuzz(test, seeds(), mutator)
