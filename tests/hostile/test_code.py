import ast
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import cosep
from cosep.cli.bench import bench_command
from cosep.cli.export import export_command
from cosep.cli.report import report_command
from cosep.data import load_data
from cosep.errors import CosepError, DataError, ModelError, RunError
from cosep.reporting.folders import read_run
from cosep.runs.folder import opened
from cosep.zoo import load_checkpoint, load_model
from tests.hostile.made import ABOUT, Code, carriers, make_run, put, small

SOURCES = sorted(Path(cosep.__file__).parent.rglob("*.py"))


def test_no_source_calls_a_reader_that_runs_code():
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("eval", "exec", "compile", "__import__", "os.system", "pickle.load", "pickle.loads"):
                found.append((path.name, called))
            if called.startswith(
                ("subprocess.", "marshal.", "shelve.", "joblib.", "dill.", "torch.hub.", "torch.jit.load")
            ):
                found.append((path.name, called))
            if called == "torch.load" and given.get("weights_only") != "True":
                found.append((path.name, called))
            if called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
                found.append((path.name, called))
            if called.endswith(("exec_module", "import_module")) and path.name != "plugins.py":
                found.append((path.name, called))
    assert found == []


def torch_files(marker):
    for name, how in (("zip.pt", {}), ("legacy.pt", {"_use_new_zipfile_serialization": False})):
        for value in (
            Code(marker),
            {"0.weight": torch.zeros(1), "x": Code(marker)},
            {"state_dict": {"w": Code(marker)}},
        ):
            buffer = io.BytesIO()
            torch.save(value, buffer, **how)
            yield name, buffer.getvalue()


@pytest.mark.parametrize("number", range(11))
def test_a_checkpoint_with_code_is_refused_and_not_run(tmp_path, number):
    marker = tmp_path / "ran"
    name, data = [*torch_files(marker), *carriers(marker)][number]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match=r"carries code|damaged"):
        load_checkpoint(small(), tmp_path / name)
    assert not marker.exists()


def test_a_torchscript_archive_is_refused(tmp_path):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.script(small()).save(str(tmp_path / "script.pt"))
    with pytest.raises(ModelError, match="carries code"):
        load_checkpoint(small(), tmp_path / "script.pt")


@pytest.mark.parametrize("name", ["data_batch_1", "data_batch_5", "test_batch", "batches.meta"])
@pytest.mark.parametrize("protocol", range(6))
def test_a_data_file_with_code_is_refused_and_not_run(tmp_path, name, protocol):
    marker = tmp_path / "ran"
    good = pickle.dumps({b"data": np.zeros((10, 3072), np.uint8), b"labels": list(range(10))}, protocol=2)
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / file).write_bytes(good)
    (tmp_path / name).write_bytes(pickle.dumps({"label_names": Code(marker), "data": Code(marker)}, protocol=protocol))
    with pytest.raises(DataError, match=rf"{name} asks to run .*refused and nothing was run"):
        load_data(f"cifar10:{tmp_path}")
    assert not marker.exists()


ARTIFACT = ("model.safetensors", "plan.json", "report.json", "manifest.json")
READ_BY = {
    "load": ARTIFACT,
    "report": (*ARTIFACT, "config.toml", "evidence/0.safetensors"),
    "bench": (*ARTIFACT, "config.toml"),
    "export": (*ARTIFACT, "config.toml"),
}


@pytest.mark.parametrize(("reader", "name"), [(reader, name) for reader, names in READ_BY.items() for name in names])
def test_a_run_folder_with_code_is_refused_and_not_run(tmp_path, reader, name):
    folder = make_run(tmp_path / "run", load_model("digits_cnn"))
    put(folder, name, pickle.dumps(Code(tmp_path / "ran")))
    read = {
        "load": lambda: cosep.load(folder, lambda: load_model("digits_cnn")),
        "report": lambda: report_command([folder]),
        "bench": lambda: bench_command(folder, repeats=1, warmup=0, batch="1"),
        "export": lambda: export_command(folder, program=tmp_path / "out.pt2", repeats=1),
    }[reader]
    if (reader, name) == ("report", "model.safetensors"):
        read()  # its seal fits, and the page shows no weights
    else:
        with pytest.raises(CosepError, match=r"damaged|not valid|altered"):
            read()
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_a_run_with_code_is_refused_and_not_run(tmp_path):
    description = {"about": ABOUT}
    with opened(tmp_path / "run", description) as run:
        (run.folder / "checkpoint.safetensors").write_bytes(pickle.dumps(Code(tmp_path / "ran")))
        with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged"):
            run.restore()
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def naming_a_file(tmp_path):
    """A run folder that names a Python file of its own as its model."""
    source = f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nfrom tests.hostile.made import small as build\n"
    folder = tmp_path / "run"
    about = {**ABOUT, "model": f"{folder / 'net.py'}:build", "checkpoint": str(folder / "w.pt")}
    make_run(folder, about=about)
    (folder / "net.py").write_text(source)
    torch.save(small().state_dict(), folder / "w.pt")
    return folder


def test_a_python_file_that_a_run_folder_names_is_not_run_unasked(naming_a_file, tmp_path):
    for command in (
        lambda: bench_command(naming_a_file, repeats=1),
        lambda: export_command(naming_a_file, program=tmp_path / "out.pt2"),
        lambda: report_command([naming_a_file], figures=tmp_path / "figures", data="digits"),
    ):
        with pytest.raises(
            RunError, match=r"net\.py:build', and to open it would run that file\. Nothing was run\. .*--trust"
        ):
            command()
    read_run(naming_a_file)
    assert not (tmp_path / "ran").exists()


def test_a_trusted_python_file_is_run(naming_a_file, tmp_path):
    bench_command(naming_a_file, repeats=1, warmup=0, batch="1", trust=True, json=True)
    assert (tmp_path / "ran").is_dir()


def test_weights_in_an_object_array_are_no_checkpoint(tmp_path):
    np.save(tmp_path / "w.npy", np.array([Code(tmp_path / "ran")], object))
    with pytest.raises(ModelError, match=r"damaged or no checkpoint|carries code"):
        load_checkpoint(small(), tmp_path / "w.npy")
    assert not os.path.exists(tmp_path / "ran")
