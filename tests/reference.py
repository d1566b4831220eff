"""Slow, literal formulas: oracles that know the definitions and nothing of the code."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import integrate, stats


def overlap(mean_a, sd_a, mean_b, sd_b):
    """∫√(p q) of two normal densities, by numerical integration."""
    p, q = stats.norm(mean_a, sd_a), stats.norm(mean_b, sd_b)
    low = min(mean_a - 12 * sd_a, mean_b - 12 * sd_b)
    high = max(mean_a + 12 * sd_a, mean_b + 12 * sd_b)
    points = sorted({mean_a, mean_b})
    value, _ = integrate.quad(
        lambda x: math.sqrt(p.pdf(x) * q.pdf(x)), low, high, points=points, limit=400, epsabs=1e-12
    )
    return value


def jm_by_integration(mean_a, sd_a, mean_b, sd_b):
    """∫(√p - √q)², the definition of the (squared) Jeffries-Matusita distance."""
    return 2 * (1 - overlap(mean_a, sd_a, mean_b, sd_b))


def hellinger_by_integration(mean_a, sd_a, mean_b, sd_b):
    """(½∫(√p - √q)²)^½."""
    return math.sqrt(max(0.0, 1 - overlap(mean_a, sd_a, mean_b, sd_b)))


def wasserstein_by_integration(mean_a, sd_a, mean_b, sd_b):
    """(∫₀¹ (F⁻¹(u) - G⁻¹(u))² du)^½ with the quantile functions of two normal distributions."""
    p, q = stats.norm(mean_a, sd_a), stats.norm(mean_b, sd_b)
    value, _ = integrate.quad(lambda u: (p.ppf(u) - q.ppf(u)) ** 2, 0, 1, limit=400)
    return math.sqrt(value)


def profiles_by_loops(activations, labels):
    """JM of every channel and class pair from raw samples, one at a time: (samples, channels) -> (channels, pairs)."""
    classes = sorted(set(labels.tolist()))
    rows = []
    for channel in range(activations.shape[1]):
        row = []
        for one, other in itertools.combinations(classes, 2):
            a, b = activations[labels == one, channel], activations[labels == other, channel]
            var_a, var_b = a.var(), b.var()
            distance = (a.mean() - b.mean()) ** 2 / (4 * (var_a + var_b))
            distance += 0.5 * math.log((var_a + var_b) / (2 * math.sqrt(var_a * var_b)))
            row.append(2 * (1 - math.exp(-distance)))
        rows.append(row)
    return np.array(rows)


def mean_silhouette_of_gbafs(distances, medoids, labels):
    """The index of GB-AFS, by loops: b is the mean distance to the other medoids; points on a medoid do not count."""
    values = []
    for point in range(len(distances)):
        own = medoids[labels[point]]
        a = distances[point][own]
        if a == 0:
            continue
        others = [distances[point][medoids[m]] for m in range(len(medoids)) if m != labels[point]]
        b = sum(others) / len(others)
        values.append((b - a) / max(a, b))
    return sum(values) / len(values) if values else 1.0


def nearest_silhouette_of_the_paper(distances, medoids, labels):
    """The equation of the CoSeP paper, by loops: b is the distance to the nearest other medoid; every point counts."""
    values = []
    for point in range(len(distances)):
        a = distances[point][medoids[labels[point]]]
        b = min(distances[point][medoids[m]] for m in range(len(medoids)) if m != labels[point])
        values.append((b - a) / max(a, b) if max(a, b) > 0 else 0.0)
    return sum(values) / len(values)


def loss_of(distances, medoids):
    """The sum of the distances to the nearest medoids."""
    return sum(min(row[m] for m in medoids) for row in distances)


def best_loss(distances, k):
    """The k-medoids optimum, by trying every subset."""
    return min(loss_of(distances, subset) for subset in itertools.combinations(range(len(distances)), k))


def improving_exchange(distances, medoids, least):
    """An exchange of one medoid that lowers the loss by more than `least`, by trying all; None if there is none."""
    before = loss_of(distances, medoids)
    for out, new in itertools.product(medoids, range(len(distances))):
        if new not in medoids and loss_of(distances, [m for m in medoids if m != out] + [new]) < before - least:
            return out, new
    return None
