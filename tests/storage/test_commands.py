import json
import shutil
import subprocess
import sys

import numpy
import onnxruntime
import pytest
import torch
import typer
from typer.testing import CliRunner

from cosep.cli.bench import bench_command
from cosep.cli.export import export_command
from cosep.errors import ConfigError, ModelError, RunError
from cosep.records import Plan
from cosep.storage.artifacts import save
from cosep.surgery.cut import apply_layout
from cosep.surgery.plan import fingerprint

MODEL = """
from torch import nn

def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )

small.input_shape = (3, 12, 12)
"""

app = typer.Typer()
app.command("bench")(bench_command)
app.command("export")(export_command)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a model in a file of the user's, half of whose hidden channels are gone."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "nets.py").write_text(MODEL)
    scope = {}
    exec(MODEL, scope)
    uncut = scope["small"]()
    kept = (0, 2, 3, 7)
    plan = Plan((), {("0", "out"): kept, ("1", "out"): kept, ("3", "in"): kept}, fingerprint(uncut))
    save(folder / "run", apply_layout(uncut, plan.layout), plan, {})
    spec = f"{folder / 'nets.py'}:small"
    (folder / "run" / "config.toml").write_text(f"[about]\nmodel = {json.dumps(spec)}\ninput = [3, 12, 12]\n")
    return folder / "run"


def call(*arguments):
    """What the command prints on standard output and for the reader; its own errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    if result.exit_code:
        raise AssertionError(result.output)
    return result.stdout


def test_bench_times_both_networks_single_and_in_batches(run):
    output = call("bench", run, "--trust", "--json", "--batch", "1,4", "--repeats", 3, "--warmup", 1, "--threads", 1)
    found = json.loads(output)["latency"]
    assert [(entry["model"], entry["batch"]) for entry in found] == [
        ("before", 1), ("after", 1), ("before", 4), ("after", 4),
    ]  # fmt: skip
    for entry in found:
        assert (entry["threads"], entry["memory_format"], entry["repeats"]) == (1, "contiguous", 3)
        assert 0 < entry["p10_ms"] <= entry["median_ms"] <= entry["p90_ms"]
        assert entry["throughput"] == pytest.approx(entry["batch"] / entry["median_ms"] * 1e3)


def test_bench_follows_the_papers_protocol_mean_and_deviation_over_seeds_and_an_average(run, tmp_path, capsys):
    other = shutil.copytree(run, tmp_path / "other")
    words = ["bench", run, other, "--trust", "--device", "cpu", "--batch", "1,3", "--repeats", 4, "--seeds", 3]
    found = json.loads(call(*words, "--warmup", 0, "--threads", 1, "--json"))
    assert all((entry["seeds"], entry["repeats"]) == (3, 4) for entry in found["latency"])
    for row in found["average"]:
        means = [entry["mean_ms"] for entry in found["latency"] if entry["batch"] == row["batch"]]
        before, after, before_other, after_other = means
        assert row["change"] == pytest.approx(50 * (after / before + after_other / before_other) - 100)
    bench_command(run, [other], batch="1", repeats=2, seeds=2, warmup=0, threads=1, trust=True)
    shown = capsys.readouterr().err
    assert "average" in shown
    assert "±" in shown
    assert "2 rounds in turn with each of 2 seeds" in shown


def test_bench_names_its_conditions(run, capsys):
    bench_command(run, batch="2", repeats=2, warmup=0, threads=1, memory_format="channels_last", trust=True)
    shown = capsys.readouterr().err
    assert "torch on cpu, 1 thread, channels_last, 2 rounds in turn" in shown
    assert "as fast" in shown


def test_bench_of_a_run_from_python_needs_the_model_named(run, tmp_path):
    for path in run.iterdir():
        if path.name != "config.toml":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.toml").write_text("[about]\n")
    with pytest.raises(RunError, match="names no model"):
        bench_command(tmp_path, repeats=1)
    spec = f"{run.parent / 'nets.py'}:small"
    assert json.loads(call("bench", tmp_path, "--model", spec, "--repeats", 1, "--threads", 1, "--json"))["latency"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": "1,x"}, "--batch is '1,x'; give batch sizes with commas"),
        ({"device": "cuda:77"}, "--device is 'cuda:77', which cannot be used here"),
        ({"batch": "0"}, "--batch is 0; it must be at least 1"),
        ({"memory_format": "nhwc"}, "--memory-format is 'nhwc'; it must be one of 'contiguous', 'channels_last'"),
    ],
)
def test_bench_refuses_settings_that_make_no_sense(run, settings, message):
    with pytest.raises(ConfigError, match=message):
        bench_command(run, **settings)


def test_export_writes_the_file_and_compares_sizes_and_times(run, tmp_path):
    path = tmp_path / "m.onnx"
    found = json.loads(call("export", run, "--trust", "--onnx", path, "--repeats", 2, "--threads", 1, "--json"))["onnx"]
    assert found["file"] == str(path)
    assert found["bytes"]["after"] == path.stat().st_size < found["bytes"]["before"]
    assert found["max_difference"] < 1e-4
    assert [(entry["model"], entry["runtime"]) for entry in found["latency"]] == [
        ("before", "onnxruntime"), ("after", "onnxruntime"),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_export_tells_the_difference_and_ends_with_the_file(run, tmp_path, capsys):
    export_command(run, program=tmp_path / "m.pt2", repeats=1, threads=1, trust=True)
    shown = capsys.readouterr().err.split("\n")
    assert shown[-2] == str(tmp_path / "m.pt2")
    assert "largest difference from the pruned network" in shown[-3]


def test_export_needs_something_to_write(run):
    with pytest.raises(ConfigError, match="give --onnx FILE, --program FILE or both"):
        export_command(run)


DATA = """
import torch

def halves():
    x = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x.split(16), (torch.arange(64) % 5).split(16)))
    return {"train": batches, "test": batches[:2]}
"""


def test_export_quantizes_beside_the_float_file(run, tmp_path, capsys):
    (tmp_path / "data.py").write_text(DATA)
    path, data = tmp_path / "m.onnx", f"{tmp_path / 'data.py'}:halves"
    words = ("export", run, "--trust", "--onnx", path, "--int8", "--data", data, "--repeats", 1, "--threads", 1)
    found = json.loads(call(*words, "--json"))["int8"]
    small = tmp_path / "m.int8.onnx"
    assert found["file"] == str(small)
    assert found["bytes"] == {"float": path.stat().st_size, "int8": small.stat().st_size}
    assert found["images"] == 64
    assert [entry["model"] for entry in found["latency"]] == ["float", "int8"]
    scope = {}
    exec(DATA, scope)
    session = onnxruntime.InferenceSession(str(small), providers=["CPUExecutionProvider"])
    right = [session.run(None, {"input": x.numpy()})[0].argmax(1) == y.numpy() for x, y in scope["halves"]()["test"]]
    assert found["accuracy"]["int8"] == pytest.approx(float(numpy.concatenate(right).mean()))
    with pytest.raises(ConfigError, match="give --onnx FILE too"):
        export_command(run, program=path, int8=True)
    with pytest.raises(RunError, match="names no data"):
        export_command(run, onnx=path, int8=True)


def test_a_program_runs_where_cosep_is_not(run, tmp_path):
    export_command(run, program=tmp_path / "m.pt2", repeats=1, threads=1, trust=True)
    script = "import sys; sys.modules['cosep'] = None\nimport torch, warnings; warnings.simplefilter('ignore')\n"
    script += f"print(tuple(torch.export.load({str(tmp_path / 'm.pt2')!r}).module()(torch.ones(2, 3, 12, 12)).shape))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "(2, 5)", done.stderr


def test_export_of_an_unknown_model_says_so(run, tmp_path):
    with pytest.raises(ModelError, match="resnet21"):
        export_command(run, program=tmp_path / "m.pt2", model="resnet21")


def test_bench_leaves_the_number_of_threads_alone(run):
    threads = torch.get_num_threads()
    bench_command(run, batch="1", repeats=1, threads=1, trust=True)
    assert torch.get_num_threads() == threads
