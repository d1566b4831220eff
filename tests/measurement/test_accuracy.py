import pytest
import torch
from sklearn.metrics import accuracy_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cosep.errors import DataError, ModelError
from cosep.measurement import accuracy


class Returns(nn.Module):
    """Answers every batch with what `make` makes of it."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def loader(n=50, classes=4, batch_size=16):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n, 6, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.randint(classes, (n,), generator=generator)), batch_size=batch_size)


def test_accuracy_is_what_scikit_learn_says(classifier):
    inputs, labels = loader().dataset.tensors
    with torch.no_grad():
        predicted = classifier.eval()(inputs).argmax(1)
    assert accuracy(classifier, loader()) == pytest.approx(accuracy_score(labels, predicted), abs=1e-12)


def test_an_uneven_last_batch_counts_by_its_samples():
    identity = Returns(lambda x: x)
    batches = [(torch.eye(3), torch.tensor([0, 1, 2])), (torch.eye(3)[:1], torch.tensor([2]))]
    assert accuracy(identity, batches) == 3 / 4


def test_every_training_flag_is_as_it_was(classifier):
    classifier.train()
    classifier[1].eval()
    accuracy(classifier, loader())
    assert [module.training for module in classifier] == [True, False, True, True, True]


def test_training_flags_and_statistics_survive_a_failure(classifier):
    classifier.train()
    before = classifier[1].running_mean.clone()
    with pytest.raises(DataError, match="outputs"):
        accuracy(classifier, loader(classes=9))
    assert all(module.training for module in classifier.modules())
    assert torch.equal(before, classifier[1].running_mean)


def test_the_callback_is_told_how_many_samples_are_done(classifier):
    seen = []
    accuracy(classifier, loader(n=40), on_batch=seen.append)
    assert seen == [16, 32, 40]


def test_scores_that_are_not_numbers_are_wrong():
    broken = Returns(lambda x: torch.full((len(x), 3), float("nan")))
    assert accuracy(broken, [(torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))]) == 0


@pytest.mark.parametrize("batches", [[], [(torch.ones(0, 6), torch.zeros(0, dtype=torch.int64))]])
def test_a_loader_without_samples_has_no_accuracy(classifier, batches):
    with pytest.raises(DataError, match="no samples"):
        accuracy(classifier, batches)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.ones(3, 6), r"batch 0 of the loader has inputs without labels"),
        ((torch.ones(3, 6),), r"has inputs without labels"),
        ({"image": torch.ones(3, 6)}, "a dict with the keys 'image'; a pair of tensors"),
        ((torch.ones(3, 6), ["a", "b", "c"]), r"a tuple of 2 \(Tensor, list\); a pair of tensors"),
        ((torch.ones(3, 6), torch.eye(4)[:3]), r"float32 of shape \(3, 4\).*argmax"),
        ((torch.ones(3, 6), torch.ones(3)), "float32.*integers"),
        ((torch.ones(3, 6), torch.zeros(2, dtype=torch.int64)), "3 inputs and 2 labels"),
        ((torch.ones(3, 6), torch.tensor([0, 1, 4])), r"label 4, but the model has 4 outputs.*0 \.\.\. 3"),
        ((torch.ones(3, 6), torch.tensor([0, -1, 3])), "label -1, but the model has 4 outputs"),
    ],
)
def test_a_batch_that_is_not_usable_is_named(classifier, batch, message):
    with pytest.raises(DataError, match=message):
        accuracy(classifier, [batch])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: (x, x), r"a tuple of 2; one tensor.*return self\.model\(x\)\[0\]"),
        (lambda x: {"logits": x}, r"a dict with the keys 'logits'.*return self\.model\(x\)\['logits'\]"),
        (lambda x: x[:, :, None], r"shape \(3, 6, 1\); \(batch, classes\) is needed"),
    ],
)
def test_a_model_that_returns_something_else_is_told_how_to_be_wrapped(make, message):
    with pytest.raises(ModelError, match=message):
        accuracy(Returns(make), [(torch.ones(3, 6), torch.zeros(3, dtype=torch.int64))])
