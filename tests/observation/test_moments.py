"""Class moments and histograms of a matrix: against numpy, and the laws of merging."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from cosep.errors import CalibrationError
from cosep.observation import (
    check_moments,
    class_histograms,
    class_moments,
    merge_all,
    merge_all_histograms,
)


def sample(images=60, channels=5, classes=3, seed=0):
    random = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes).repeat(2), random.integers(classes, size=images - 2 * classes)])
    return random.normal(size=(images, channels)) * 3 + labels[:, None], labels


def test_moments_are_those_of_numpy_in_every_class():
    values, labels = sample()
    moments = class_moments(values, labels)
    for c in range(3):
        rows = values[labels == c]
        assert moments.count[c] == len(rows)
        np.testing.assert_allclose(moments.mean[c], rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.variance[c], rows.var(0), rtol=1e-12)
    np.testing.assert_array_equal(moments.low, values.min(0))
    np.testing.assert_array_equal(moments.high, values.max(0))


def test_moments_of_a_case_done_by_hand():
    moments = class_moments(torch.tensor([[1.0], [10.0], [3.0], [10.0]]), torch.tensor([0, 1, 0, 1]))
    assert moments.count.tolist() == [2, 2]
    assert moments.mean.tolist() == [[2.0], [10.0]]
    assert moments.scatter.tolist() == [[2.0], [0.0]]
    assert (moments.low.tolist(), moments.high.tolist()) == ([1.0], [10.0])


@settings(deadline=None, max_examples=60)
@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1e6]))
def test_merging_any_parts_equals_one_pass(cuts, seed, offset):
    values, labels = sample(seed=seed)
    values = values + offset
    edges = [0, *sorted(cuts), 60]
    spans = [(a, b) for a, b in pairwise(edges) if a < b]
    parts = [class_moments(values[a:b], labels[a:b], partial=True) for a, b in spans]
    merged, whole = merge_all(parts), class_moments(values, labels)
    assert torch.equal(merged.count, whole.count)
    assert_close(merged.mean, whole.mean, rtol=1e-12, atol=1e-12)
    assert_close(merged.scatter, whole.scatter, rtol=1e-8 if offset else 1e-12, atol=1e-12)
    assert torch.equal(merged.low, whole.low)
    assert torch.equal(merged.high, whole.high)


def test_the_order_of_parts_does_not_matter():
    values, labels = sample()
    parts = [class_moments(values[i::4], labels[i::4], partial=True) for i in range(4)]
    there, back = merge_all(parts), merge_all(parts[::-1])
    assert_close(there.mean, back.mean, rtol=1e-12, atol=1e-12)
    assert_close(there.scatter, back.scatter, rtol=1e-12, atol=1e-12)


def test_parts_may_know_different_numbers_of_classes():
    values, labels = sample()
    few, rest = labels < 2, labels >= 2
    merged = merge_all(class_moments(values[rows], labels[rows], partial=True) for rows in (few, rest))
    assert_close(merged.mean, class_moments(values, labels).mean, rtol=1e-12, atol=1e-12)


def test_a_tiny_spread_on_a_large_mean_survives():
    values = torch.tensor([[1e8], [1e8 + 1], [1e8 + 2], [0.0], [0.0]], dtype=torch.float64)
    assert_close(class_moments(values, torch.tensor([0, 0, 0, 1, 1])).scatter[0], torch.tensor([2.0]).double())


def test_single_precision_is_accumulated_in_double():
    values = torch.full((1000, 1), 0.1, dtype=torch.float32)
    moments = class_moments(values, torch.arange(1000) % 2)
    assert moments.mean.dtype == moments.scatter.dtype == torch.float64
    assert_close(moments.mean, torch.full((2, 1), float(np.float32(0.1)), dtype=torch.float64), rtol=1e-14, atol=0)


def test_constant_channels_have_no_scatter_and_are_no_error():
    moments = class_moments(torch.full((6, 2), 0.1), [0, 1, 0, 1, 0, 1])
    assert_close(moments.scatter, torch.zeros(2, 2).double(), rtol=0, atol=1e-30)


def test_more_rows_than_one_block_give_the_same():
    values, labels = sample(images=10_000, channels=2)
    moments = class_moments(values, labels)
    np.testing.assert_allclose(moments.variance[1], values[labels == 1].var(0), rtol=1e-11)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_labels_of_every_integer_type_are_taken(kind):
    values, labels = sample()
    assert class_moments(values, labels.astype(kind)).count.tolist() == np.bincount(labels).tolist()


def test_read_only_and_reversed_arrays_are_taken_without_a_warning():
    values, labels = sample()
    values.setflags(write=False)
    moments = class_moments(values[::-1], labels[::-1])
    assert_close(moments.mean, class_moments(values.copy(), labels).mean, rtol=1e-12, atol=1e-12)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 1, 1, 2], r"class 0 has 1, class 1 has 3, class 2 has 1; a variance needs at least 2"),
        ([3, 3, 3, 3, 3], r"one class only \(3\); separability needs at least 2"),
        ([0.0, 1.0, 0.0, 1.0, 1.0], r"labels are torch.float64; they must be integer class numbers. .*labels.long\(\)"),
        ([True, False, True, False, True], r"labels are torch.bool; they must be integer"),
        ([0, 1, -1, 0, 1], r"a label is -1; class numbers start at 0"),
        ([0, 1, 0, 1], r"4 labels came with 5 images"),
        (np.eye(5), r"shape \(5, 5\); they must have \(5,\).*argmax\(1\)"),
        (np.zeros((5, 1), int), r"shape \(5, 1\); they must have \(5,\).*reshape\(-1\)"),
        (["cat", "dog", "cat", "dog", "cat"], r"labels are list, not an array of numbers"),
    ],
)
def test_bad_labels_are_named(labels, message):
    with pytest.raises(CalibrationError, match=message):
        class_moments(torch.randn(5, 2), labels)


def test_labels_beyond_the_declared_classes_are_named():
    with pytest.raises(CalibrationError, match=r"a label is 4, but 3 classes were declared, numbered 0 to 2"):
        class_moments(torch.randn(4, 2), [0, 1, 4, 1], classes=3)


def test_classes_that_have_one_sample_each_are_named_and_long_lists_cut():
    with pytest.raises(CalibrationError, match=r"class 0 has 1, .* class 9 has 1 and 90 more; a variance"):
        class_moments(torch.randn(100, 2), list(range(100)))


def test_two_classes_with_two_samples_are_enough_whatever_the_others_have():
    assert class_moments(torch.randn(5, 2), [0, 0, 3, 3, 1], classes=6).count.tolist() == [2, 1, 0, 2, 0, 0]


def test_fewer_than_two_declared_classes_are_refused():
    with pytest.raises(CalibrationError, match="classes is 1; separability needs at least 2"):
        class_moments(torch.randn(4, 2), [0, 0, 0, 0], classes=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_located(value):
    values = torch.randn(6, 4)
    values[3, 2] = value
    with pytest.raises(CalibrationError, match=rf"channel 2, is {value} for image 3 .*finite numbers"):
        class_moments(values, [0, 1, 0, 1, 0, 1])


def test_numbers_whose_squares_overflow_are_refused():
    with pytest.raises(CalibrationError, match="too large for their squares"):
        class_moments(np.array([[1e200], [-1e200], [0.0], [0.0]]), [0, 0, 1, 1])


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2, 2), (0, 3), (4, 0)])
def test_activations_must_be_a_matrix(shape):
    with pytest.raises(CalibrationError, match=r"they must have \(images, channels\) with at least one of each"):
        class_moments(torch.zeros(shape), [0, 1, 0, 1])


def test_activations_must_be_real_numbers():
    with pytest.raises(CalibrationError, match="activations are complex"):
        class_moments(torch.zeros(4, 2, dtype=torch.complex64), [0, 1, 0, 1])
    with pytest.raises(CalibrationError, match="activations are list, not an array of numbers"):
        class_moments([["a"], ["b"]], [0, 1])


def test_shares_are_checked_once_they_are_together():
    values, labels = sample()
    share = class_moments(values[:1], labels[:1], partial=True)
    with pytest.raises(CalibrationError, match="one class only"):
        check_moments(share)
    check_moments(merge_all([share, class_moments(values[1:], labels[1:], partial=True)]))


def test_merging_nothing_or_different_layers_is_refused():
    values, labels = sample()
    with pytest.raises(CalibrationError, match="no moments to merge"):
        merge_all([])
    with pytest.raises(CalibrationError, match=r"parts of \[2, 5\] channels cannot be merged"):
        merge_all([class_moments(values, labels), class_moments(values[:, :2], labels)])


# --- histograms ----------------------------------------------------------------------------------------------------


def test_histograms_are_those_of_numpy():
    values, labels = sample()
    found = class_histograms(values, labels, bins=7)
    for c in range(3):
        for channel in range(5):
            column = values[:, channel]
            expected, _ = np.histogram(column[labels == c], bins=7, range=(column.min(), column.max()))
            assert found.count[c, channel].tolist() == expected.tolist()


def test_every_sample_of_a_class_is_counted_once():
    values, labels = sample()
    found = class_histograms(values, labels, bins=4, low=torch.full((5,), -1.0), high=torch.full((5,), 1.0))
    assert found.count.sum(2).tolist() == np.bincount(labels)[:, None].repeat(5, 1).tolist()


def test_values_beyond_the_edges_count_in_the_outer_bins():
    values = torch.tensor([[-9.0], [0.1], [0.9], [9.0]])
    found = class_histograms(values, [0, 0, 1, 1], bins=4, low=torch.tensor([0.0]), high=torch.tensor([1.0]))
    assert found.count.tolist() == [[[2, 0, 0, 0]], [[0, 0, 0, 2]]]


def test_a_constant_channel_is_in_one_bin():
    assert class_histograms(torch.full((4, 1), 0.3), [0, 0, 1, 1], bins=3).count.tolist() == [[[2, 0, 0]], [[2, 0, 0]]]


def test_merged_histograms_equal_one_pass():
    values, labels = sample()
    edges = {"low": torch.full((5,), -4.0), "high": torch.full((5,), 6.0), "bins": 8}
    parts = [class_histograms(values[i::2], labels[i::2], **edges) for i in range(2)]
    assert torch.equal(merge_all_histograms(parts).count, class_histograms(values, labels, **edges).count)


def test_histograms_of_different_ranges_do_not_merge():
    values, labels = sample()
    with pytest.raises(CalibrationError, match="different channels, bins or ranges cannot be merged"):
        merge_all_histograms([class_histograms(values, labels), class_histograms(values * 2, labels)])
    with pytest.raises(CalibrationError, match="no histograms to merge"):
        merge_all_histograms([])
