"""A real run on the embedded digits, and a browser to look at pages with."""

from functools import partial
from pathlib import Path

import pytest

from cosep.config import DeviceConfig, preset, replace_settings
from cosep.data import load_data
from cosep.pipeline import prune
from cosep.recovery.training import TrainConfig, train
from cosep.runs.fabric import launched
from cosep.zoo import load_model
from tests.reporting.browser import Browser, Page, find_browser

AXE = Path(__file__).parents[2] / ".venv" / "browser" / "axe.min.js"


@pytest.fixture(scope="session")
def trained():
    data = load_data("digits", batch_size=64)
    build = partial(load_model, "digits_cnn", classes=10)
    fabric = launched(DeviceConfig(accelerator="cpu"))
    return data, train(build, data.train, TrainConfig(epochs=1, seed=0), fabric=fabric)


@pytest.fixture(scope="session")
def make_run(trained, tmp_path_factory):
    data, base = trained

    def make(name, kind="default", callbacks=None, **changes):
        """A run whose groups are chosen by CoSeP, one after another: what there is evidence of."""
        fast = {
            "order": "one-by-one",
            "select": {"criterion": "cosep", "width_rule": "knee"},
            "observe": {"images": 300},
            "rebuild": {"images": 60},
            "recover": {"share": 0.2, "group_epochs": 1.0},
            "device": {"accelerator": "cpu"},
        }
        folder = name if isinstance(name, Path) else tmp_path_factory.mktemp("runs") / name
        about = {"model": "digits_cnn", "data": "digits", "classes": 10, "class_names": list(data.class_names)}
        config = replace_settings(replace_settings(preset(kind), fast), changes)
        prune(
            base, data.calibration, data.test, config=config, train=data.train, holdout=data.holdout, run=folder,
            about=about, callbacks=callbacks,
        )  # fmt: skip
        return folder

    return make


@pytest.fixture(scope="session")
def real_run(make_run):
    return make_run("first")


@pytest.fixture(scope="session")
def real_runs(make_run, real_run):
    return [real_run, make_run("second", seed=1), make_run("paper", "paper")]


@pytest.fixture(scope="session")
def browser():
    path = find_browser()
    if path is None:
        pytest.skip("there is no Chromium here: `sh tests/reporting/browser.sh` installs Debian's")
    browser = Browser(path)
    yield browser
    browser.close()


@pytest.fixture
def page(browser):
    pages = []

    def make(path, **how):
        pages.append(Page(browser, **how))
        return pages[-1].open(path)

    yield make
    for page in pages:
        page.close()


@pytest.fixture(scope="session")
def axe():
    if not AXE.exists():
        pytest.skip("there is no axe-core here: `sh tests/reporting/browser.sh` fetches it from npm")
    return AXE.read_text(encoding="utf-8")
