"""Least squares beside numpy's."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from cosep.rebuilding.fit import (
    Fitted,
    Sums,
    Team,
    factored,
    output_moments,
    pull_for,
    solved,
    with_best_constant,
)


def rows_and_targets(rows=400, columns=7, outputs=3, parts=2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(parts, columns, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(parts, rows, columns, generator=generator, dtype=torch.float64) @ mixing + 3
    y = x @ torch.randn(parts, columns, outputs, generator=generator, dtype=torch.float64) - 2
    return x.to(dtype), (y + 0.3 * torch.randn(y.shape, generator=generator, dtype=torch.float64)).to(dtype)


def summed(x, y, batches=4):
    sums = Sums(x.shape[0], x.shape[2], y.shape[2])
    for part_x, part_y in zip(x.chunk(batches, 1), y.chunk(batches, 1), strict=True):
        sums.add(part_x, part_y)
    return sums


def test_the_solution_is_that_of_numpys_least_squares_with_the_pull_as_further_rows():
    x, y = rows_and_targets()
    start = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = solved(summed(x, y).moments(), start, 0.1)
    for part in range(2):
        a, b, w = x[part].numpy(), y[part].numpy(), start[part].numpy()
        centred, wanted = a - a.mean(0), b - b.mean(0)
        level = np.sqrt(0.1 * centred.var(0).mean() * len(a))
        stacked = np.vstack([centred, level * np.eye(7)])
        expected = np.linalg.lstsq(stacked, np.vstack([wanted, level * w]), rcond=None)[0]
        np.testing.assert_allclose(found.weight[part].numpy(), expected, rtol=1e-8)
        np.testing.assert_allclose(found.constant[part].numpy(), b.mean(0) - a.mean(0) @ expected, rtol=1e-8)


def test_without_a_constant_the_fit_goes_through_zero():
    x, y = rows_and_targets(parts=1)
    moments = summed(x, y).moments().about_zero()
    found = solved(moments, torch.zeros(1, 7, 3, dtype=torch.float64), 1e-12)
    expected = np.linalg.lstsq(x[0].numpy(), y[0].numpy(), rcond=None)[0]
    np.testing.assert_allclose(found.weight[0].numpy(), expected, rtol=1e-5)
    assert not found.constant.any()


def test_statistics_of_outputs_follow_from_those_of_the_rows():
    x, y = rows_and_targets()
    moments = summed(x, y).moments()
    fitted = with_best_constant(moments, torch.randn(2, 7, 3, dtype=torch.float64))
    mean, variance = output_moments(moments, fitted)
    made = fitted(x)
    assert_close(mean, made.mean(1))
    assert_close(variance, made.var(1, unbiased=False))
    assert_close(mean, y.mean(1))


def test_a_mean_far_above_the_deviation_costs_no_precision_in_float32():
    x, y = rows_and_targets(parts=1)
    shifted = summed((x + 5000).float(), y.float()).moments()
    plain = summed(x, y).moments()
    assert_close(shifted.xx, plain.xx, rtol=2e-3, atol=2e-3)


def test_two_processes_together_find_what_one_finds_alone():
    x, y = rows_and_targets(seed=3)
    alone = summed(x, y).moments()
    halves = [summed(a, b) for a, b in zip(x.chunk(2, 1), y.chunk(2, 1), strict=True)]
    gathered: list[list[torch.Tensor]] = []
    halves[1].moments(Team(2, total=lambda tensors: gathered.append([t.clone() for t in tensors])))

    def total(tensors):
        for own, other in zip(tensors, gathered[0], strict=True):
            own += other

    together = halves[0].moments(Team(2, total=total))
    assert together.rows == alone.rows
    for name in ("x_mean", "y_mean", "xx", "xy"):
        assert_close(getattr(together, name), getattr(alone, name))


def test_an_idle_process_adds_nothing():
    sums = Sums(1, 3, 2)
    found = sums.moments(Team(2))
    assert found.rows == 0
    assert found.finite()


@pytest.mark.parametrize(("rows", "factor"), [(1600, 1), (800, 4), (100, 256)])
def test_few_rows_are_pulled_more_strongly(rows, factor):
    assert pull_for(rows, 100, 1e-3) == pytest.approx(factor * 1e-3)


def test_dead_columns_keep_their_weights():
    x, y = rows_and_targets(parts=1)
    x[:, :, 2] = 4.0
    start = torch.randn(1, 7, 3, dtype=torch.float64)
    found = solved(summed(x, y).moments(), start, 1e-3)
    assert_close(found.weight[0, 2], start[0, 2])
    assert isinstance(found, Fitted)
    assert bool(found.weight.isfinite().all())


@pytest.mark.parametrize("pull", [1e-3, 1e-6, 1e-9, 1e-12, 1e-30])
def test_columns_that_repeat_others_share_the_weight_however_weak_the_pull_is(pull):
    for seed in range(10):
        x, y = rows_and_targets(parts=1, seed=seed, dtype=torch.float32)
        x[:, :, 3] = x[:, :, 5] = x[:, :, 2]
        found = solved(summed(x, y).moments(), torch.zeros(1, 7, 3, dtype=torch.float64), pull)
        # The smallest weights that do it are alike; rounding makes differences in the thousands of a weak pull.
        assert float((found.weight[0, [3, 5]] - found.weight[0, 2]).abs().max()) < 1
        assert found.pull >= pull
        if pull < 1e-3:
            columns = np.c_[x[0, :, [0, 1, 2, 4, 6]].double().numpy(), np.ones(400)]
            best = columns @ np.linalg.lstsq(columns, y[0].double().numpy(), rcond=None)[0]
            np.testing.assert_allclose(found(x)[0].numpy(), best, atol=0.1)


def test_a_pull_that_stands_out_of_the_rounding_is_taken_as_it_is():
    for dtype, weakest in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        x, y = rows_and_targets(parts=1, dtype=dtype)
        assert solved(summed(x, y).moments(), torch.zeros(1, 7, 3, dtype=torch.float64), weakest).pull == weakest


def test_covariances_of_many_columns_are_numpys_and_symmetric():
    x, y = rows_and_targets(rows=700, columns=600, outputs=2, parts=1)
    found = summed(x, y).moments().xx[0]
    np.testing.assert_allclose(found.numpy(), np.cov(x[0].numpy().T, bias=True), rtol=1e-9, atol=1e-8)
    assert torch.equal(found, found.T)


class Made(TorchDispatchMode):
    """Keeps every tensor of at least so many numbers that operations make, so that no address is used twice."""

    def __init__(self, least):
        super().__init__()
        self.least, self.tensors = least, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.numel() >= self.least:
                self.tensors.append(each)
        return result


@pytest.mark.parametrize("parts", [1, 3])
def test_a_factor_takes_the_room_of_one_matrix_and_is_numpys(parts):
    x = torch.randn(parts, 80, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    covariance = x.mT @ x / 80
    before = covariance.clone()
    with Made(covariance.numel()) as made:
        factor, pull = factored(covariance, 1e-3, 1e-16)
    assert {each.untyped_storage().data_ptr() for each in made.tensors} - {covariance.untyped_storage().data_ptr()} == {
        factor.untyped_storage().data_ptr()
    }
    assert torch.equal(covariance, before)
    for part, found in zip(covariance.numpy(), factor, strict=True):
        level = np.trace(part) / len(part)
        assert_close(found.numpy(), np.linalg.cholesky(part + pull * level * np.eye(len(part))))
