"""The separability space of a layer: profiles of channels, and the distances between them in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from cosep.config import Metric, ProfileConfig, check_choice
from cosep.errors import CalibrationError, ConfigError
from cosep.profiles.metrics import (
    GAUSSIAN_METRICS,
    ROUNDING,
    jm_histogram,
    multivariate_bhattacharyya,
    shrunk,
    standardised,
)
from cosep.profiles.screen import top_classes
from cosep.records import ClassHistograms, ClassMoments, HeadMoments, Space

BLOCK_BYTES = 64 * 2**20  # the working memory for one block of class pairs
_TEMPORARIES = 8  # about so many arrays of a block's size live at once inside a metric

# Profiles are split into two integers of at most 2^19. Products of two stay within 2^38, sums of 2^13 of those within
# 2^51: every partial sum of a matrix product is an integer that float64 holds exactly, so it does not matter in which
# order a BLAS adds up.
_COARSE, _FINE = 2.0**19, 2.0**20
_MOST_PAIRS = 2**13
_WEIGHTS = (1.0, 1 / _FINE, _FINE**-2)  # of the Gram matrices high x high, high x low (both ways), low x low
_ROWS = 256  # of a matrix (channels, channels) that are worked on at a time: of 4,096 channels each copy takes 134 MB

# Classes that do not overlap at all in one place are infinitely far apart there; the other places must still count.
_NO_OVERLAP = 1e-12

Profiler = Callable[[Tensor, Tensor], Tensor]  # pairs -> (channels, pairs)


def profiles(
    moments: ClassMoments,
    classes: Sequence[int] | None = None,
    metric: Metric = "jm",
    *,
    histograms: ClassHistograms | None = None,
) -> Tensor:
    """Every channel's separability of every pair of `classes` (all, if not given): (channels, pairs) float64.

    Pairs are in the order of `torch.triu_indices`: (0, 1), (0, 2), ... The whole matrix is held in memory;
    `separability_space` is for when that is too much.
    """
    check_choice("metric", metric, Metric)
    _check_moments([moments])
    chosen = tuple(range(moments.classes)) if classes is None else tuple(classes)
    if len(chosen) < 2 or min(chosen) < 0 or max(chosen) >= moments.classes or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"classes is {chosen}; profiles need at least two different classes between 0 and {moments.classes - 1}."
        )
    for label in (c for c in chosen if int(moments.count[c]) < 2):
        raise CalibrationError(
            f"class {label} has {int(moments.count[label])} calibration sample(s); a variance needs at least 2. "
            "Add samples of it or leave the class out of `classes`."
        )
    profiler = _profiler(moments, chosen, metric, histograms)
    first, second = torch.triu_indices(len(chosen), len(chosen), offset=1, device=moments.mean.device)
    size = _pairs_per_block(moments, metric, histograms)
    return torch.cat([profiler(i, j) for i, j in zip(first.split(size), second.split(size), strict=True)], dim=1)


def separability_space(
    moments: ClassMoments | Sequence[ClassMoments],
    config: ProfileConfig | None = None,
    *,
    histograms: ClassHistograms | Sequence[ClassHistograms] | None = None,
    salience: Tensor | None = None,
    spans: Sequence[int] | None = None,
    heads: Callable[[tuple[int, ...]], Sequence[HeadMoments]] | None = None,
) -> Space:
    """Distances between the profiles of a layer's channels, over all classes or the best separated `max_classes`.

    Several moments describe channels with several producers (layers that an addition ties together): a channel's
    profile is the concatenation of its producers' profiles. `spans` says how many moments in a row are places of one
    producer's channels (heads of attention): their distances are joined to one profile, in which the order of the
    places within a head does not matter. `heads` gives, for the classes that are compared, how the values of each head
    vary together: then a head's profile is their multivariate distance instead, one for each record. Classes with fewer
    than two samples are left out of the pairs, and named in the space. `salience` (channels,) multiplies each channel's
    profile: a space in which magnitude counts. Only one block of class pairs is ever in memory, and the result is the
    same to the last bit on any number of threads.
    """
    config = config or ProfileConfig()
    producers = [moments] if isinstance(moments, ClassMoments) else list(moments)
    _check_moments(producers)
    binned: list[ClassHistograms | None] = _histograms_of(producers, histograms)
    channels, device = producers[0].channels, producers[0].mean.device
    factor = _check_salience(salience, channels, device)

    classes = top_classes(producers, config.max_classes)
    first, second = torch.triu_indices(len(classes), len(classes), offset=1, device=device)
    squared: Tensor | None = None
    separability = torch.zeros(channels, dtype=torch.float64, device=device)
    together = 0
    parts = _in_spans(list(zip(producers, binned, strict=True)), spans)
    for of_heads in heads(classes) if heads is not None else ():
        size = max(BLOCK_BYTES // (8 * _TEMPORARIES * of_heads.scatter[0].numel()), 1)
        pairs = zip(first.split(size), second.split(size), strict=True)
        profiler = _multivariate(of_heads)
        of_producer, sums = _square_sums((profiler(i, j).T * factor for i, j in pairs), _power_of_two(2 * factor))
        squared = of_producer if squared is None else squared.add_(of_producer)
        separability += sums / len(first)
        together += 1
    separability /= max(together, 1)
    for part in parts if heads is None else ():
        producer, histogram = part[0]
        profiler = _joined([_profiler(m, classes, config.metric, h) for m, h in part], config.metric)
        bound = torch.stack([_largest(m, classes, config.metric) for m, _ in part]).amax(dim=0)
        scale = _power_of_two(bound * factor)
        size = _pairs_per_block(producer, config.metric, histogram)
        pairs = zip(first.split(size), second.split(size), strict=True)
        of_producer, sums = _square_sums((profiler(i, j).T * factor for i, j in pairs), scale)
        squared = of_producer if squared is None else squared.add_(of_producer)
        separability += sums / (len(first) * len(parts))
    scarce = torch.stack([producer.count < 2 for producer in producers]).any(dim=0).nonzero().flatten()
    assert squared is not None
    return Space(squared.clamp_(min=0).sqrt_(), classes, separability, config.metric, tuple(scarce.tolist()))


def _square_sums(blocks: Iterable[Tensor], scale: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances (channels, channels) between profiles, and their sums (channels,), from blocks of pairs.

    A block is (pairs, channels), each entry between 0 and its channel's `scale`, a power of two. |x - y|² is taken from
    Gram matrices, that is from matrix products, which are many times faster than differences. In plain floating point
    that would leave noise where profiles are equal, and depend on the BLAS and its threads. In two integer parts
    (together a resolution of 2e-12 of the scale) every product is exact: duplicates are at distance 0.
    """
    square = partial(torch.zeros, len(scale), len(scale), dtype=torch.float64, device=scale.device)
    squared, sums = square(), torch.zeros_like(scale)
    grams = [square() for _ in _WEIGHTS]
    unit = scale / _COARSE
    pairs = 0

    def flush() -> None:
        grams[1] += grams[1].T.clone()  # high with low and low with high
        for gram, weight in zip(grams, _WEIGHTS, strict=True):
            gram.mul_(unit).mul_(unit.unsqueeze(1))
            own = gram.diagonal().clone()
            for rows, some, theirs in zip(*(each.split(_ROWS) for each in (squared, gram, own)), strict=True):
                rows.add_((own + theirs.unsqueeze(1)).sub_(some, alpha=2), alpha=weight)
            gram.zero_()

    for block in blocks:
        if pairs + len(block) > _MOST_PAIRS:
            flush()
            pairs = 0
        fixed = block * (_COARSE / scale)
        high = fixed.round()
        low = (fixed - high).mul_(_FINE).round_()
        sums += (high.sum(dim=0) + low.sum(dim=0) / _FINE) * unit
        for gram, left, right in zip(grams, (high, high, low), (high, low, low), strict=True):
            gram.addmm_(left.T, right)
        pairs += len(block)
    flush()
    return squared, sums


def _profiler(
    moments: ClassMoments, classes: Sequence[int], metric: str, histograms: ClassHistograms | None
) -> Profiler:
    """A function from pairs (of positions in `classes`) to (channels, pairs)."""
    index = torch.tensor(classes, dtype=torch.int64, device=moments.mean.device)
    if metric == "jm-histogram":
        if histograms is None:
            raise ConfigError(
                'the metric "jm-histogram" needs histograms and none were given. '
                'Collect them in a second pass over the data, or choose the metric "jm".'
            )
        count = histograms.count[index]
        return lambda first, second: jm_histogram(count, first, second)
    mean, var = moments.mean[index].double(), moments.variance[index].double()
    function = GAUSSIAN_METRICS[metric]
    return lambda first, second: function(mean, var, first, second)


def _multivariate(heads: HeadMoments) -> Profiler:
    """The Jeffries-Matusita distance of classes in all values of a head together."""
    count = heads.count.unsqueeze(1).expand(heads.mean.shape[:2])
    mean, scatter = standardised(heads.mean, heads.scatter, heads.count)
    covariance = shrunk(scatter, count)
    # A head without any variance within a class: as good as none, but with a root.
    covariance = covariance + ROUNDING * torch.eye(covariance.shape[-1]).to(covariance)
    return lambda first, second: -2 * torch.expm1(-multivariate_bhattacharyya(mean, covariance, first, second))


_Place = tuple[ClassMoments, ClassHistograms | None]


def _in_spans(places: list[_Place], spans: Sequence[int] | None) -> list[list[_Place]]:
    """The places of each producer together; one each where nothing else is said."""
    if spans is None:
        return [[place] for place in places]
    if min(spans, default=0) < 1 or sum(spans) != len(places):
        raise CalibrationError(f"spans are {list(spans)} for {len(places)} moments; they must add up to their number.")
    ends = list(accumulate(spans))
    return [places[end - span : end] for end, span in zip(ends, spans, strict=True)]


def _joined(profilers: Sequence[Profiler], metric: str) -> Profiler:
    """The distance of classes in several places together, per place, so that it does not saturate with their number.

    Bhattacharyya distances of independent places add up, and so do squared Wasserstein distances. Their mean over the
    places is taken.
    """
    if len(profilers) == 1:
        return profilers[0]

    def joined(first: Tensor, second: Tensor) -> Tensor:
        mean = torch.zeros((), dtype=torch.float64, device=first.device)
        for profiler in profilers:
            found = profiler(first, second)
            if metric == "wasserstein":
                added = found.square()
            else:
                overlap = 1 - (found.square() if metric == "hellinger" else found / 2)
                added = -overlap.clamp(min=_NO_OVERLAP).log()
            mean = mean + added / len(profilers)
        if metric == "wasserstein":
            return mean.sqrt()
        apart = 1 - torch.exp(-mean)
        return apart.sqrt() if metric == "hellinger" else 2 * apart

    return joined


def _largest(moments: ClassMoments, classes: Sequence[int], metric: str) -> Tensor:
    """A bound (channels,) on every channel's profile under a metric."""
    if metric == "wasserstein":
        mean, deviation = moments.mean[list(classes)], moments.variance[list(classes)].sqrt()
        return torch.hypot(mean.amax(dim=0) - mean.amin(dim=0), deviation.amax(dim=0)).double()
    bound = 1.0 if metric == "hellinger" else 2.0
    return torch.full((moments.channels,), bound, dtype=torch.float64, device=moments.mean.device)


def _power_of_two(bound: Tensor) -> Tensor:
    """The smallest power of two at or above each bound, so that scaling by it is exact; 1 where the bound is 0."""
    mantissa, exponent = torch.frexp(bound)  # mantissa in [½, 1)
    exponent = exponent - (mantissa == 0.5).int()
    return torch.where(bound > 0, torch.ldexp(torch.ones_like(bound), exponent), 1.0)


def _pairs_per_block(moments: ClassMoments, metric: str, histograms: ClassHistograms | None) -> int:
    bins = histograms.count.shape[-1] if metric == "jm-histogram" and histograms is not None else 1
    affordable = BLOCK_BYTES // (8 * _TEMPORARIES * max(moments.channels, 1) * bins)
    return min(max(affordable, 1), _MOST_PAIRS)


def _histograms_of(
    producers: Sequence[ClassMoments], histograms: ClassHistograms | Sequence[ClassHistograms] | None
) -> list[ClassHistograms | None]:
    """One histogram record per producer, or one None each."""
    if histograms is None:
        return [None] * len(producers)
    given = [histograms] if isinstance(histograms, ClassHistograms) else list(histograms)
    expected = [(m.classes, m.channels) for m in producers]
    found = [tuple(h.count.shape[:2]) for h in given]
    if found != expected:
        raise CalibrationError(
            f"the histograms are of (classes, channels) {found} and the moments of {expected}. "
            "Give one for each producer, collected from the same layers and classes."
        )
    return list(given)


def _check_moments(producers: Sequence[ClassMoments]) -> None:
    if not producers:
        raise CalibrationError("no moments were given; a space needs those of at least one layer.")
    for moments in producers:
        if (moments.classes, moments.channels) != (producers[0].classes, producers[0].channels):
            raise CalibrationError(
                f"the producers of tied channels have (classes, channels) {_shapes(producers)}; they must be alike. "
                "Observe them in the same pass, and only group layers of equal width."
            )
        usable = int((moments.count >= 2).sum())
        if usable < 2:
            raise CalibrationError(
                f"the statistics cover {usable} class(es) with two samples or more; separating classes needs at least "
                "2. Calibrate with several images of several classes."
            )
        sound = torch.isfinite(moments.mean) & torch.isfinite(moments.scatter)
        if not bool(sound.all()):
            label, channel = (~sound).nonzero()[0].tolist()
            raise CalibrationError(
                f"the statistics of channel {channel} in class {label} are not finite. "
                "Look for NaN or infinite activations, or for values too large to be squared."
            )


def _shapes(producers: Sequence[ClassMoments]) -> list[tuple[int, int]]:
    return [(m.classes, m.channels) for m in producers]


def _check_salience(salience: Tensor | None, channels: int, device: torch.device) -> Tensor:
    if salience is None:
        return torch.ones(channels, dtype=torch.float64, device=device)
    if tuple(salience.shape) != (channels,):
        raise ConfigError(f"salience has shape {tuple(salience.shape)}; it must be ({channels},), one per channel.")
    if not bool((torch.isfinite(salience) & (salience >= 0)).all()):
        raise ConfigError("salience has negative or non-finite entries; it multiplies distances: give numbers >= 0.")
    return salience.detach().to(device=device, dtype=torch.float64)
