"""Nothing is fetched unless asked: with sockets that refuse, everything works."""

import socket
from importlib.util import find_spec

import pytest
import torch

import cosep
from cosep.config import preset, replace_settings
from cosep.data import load_data
from cosep.reporting.folders import draw_page
from cosep.zoo import load_model
from tests.hostile.made import make_run, small


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_args, **_more):
        raise AssertionError("something tried to reach the network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


def test_models_come_without_a_download(offline):
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    assert len(load_model("torchvision:squeezenet1_1", classes=3).state_dict()) == 52


def test_a_saved_model_is_loaded_and_reported_offline(offline, tmp_path):
    folder = make_run(tmp_path / "run")
    cosep.load(folder, small)
    assert "http" not in draw_page(folder).read_text(encoding="utf-8").replace(
        "http://www.w3.org/2000/svg", ""
    ).replace("http-equiv", "")


def test_a_network_is_pruned_offline(offline, tmp_path):
    data = load_data("digits", batch_size=64)
    fast = {
        "observe": {"images": 100}, "rebuild": {"images": 60}, "recover": {"schedule": "none"},
        "device": {"accelerator": "cpu"},
    }  # fmt: skip
    result = cosep.prune(
        small(), data.calibration, config=replace_settings(preset(), fast), example_input=torch.zeros(1, 1, 8, 8)
    )
    assert result.report.groups
