"""Backward elimination with exact re-solving, against least squares and against every subset."""

from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

from cosep.criteria.elimination import Consumer, eliminate
from cosep.errors import CalibrationError


def layer(seed, units=7, taps=2, outputs=4, rows=150):
    """Correlated inputs (rows, units * taps), weights (outputs, units, taps) and a metric (outputs, outputs)."""
    g = torch.Generator().manual_seed(seed)
    columns = units * taps
    mixing = torch.randn(columns, columns, generator=g, dtype=torch.float64)
    inputs = torch.randn(rows, columns, generator=g, dtype=torch.float64) @ mixing
    weight = torch.randn(outputs, units, taps, generator=g, dtype=torch.float64)
    root = torch.randn(outputs, outputs, generator=g, dtype=torch.float64)
    return inputs, weight, root @ root.T


def energy(errors, metric):
    return float(torch.einsum("no,op,np->", errors, metric, errors))


def lost(inputs, weight, metric, kept):
    """What is left when the kept units alone are fitted to the outputs by least squares, and the outputs' energy."""
    outputs = inputs @ weight.flatten(1).T
    columns = [unit * weight.shape[2] + tap for unit in kept for tap in range(weight.shape[2])]
    some = inputs[:, columns]
    return energy(outputs - some @ torch.linalg.lstsq(some, outputs).solution, metric), energy(outputs, metric)


def consumer(inputs, weight, metric=None):
    return Consumer(inputs.T @ inputs, weight, metric)


@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_every_width_is_that_of_least_squares_on_the_kept_channels(seed):
    inputs, weight, metric = layer(seed)
    found = eliminate(consumer(inputs, weight, metric), ridge=0)
    for k in range(1, 8):
        for choice in (found.nested(k), found.kept(k)):
            left, whole = lost(inputs, weight, metric, choice.kept.tolist())
            assert len(choice.kept) == k
            assert choice.error == pytest.approx(left / whole, abs=1e-7)
    assert found.errors[0] == pytest.approx(1, abs=1e-7)


def test_each_step_removes_the_channel_that_costs_least():
    inputs, weight, metric = layer(5)
    found = eliminate(consumer(inputs, weight, metric), ridge=0)
    for k in range(1, 7):
        before = found.nested(k + 1).kept.tolist()
        costs = {u: lost(inputs, weight, metric, [v for v in before if v != u])[0] for u in before}
        assert (set(before) - set(found.nested(k).kept.tolist())) == {min(costs, key=costs.__getitem__)}


def test_swaps_end_where_no_exchange_helps_and_mostly_at_the_best_of_all_subsets():
    best_found = 0
    for seed in range(12):
        inputs, weight, metric = layer(seed)
        found = eliminate(consumer(inputs, weight, metric), ridge=0)
        errors = {some: lost(inputs, weight, metric, some)[0] for some in combinations(range(7), 3)}
        first, swapped = (tuple(choice.kept.tolist()) for choice in (found.nested(3), found.kept(3)))
        near = [some for some in errors if len(set(some) & set(swapped)) == 2]
        assert errors[swapped] <= errors[first]
        assert errors[swapped] <= min(errors[some] for some in near) * (1 + 1e-6)
        best_found += errors[swapped] <= min(errors.values()) * (1 + 1e-6)
    assert best_found >= 9


def test_the_cost_of_several_consumers_is_their_sum():
    first, second = layer(1), layer(2, taps=3, outputs=5)
    found = eliminate([consumer(*first), consumer(*second)], ridge=0)
    for k in (2, 4):
        for choice in (found.nested(k), found.kept(k)):
            parts = [lost(*each, choice.kept.tolist()) for each in (first, second)]
            assert choice.error == pytest.approx(sum(p[0] for p in parts) / sum(p[1] for p in parts), abs=1e-7)


def test_the_scale_of_a_channel_does_not_matter():
    inputs, weight, metric = layer(3)
    scale = 10.0 ** torch.tensor([-3, 2, 0, 1, -1, 3, -2], dtype=torch.float64)
    plain = eliminate(consumer(inputs, weight, metric), ridge=1e-2)
    scaled = eliminate(consumer(inputs * scale.repeat_interleave(2), weight / scale[None, :, None], metric), ridge=1e-2)
    assert plain.order.tolist() == scaled.order.tolist()
    assert_close(plain.errors, scaled.errors)
    assert plain.kept(3).kept.tolist() == scaled.kept(3).kept.tolist()


def test_a_metric_that_sees_one_output_chooses_for_that_output():
    inputs, weight, _ = layer(4)
    metric = torch.zeros(4, 4, dtype=torch.float64)
    metric[2, 2] = 3
    seen, alone = eliminate(consumer(inputs, weight, metric)), eliminate(consumer(inputs, weight[2:3]))
    assert seen.order.tolist() == alone.order.tolist()
    assert_close(seen.errors, alone.errors)


def test_blocks_keep_equally_many():
    inputs, weight, metric = layer(6, units=8)
    found = eliminate(consumer(inputs, weight, metric), blocks=2)
    for k in (2, 4, 6):
        for choice in (found.nested(k), found.kept(k)):
            assert (choice.kept < 4).sum() == k // 2
    with pytest.raises(ValueError, match="multiple of 2"):
        found.kept(3)


@pytest.mark.parametrize("ridge", [0, 1e-3])
def test_dead_and_duplicate_channels_go_first_and_cost_nothing(ridge):
    inputs, weight, metric = layer(7)
    inputs[:, 2:4] = 0
    inputs[:, 8:10] = inputs[:, :2]  # unit 4 is unit 0 again
    found = eliminate(consumer(inputs, weight, metric), ridge=ridge)
    assert found.order[0] == 1 if ridge else 1 in found.order[:2]
    assert set(found.order[:2].tolist()) - {1} < {0, 4}  # whichever has the smaller weights
    assert float(found.errors[5]) < 1e-6 + 2 * ridge
    assert bool(found.errors.isfinite().all())
    assert bool((found.errors.diff() <= 1e-12).all())


def test_products_in_single_precision_with_far_fewer_rows_than_columns_are_no_trouble():
    inputs, weight, metric = layer(8, units=40, taps=9, outputs=3, rows=30)
    single = inputs.float()
    gram = (single.T @ single).double()
    found = eliminate(Consumer(gram, weight, metric), ridge=1e-6)
    left, whole = lost(inputs, weight, metric, found.nested(2).kept.tolist())
    assert found.nested(2).error == pytest.approx(left / whole, abs=1e-3)
    assert bool(found.errors.isfinite().all())


def test_removals_gathered_over_many_columns_agree_with_least_squares():
    inputs, weight, metric = layer(9, units=60, taps=9, outputs=3, rows=2000)
    found = eliminate(consumer(inputs, weight, metric), ridge=0, swaps=2)
    for k in (50, 35, 20, 3):
        for choice in (found.nested(k), found.kept(k)):
            left, whole = lost(inputs, weight, metric, choice.kept.tolist())
            assert choice.error == pytest.approx(left / whole, abs=1e-6)


@pytest.mark.parametrize(("units", "taps"), [(6, 27), (18, 9), (160, 1)])
def test_the_last_channel_may_be_the_one_whose_removal_is_applied_together_with_others(units, taps):
    inputs, weight, metric = layer(0, units=units, taps=taps, rows=2 * units * taps)
    found = eliminate(consumer(inputs, weight, metric), ridge=0)
    assert sorted(found.order.tolist()) == list(range(units))
    assert found.errors[0] == pytest.approx(1, abs=1e-6)  # without any channel everything is lost
    left, whole = lost(inputs, weight, metric, found.order[-1:].tolist())
    assert found.errors[1] == pytest.approx(left / whole, abs=1e-6)


def test_a_consumer_that_reads_nothing_keeps_any_channels():
    found = eliminate(Consumer(torch.eye(6), torch.zeros(2, 3, 2)))
    assert found.kept(2).kept.tolist() == [0, 1]
    assert found.errors.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("part", ["gram", "weight", "metric"])
def test_numbers_that_are_not_finite_are_refused(part):
    parts = {"gram": torch.eye(6), "weight": torch.ones(2, 3, 2), "metric": torch.eye(2)}
    parts[part].view(-1)[0] = torch.nan
    with pytest.raises(CalibrationError, match=f"{part} of a consumer is not finite"):
        eliminate(Consumer(**parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": -1.0}, "ridge is -1"),
        ({"swaps": -1}, "swaps is -1"),
        ({"blocks": 2}, "do not divide"),
        ({"ridge": float("nan")}, "ridge is nan"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        eliminate(Consumer(torch.eye(6), torch.ones(2, 3, 2)), **change)


def test_shapes_that_do_not_fit_are_refused():
    weight = torch.ones(2, 3, 2)
    with pytest.raises(ValueError, match="gram is"):
        eliminate(Consumer(torch.eye(5), weight))
    with pytest.raises(ValueError, match="metric is"):
        eliminate(Consumer(torch.eye(6), weight, torch.eye(3)))
    with pytest.raises(ValueError, match="same ones"):
        eliminate([Consumer(torch.eye(6), weight), Consumer(torch.eye(4), torch.ones(2, 4, 1))])
    with pytest.raises(ValueError, match="at least one layer"):
        eliminate([])
    with pytest.raises(ValueError, match="between 1 and 3"):
        eliminate(Consumer(torch.eye(6), weight)).kept(4)
