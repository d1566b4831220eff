"""Networks in 8 bits: ranges from the calibration images, figures beside the float file's, and refusals."""

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cosep
from cosep.errors import DataError, ExportError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network with a float file, and images of three classes that it tells apart."""
    folder = tmp_path_factory.mktemp("quantized")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())
    net = nn.Sequential(*net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3)).eval()
    labels = torch.arange(96) % 3
    images = torch.randn(96, 3, 8, 8)
    images[torch.arange(96), labels] += 2  # each class has a colour
    with torch.no_grad():  # the last layer is solved for the classes: every image is far from a border
        features = torch.cat([net[:-1](images), torch.ones(96, 1)], dim=1)
        gram = features.T @ features + 1e-4 * torch.eye(33)
        solution = torch.linalg.solve(gram, features.T @ F.one_hot(labels).float())
        net[-1].weight.copy_(solution[:-1].T)
        net[-1].bias.copy_(solution[-1])
    cosep.export_onnx(net, folder / "net.onnx", images[:1])
    return folder, net, list(zip(images.split(20), labels.split(20), strict=True))


def test_a_quantized_file_holds_bytes_and_nearly_the_same_network(made):
    folder, _, batches = made
    found = cosep.quantize_onnx(folder / "net.onnx", folder / "net8.onnx", batches, evaluate=batches)
    assert found.path.stat().st_size == found.size_bytes < found.float_bytes
    assert found.float_accuracy == 1.0
    assert found.accuracy == found.agreement > 0.9
    assert found.images == 96
    model = onnx.load(found.path)
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    weights = [each for each in model.graph.initializer if len(each.dims) == 4]
    assert weights
    assert all(each.data_type == onnx.TensorProto.INT8 for each in weights)
    assert [path.name for path in folder.iterdir() if path.name not in ("net.onnx", "net8.onnx")] == []


def test_only_so_many_images_are_looked_at_and_labels_are_not_needed(made):
    folder, _, batches = made
    unlabelled = [inputs for inputs, _ in batches]
    found = cosep.quantize_onnx(folder / "net.onnx", folder / "few.onnx", unlabelled, images=30)
    assert found.images == 30
    assert found.accuracy is None
    found.path.unlink()


def test_what_cannot_be_quantized_is_refused_in_a_sentence(made, tmp_path):
    folder, _, batches = made
    with pytest.raises(DataError, match="gave no image"):
        cosep.quantize_onnx(folder / "net.onnx", tmp_path / "a.onnx", [])
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(ExportError, match="could not quantize"):
        cosep.quantize_onnx(tmp_path / "bad.onnx", tmp_path / "a.onnx", batches)
    assert not (tmp_path / "a.onnx").exists()
