from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

import cosep.cli.probe
from cosep.cli.probe import check_trained, some_of
from cosep.data import Data, load_data
from cosep.errors import ModelError


class Strided(nn.Module):
    """A stage of two convolutions that halves the image in its first or in its second one; the weights fit both."""

    def __init__(self, first, second):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 1, stride=first), nn.Conv2d(16, 4, 3, stride=second, padding=1)

    def forward(self, x):
        scores = self.conv2(torch.relu(self.conv1(x))).mean((2, 3))
        return scores - scores.mean(0)


@pytest.fixture
def told(monkeypatch):
    screen = StringIO()
    monkeypatch.setattr(cosep.cli.probe, "console", Console(file=screen, width=1000))
    return screen


def data_of(batches):
    return Data("made", batches, batches, None, batches, tuple("abcd"), (3, 8, 8))


def labelled_by(model):
    images = torch.randn(300, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return data_of([(images, model(images).argmax(1))])


def test_weights_of_the_variant_with_other_strides_are_refused_and_it_is_named(monkeypatch, told):
    torch.manual_seed(0)
    real, other = Strided(2, 1), Strided(1, 2)
    other.load_state_dict(real.state_dict())
    data = labelled_by(real)
    monkeypatch.setattr(cosep.cli.probe, "twin", lambda spec: "net_v1")
    monkeypatch.setattr(cosep.cli.probe, "load_model", lambda name, classes: Strided(2, 1))
    with pytest.raises(ModelError, match=r"the weights are of net_v1, not of net: .* 100.00 % are right as net_v1"):
        check_trained("net", other, data)
    monkeypatch.setattr(cosep.cli.probe, "load_model", lambda name, classes: Strided(1, 2))
    check_trained("net_v1", real, data)  # the other way round all is well
    assert not told.getvalue()


def test_two_variants_that_are_as_good_as_each_other_are_not_told_apart(monkeypatch, told):
    """Labels that neither knows: differences are chance, and a warning is all that is due."""
    torch.manual_seed(0)
    images = torch.randn(300, 3, 8, 8)
    monkeypatch.setattr(cosep.cli.probe, "twin", lambda spec: "net_v1")
    monkeypatch.setattr(cosep.cli.probe, "load_model", lambda name, classes: Strided(2, 1))
    check_trained("net", Strided(1, 2), data_of([(images, torch.randint(0, 4, (300,)))]))
    assert "on 300 images, no better than chance (25.00 %). Are these the weights" in told.getvalue()
    told.truncate(0)
    check_trained("net", Strided(1, 2), data_of([(images, torch.randint(0, 4, (300,)))]), quiet=True)
    assert not told.getvalue().strip("\0")


def test_a_network_that_knows_its_data_is_not_remarked_upon(told):
    torch.manual_seed(0)
    model = Strided(1, 2)
    check_trained("resnet20", model, labelled_by(model))
    assert not told.getvalue()


def test_soft_labels_are_left_to_the_run(told):
    check_trained("resnet20", Strided(1, 2), data_of([(torch.randn(4, 3, 8, 8), torch.eye(4))]))
    assert not told.getvalue()


def test_images_without_labels_say_nothing_of_the_weights(told):
    check_trained("resnet20", Strided(1, 2), data_of([torch.randn(4, 3, 8, 8)]))
    assert not told.getvalue()


def test_the_images_are_spread_over_all_classes():
    """Image folders lie class by class; the first of them would be of a class or two."""
    loader = load_data("digits").holdout
    loader = loader.subset(loader.labels.argsort())
    labels = torch.cat([labels for _, labels in some_of(loader, 40)])
    assert len(labels) == 40
    assert labels.unique().tolist() == list(range(10))
