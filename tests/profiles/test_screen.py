import pytest
import torch
from torch.testing import assert_close

from cosep.profiles import one_versus_rest, rest_of, top_classes
from cosep.records import ClassMoments


def moments_of(activations, labels, classes):
    """Moments straight from the definition, for tests."""
    groups = [activations[labels == c] for c in range(classes)]
    return ClassMoments(
        torch.tensor([len(g) for g in groups]),
        torch.stack([g.mean(dim=0) for g in groups]),
        torch.stack([(g - g.mean(dim=0)).square().sum(dim=0) for g in groups]),
    )


@pytest.fixture
def sample():
    torch.manual_seed(3)
    labels = torch.arange(90) % 6
    labels[:20] = 0  # unequal classes
    return torch.randn(90, 5, dtype=torch.float64) * 2 + labels.unsqueeze(1) + 30, labels


def test_the_rest_in_closed_form_equals_pooling_the_raw_samples(sample):
    activations, labels = sample
    rest = rest_of(moments_of(activations, labels, 6))
    for label in range(6):
        others = activations[labels != label]
        assert int(rest.count[label]) == len(others)
        assert_close(rest.mean[label], others.mean(dim=0))
        assert_close(rest.variance[label], others.var(dim=0, unbiased=False))


def test_the_best_separated_classes_stay():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 5
    activations = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    activations[labels == 1] += 9
    activations[labels == 4] -= 9
    moments = moments_of(activations, labels, 5)
    assert top_classes([moments], 2) == (1, 4)
    assert one_versus_rest(moments).shape == (5, 4)


def test_no_more_classes_than_the_limit_all_stay(sample):
    moments = moments_of(*sample, 6)
    assert top_classes([moments], 6) == tuple(range(6))
    assert top_classes([moments], 100) == tuple(range(6))


def test_of_equal_classes_the_lower_stay():
    mean = torch.tensor([[0.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
    moments = ClassMoments(torch.full((4,), 10), mean, torch.ones(4, 1, dtype=torch.float64))
    assert top_classes([moments], 2) == (0, 1)


def test_tied_layers_rank_classes_over_all_their_channels(sample):
    activations, labels = sample
    whole = moments_of(activations, labels, 6)
    parts = [whole.of_channels(torch.tensor(c)) for c in ([0, 1], [2, 3, 4])]
    for limit in (2, 3, 4, 5):
        assert top_classes(parts, limit) == top_classes([whole], limit)
