import builtins
import os
import warnings

import numpy
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import cosep.storage.export as export_module
from cosep.errors import ExportError
from cosep.measurement import onnx_latency
from cosep.storage import export_onnx, export_torch

BOTH = pytest.mark.parametrize(("export", "suffix"), [(export_onnx, ".onnx"), (export_torch, ".pt2")])


def network(hidden=8):
    """A convolution, BatchNorm with a history, a depthwise convolution and a classifier."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, hidden, 3, padding=1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.Conv2d(hidden, hidden, 3, groups=hidden),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(hidden, 5),
    )
    for _ in range(3):
        net(torch.randn(16, 3, 10, 10) * 2 + 1)
    return net


def cut_by_hand(net, kept):
    """The network with only these hidden channels, cut with nothing but indexing."""
    small = network(len(kept))
    with torch.no_grad():
        for mine, whole in ((small[0], net[0]), (small[1], net[1]), (small[3], net[3])):
            for name, tensor in mine.state_dict().items():
                source = whole.state_dict()[name]
                tensor.copy_(source if source.ndim == 0 else source[kept])
        small[6].weight.copy_(net[6].weight[:, kept])
        small[6].bias.copy_(net[6].bias)
    return small


@BOTH
def test_an_export_of_a_cut_network_computes_the_same_for_every_batch_size(tmp_path, export, suffix):
    net = cut_by_hand(network(), [0, 3, 4, 6, 7]).train()
    net[1].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings(record=True) as caught:
        found = export(net, path, torch.randn(1, 3, 10, 10), **({"opset": 18} if suffix == ".onnx" else {}))
    assert caught == []
    assert found.path == path
    assert found.max_difference <= 1e-5
    assert found.size_bytes == path.stat().st_size
    assert found.batches == (1, 3)
    assert "largest difference" in str(found)
    assert [path.name for path in tmp_path.iterdir()] == [path.name]

    # The caller's network is as it was.
    assert [module.training for module in net] == [True, False, True, True, True, True, True]
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())

    # And the file alone, at a batch size that nobody tried, says what the network says.
    inputs = torch.randn(7, 3, 10, 10)
    if suffix == ".onnx":
        session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
        outputs = session.run(None, {"input": inputs.numpy()})[0]
        assert found.opset == onnx.load(path).opset_import[0].version == 18
        assert b"site-packages" not in path.read_bytes()
        times = onnx_latency({"net": path}, inputs, repeats=2, warmup=1, threads=1)
        assert (times["net"].batch, times["net"].runtime, times["net"].threads) == (7, "onnxruntime", 1)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = torch.export.load(path).module()(inputs).detach().numpy()
    numpy.testing.assert_allclose(outputs, net.eval()(inputs).detach().numpy(), rtol=1e-4, atol=1e-5)


class Restless(nn.Module):
    """Never says the same twice."""

    def forward(self, x):
        return x + torch.rand_like(x)


@BOTH
def test_a_difference_beyond_the_tolerance_is_stated_and_the_old_file_stays(tmp_path, export, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_text("old")
    with pytest.raises(ExportError, match=r"differs from the model by up to 0\.\d+; 0\.\d+ is allowed .*Nothing was"):
        export(Restless(), path, torch.zeros(2, 40))
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_difference_can_be_allowed(tmp_path):
    assert export_torch(Restless(), tmp_path / "m.pt2", torch.zeros(2, 40), tolerance=1.0).max_difference > 0.5


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_the_tolerance_follows_the_scale_of_the_outputs(tmp_path, scale):
    class Noisy(nn.Module):
        def forward(self, x):
            return (x + torch.rand_like(x)) * scale

    with pytest.raises(ExportError, match="differs from the model"):
        export_torch(Noisy(), tmp_path / "m.pt2", torch.zeros(2, 40))
    exact = nn.Linear(4, 3)
    nn.init.constant_(exact.weight, scale)
    assert export_torch(exact, tmp_path / "m.pt2", torch.zeros(2, 4)).max_difference <= 1e-5 * max(scale, 1)


def test_outputs_that_are_all_zero_can_be_compared(tmp_path):
    silent = nn.Linear(4, 3)
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    assert export_torch(silent, tmp_path / "m.pt2", torch.zeros(2, 4)).max_output == 0


class Frozen(nn.Module):
    """Takes its batch size for a constant."""

    def forward(self, x):
        return x + torch.ones(int(x.shape[0]), 1)


class Measured(nn.Module):
    """Asks for its batch size with len, as Transformers do that repeat a class token; exporters take that as fixed."""

    def __init__(self, size=len):
        super().__init__()
        self.token, self.head, self.size = nn.Parameter(torch.ones(1, 1, 4)), nn.Linear(4, 3), size

    def forward(self, x):
        return self.head(torch.cat([self.token.expand(self.size(x), -1, -1), x], 1).mean(1))


class Branching(nn.Module):
    """Decides by the values of its input."""

    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@BOTH
def test_a_forward_that_depends_on_values_cannot_be_exported(tmp_path, export, suffix):
    with pytest.raises(ExportError, match=r"could not export the model .*depends on the values of its input"):
        export(Branching(), tmp_path / f"m{suffix}", torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_fixed_batch_size_is_an_error(tmp_path, export, suffix):
    with pytest.raises(ExportError, match=r"(?s)(could not export|does not run with a batch of 1).*fixed batch"):
        export(Frozen(), tmp_path / f"m{suffix}", torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_batch_size_that_was_asked_for_with_len_is_told_in_one_line_what_to_write_instead(tmp_path, export, suffix):
    example = torch.randn(2, 5, 4)
    with pytest.raises(ExportError, match=r"fixed batch size.*x\.shape\[0\].*not in len\(x\)") as refused:
        export(Measured(), tmp_path / f"m{suffix}", example)
    assert "\n" not in str(refused.value)
    export(Measured(size=lambda x: x.shape[0]), tmp_path / f"m{suffix}", example)  # and that does it


@BOTH
@pytest.mark.parametrize(
    ("model", "place", "example", "message"),
    [
        (Pair(), "m", torch.randn(2, 4), "returned a tuple of 2; one tensor of scores .* is needed. Wrap it"),
        (nn.Linear(4, 3), "m", torch.randn(2, 5), "fails on one sample of the example .*cannot be multiplied"),
        (nn.Linear(4, 3), "m", torch.randn(4), r"shape \(4,\); \(batch, ...\) with a sample is needed"),
        (nn.Linear(4, 3), "m", torch.randn(0, 4), r"shape \(0, 4\)"),
        (nn.Linear(4, 3), "nowhere/m", torch.randn(2, 4), "nowhere is no folder"),
        (nn.Linear(4, 3), "", torch.randn(2, 4), "is a folder; name the file"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(tmp_path, export, suffix, model, place, example, message):
    with pytest.raises(ExportError, match=message):
        export(model, tmp_path / (place and place + suffix), example)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_numbers_are_named(tmp_path):
    broken = nn.Linear(4, 3)
    nn.init.constant_(broken.weight, float("nan"))
    with pytest.raises(ExportError, match=r"own output is not finite.*Check its weights"):
        export_torch(broken, tmp_path / "m.pt2", torch.randn(2, 4))


def test_a_disk_error_is_an_export_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ExportError, match=r"m\.pt2 could not be written: .*No space left"):
        export_torch(nn.Linear(4, 3), tmp_path / "m.pt2", torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_extra_names_what_to_install(tmp_path, monkeypatch, missing):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExportError, match=rf'needs {missing}, .*pip install "cosep\[onnx\]"'):
        export_onnx(nn.Linear(4, 3), tmp_path / "m.onnx", torch.randn(2, 4))
    if missing == "onnxruntime":
        with pytest.raises(ExportError, match=r'pip install "cosep\[onnx\]"'):
            onnx_latency({"m": tmp_path / "m.onnx"}, torch.randn(2, 4))


def test_more_weights_than_an_onnx_file_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "ONNX_LIMIT", 10)
    with pytest.raises(ExportError, match="the weights have 60 bytes; one ONNX file holds 10"):
        export_onnx(nn.Linear(4, 3), tmp_path / "m.onnx", torch.randn(2, 4))


def test_a_file_that_is_no_onnx_model_cannot_be_timed(tmp_path):
    (tmp_path / "m.onnx").write_text("nothing")
    with pytest.raises(ExportError, match=r"onnxruntime cannot open .*m\.onnx"):
        onnx_latency({"m": tmp_path / "m.onnx"}, torch.randn(2, 4))
