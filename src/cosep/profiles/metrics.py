"""How well one channel tells two classes apart. Every metric: class statistics and pairs in, (channels, pairs) out.

A pair is a position in `first` and the same position in `second`: two int64 vectors of class indices.
The Gaussian metrics have no ε. They are the limits for ε -> 0 of the published formulas, so a channel whose variances
are 1e-6 is treated like one whose variances are 1; what ε would catch (a class without variance) is decided explicitly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# A constant channel seen through float64 sums has a standard deviation of a few 1e-16 of its mean, not 0.
# Deviations and gaps below this share of the channel's largest mean are such rounding, not signal.
ROUNDING = 1e-12

GaussianMetric = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def bhattacharyya(mean: Tensor, var: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Bhattacharyya distance of Gaussians: (classes, channels) twice and pairs -> (channels, pairs), each in [0, inf].

    Two classes without variance are at 0 where their means agree and at infinity where they differ; one class with and
    one without variance do not overlap at all: infinity.
    """
    rounding = ROUNDING * mean.abs().amax(dim=0)  # (channels,)
    deviation = _deviations(var, rounding)
    gap = mean[first] - mean[second]  # (pairs, channels)
    a, b = deviation[first], deviation[second]
    # log((a² + b²) / 2ab) written as log1p((a - b)² / 2ab): no cancellation where the classes are nearly alike.
    distance = gap.square() / (4 * (a.square() + b.square())) + torch.log1p((a - b).square() / (2 * a * b)) / 2
    dead = (a == 0) & (b == 0)
    if bool(dead.any()):
        apart = torch.where(gap.abs() > rounding, torch.inf, 0.0).to(distance.dtype)
        distance = torch.where(dead, apart, distance)
    return distance.T


def jm(mean: Tensor, var: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Jeffries-Matusita separability 2(1 - e^-B) of Gaussians: -> (channels, pairs), each in [0, 2]."""
    return -2 * torch.expm1(-bhattacharyya(mean, var, first, second))


def hellinger(mean: Tensor, var: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Hellinger distance (1 - e^-B)^½ of Gaussians: -> (channels, pairs), each in [0, 1]."""
    return (-torch.expm1(-bhattacharyya(mean, var, first, second))).sqrt()


def wasserstein(mean: Tensor, var: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """2-Wasserstein distance of Gaussians: -> (channels, pairs), in the channel's own unit: not scale-invariant."""
    deviation = _deviations(var, ROUNDING * mean.abs().amax(dim=0))
    return torch.hypot(mean[first] - mean[second], deviation[first] - deviation[second]).T


def jm_histogram(count: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """JM separability of histograms (classes, channels, bins) -> (channels, pairs), each in [0, 2]."""
    share = count.double() / count.sum(dim=-1, keepdim=True).clamp(min=1)
    root = share.sqrt()
    # 2(1 - Σ√(pq)) written as Σ(√p - √q)²: exactly 0 for equal histograms.
    return (root[first] - root[second]).square().sum(dim=-1).T


def shrunk(scatter: Tensor, count: Tensor) -> Tensor:
    """Covariances (..., p, p) from scatter matrices of `count` samples (...), shrunk towards equal variances.

    By as much as Oracle Approximating Shrinkage says (Chen et al., 2010), which needs no more than the two.
    """
    size = scatter.shape[-1]
    n = count.double()
    covariance = scatter / n[..., None, None]
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    squares = covariance.square().sum((-2, -1))  # tr(S²)
    above = (1 - 2 / size) * squares + trace.square()
    below = (n + 1 - 2 / size) * (squares - trace.square() / size)
    share = torch.where(below > above, above / below.clamp(min=1e-300), 1.0)[..., None, None]
    identity = torch.eye(size, dtype=scatter.dtype, device=scatter.device)
    return (1 - share) * covariance + share * (trace / size)[..., None, None] * identity


def multivariate_bhattacharyya(mean: Tensor, covariance: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Bhattacharyya distance in p values: (classes, heads, p) and (classes, heads, p, p) -> (heads, pairs)."""
    gap = (mean[first] - mean[second]).unsqueeze(-1)  # (pairs, heads, p, 1)
    root = torch.linalg.cholesky((covariance[first] + covariance[second]) / 2)
    between = gap.mul(torch.cholesky_solve(gap, root)).sum((-2, -1)) / 8
    own = _half_log_determinant(torch.linalg.cholesky(covariance))
    spread = _half_log_determinant(root) - (own[first] + own[second]) / 2
    return (between + spread).clamp(min=0).T


def _half_log_determinant(root: Tensor) -> Tensor:
    return root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def standardised(mean: Tensor, scatter: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Means and scatter matrices of heads with every value in units of its deviation within classes.

    Distances are the same in any unit; the shrinkage, which treats all values alike, is not. A value that does not vary
    within classes has a unit so small that classes with other means are infinitely far apart in it.
    """
    variance = scatter.diagonal(dim1=-2, dim2=-1).sum(0) / count.sum()  # (heads, p)
    largest = mean.abs().amax(0)
    unit = variance.sqrt().clamp(min=torch.where(largest > 0, ROUNDING * largest, 1.0))
    return mean / unit, scatter / (unit.unsqueeze(-1) * unit.unsqueeze(-2))


GAUSSIAN_METRICS: dict[str, GaussianMetric] = {"jm": jm, "hellinger": hellinger, "wasserstein": wasserstein}


def _deviations(var: Tensor, rounding: Tensor) -> Tensor:
    """Standard deviations (classes, channels), with what is only rounding set to exactly 0."""
    deviation = var.clamp(min=0).sqrt()
    return torch.where(deviation > rounding, deviation, 0.0)
