"""A small network trained on the embedded digits: the real thing, in seconds."""

from functools import partial

import pytest

from cosep.config import DeviceConfig, preset, replace_settings
from cosep.data import load_data
from cosep.recovery.training import TrainConfig, train
from cosep.runs.fabric import launched
from cosep.zoo import load_model

CPU = {"device": {"accelerator": "cpu"}}


def trained(seed):
    data = load_data("digits", seed=seed, batch_size=64)
    build = partial(load_model, "digits_cnn", classes=10)
    return train(build, data.train, TrainConfig(epochs=10, seed=seed), fabric=launched(DeviceConfig(accelerator="cpu")))


@pytest.fixture(scope="session")
def digits():
    return load_data("digits", batch_size=64)


@pytest.fixture(scope="session")
def base():
    return trained(0)


@pytest.fixture
def quick():
    """Settings for a run of a second or two: few images, few updates."""

    def make(preset_name="default", **changes):
        fast = {
            "order": "one-by-one",
            "select": {"criterion": "cosep", "width_rule": "knee"},
            "observe": {"images": 400},
            "rebuild": {"images": 200},
            "recover": {"share": 0.25, "group_epochs": 1.0},
        }
        for stage, values in changes.items():
            fast[stage] = {**fast.get(stage, {}), **values} if isinstance(values, dict) else values
        return replace_settings(preset(preset_name), {**CPU, **fast})

    return make
