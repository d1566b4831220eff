"""The package as strangers get it: what is in its files, that they install and run elsewhere, and what is pinned."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cosep

ROOT = Path(__file__).parents[2]
CONSUMER = """
import cosep
from torch import nn


def smaller(model: nn.Module, batches: list[object]) -> nn.Module:
    config = cosep.replace_settings(cosep.preset("default"), {"seed": 1})
    result = cosep.prune(model, batches, config=config)
    reveal_type(result.plan)
    return result.model


wrong: int = cosep.preset()
cosep.prune(model="not a model")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, the wheel made from the sdist, as an index would."""
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def stranger(built, tmp_path_factory):
    """A Python elsewhere that has the wheel, and its dependencies from this environment, but not the repository."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    here, there = (
        Path(
            subprocess.check_output([p, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)[:-1]
        )
        for p in (sys.executable, python)
    )
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", built[0]]
    subprocess.run(pip, check=True, capture_output=True)
    # A plain line in a .pth file adds a folder without reading the .pth files in it, so not our editable install.
    (there / "dependencies.pth").write_text(f"{here}\n")
    return folder


def run_elsewhere(stranger, *words):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [stranger / "env" / "bin" / words[0], *words[1:]], cwd=stranger, env=environment, capture_output=True, text=True
    )


def test_the_wheel_holds_the_package_with_its_types_and_data_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    ours = {f"cosep/{p.relative_to(ROOT / 'src/cosep').as_posix()}" for p in (ROOT / "src/cosep").rglob("*.py")}
    assert ours <= names
    assert {"cosep/py.typed", "cosep/data/digits.npz"} <= names
    assert any(name.startswith("cosep/reporting/assets/") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "cosep",
        "cosep_command.py",
        f"cosep-{cosep.__version__}.dist-info",
    }


def test_the_sdist_holds_what_is_needed_to_test_it(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"pyproject.toml", "constraints.txt", "Makefile", "mkdocs.yml", "README.md", "LICENSE", "CHANGELOG.md"}
    wanted |= {"src/cosep/py.typed", "tests/conftest.py", "docs/index.md", "benchmarks/cutting.py"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))]


def test_it_runs_without_the_repository(stranger):
    assert run_elsewhere(stranger, "cosep", "--version").stdout == f"cosep {cosep.__version__}\n"
    code = "import cosep, json; print(json.dumps([cosep.__file__, len(cosep.load_model('resnet20').state_dict())]))"
    file, tensors = json.loads(run_elsewhere(stranger, "python", "-c", code).stdout)
    assert Path(file).is_relative_to(stranger)
    assert tensors > 100


def test_a_type_checker_sees_our_types_through_the_wheel(stranger):
    (stranger / "consumer.py").write_text(CONSUMER)
    # What is asked is whether our types are seen; torch's own would take half a minute to read.
    (stranger / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,numpy.*,lightning_fabric.*]\nfollow_imports = skip\n")
    flags = ["--python-executable", stranger / "env" / "bin" / "python", "--config-file=mypy.ini", "--cache-dir=cache"]
    words = [sys.executable, "-m", "mypy", *flags, "consumer.py"]
    done = subprocess.run(words, cwd=stranger, capture_output=True, text=True)
    assert 'Revealed type is "cosep.records.Plan"' in done.stdout, done.stdout + done.stderr
    assert re.search(r'consumer.py:13: error: .*"PruneConfig", variable has type "int"', done.stdout)
    assert re.search(r'consumer.py:14: error: .*Missing positional argument "calibration"', done.stdout)


def test_every_dependency_is_pinned_for_every_python_that_is_declared():
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line]
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert declared == ["3.10", "3.11", "3.12", "3.13"]
    asked = re.findall(
        r'^  "([a-z][^"]*)",', text[text.index("dependencies = [") : text.index("[project.scripts]")], re.M
    )
    for python in declared:
        environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
        active = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        versions = {canonicalize_name(pin.name): str(pin.specifier) for pin in active}
        assert len(versions) == len(active), "a package has two pins for one Python"
        for wanted in map(Requirement, asked):
            if wanted.name != "cosep" and (wanted.marker is None or wanted.marker.evaluate(environment)):
                version = versions[canonicalize_name(wanted.name)].removeprefix("==")
                assert wanted.specifier.contains(version), f"{wanted} on Python {python}: {version} is pinned"


def test_the_code_is_checked_against_the_oldest_python():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.10"' in text
    assert 'target-version = "py310"' in text  # ruff refuses newer syntax
    assert 'python_version = "3.10"' in text  # and mypy newer functions of the standard library


def test_the_table_of_dependencies_lists_exactly_those_that_are_installed_with_the_package():
    figures = json.loads((ROOT / "benchmarks" / "dependencies.json").read_text())["packages"]
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("\ndependencies = [") : text.index("[project.optional-dependencies]")]
    asked = {Requirement(found).name for found in re.findall(r'^  "([^"]+)"', section, re.M)}
    assert set(figures) == asked - {"tomli"}  # which Python 3.11 has itself
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for name, row in figures.items():
        assert f"| {name} {row['version'].partition('+')[0]} |" in page, name
        assert f"| {row['import_ms']:.0f} | {row['alone_mb']:.1f} | {row['with_mb']:.1f} |" in page, name
