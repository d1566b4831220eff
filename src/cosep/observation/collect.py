"""One pass over calibration data: the class-conditional moments of many layers at once, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor, nn

from cosep.config import ObserveConfig
from cosep.data.batches import pair_of
from cosep.errors import CalibrationError
from cosep.models.modes import device_of, evaluating
from cosep.models.passes import PassEnded, one_path
from cosep.observation.checks import check_classes, check_declared, checked_labels, checked_layers, enumerated
from cosep.observation.moments import RunningHeads, RunningHistograms, RunningMoments
from cosep.observation.taps import Caught, tapped
from cosep.records import ClassHistograms, ClassMoments, HeadMoments

Progress = Callable[[int], None]  # told the number of images seen so far, after every batch


def observe(
    model: nn.Module,
    loader: Iterable[object],
    layers: Iterable[str],
    *,
    classes: int | None = None,
    config: ObserveConfig | None = None,
    device: torch.device | str | None = None,
    max_images: int | None = None,
    on_batch: Progress | None = None,
    partial: bool = False,
    whole: bool = True,
) -> dict[str, ClassMoments]:
    """The moments of every layer, {layer: (classes, channels)}, from one pass over batches of (input, label).

    The model evaluates without gradients; its training flags are restored. Inputs go to `device`, by default the
    model's. `classes` defaults to the largest label plus one; `max_images` ends the pass early; `on_batch` hears the
    number of images so far. With `partial` the loader is one process's share of the data and a class may be scarce in
    it: join the shares with `merge_all`, then call `check_moments`. With `whole=False` all batches but the first leave
    the network behind the last of the layers, which saves the rest of the pass; that every batch takes the same way
    through the network is not checked then.
    """
    config = config or ObserveConfig()
    check_declared(classes)
    names = list(checked_layers(model, layers))
    state: RunningMoments | None = None
    widths: list[int] = []

    def add(pooled: list[Tensor], labels: Tensor) -> None:
        nonlocal state, widths
        found = [part.shape[1] for part in pooled]
        if state is None:
            widths = found
            state = RunningMoments(sum(widths), classes, pooled[0].device)
        _check_widths(names, widths, found)
        # All layers side by side: one accumulation a batch, however many layers there are.
        state.add(_side_by_side(pooled, state.device), labels, names, widths)

    images = _run(model, loader, names, add, config, classes, device, max_images, on_batch, whole)
    if state is None or images == 0:
        raise CalibrationError(
            "the calibration loader gave no images; at least 2 images of each of 2 classes are needed. Check that its "
            "data set is not empty, that drop_last does not drop everything, and that an iterator is not used up."
        )
    moments = state.moments()
    if not partial:
        check_classes(moments.count)
    return {name: moments.of_channels(columns) for name, columns in _columns(names, widths)}


def observe_histograms(
    model: nn.Module,
    loader: Iterable[object],
    layers: Iterable[str],
    moments: Mapping[str, ClassMoments],
    *,
    config: ObserveConfig | None = None,
    device: torch.device | str | None = None,
    max_images: int | None = None,
    on_batch: Progress | None = None,
) -> dict[str, ClassHistograms]:
    """Histograms of every layer, {layer: (classes, channels, bins)}, from a second pass over the same data.

    The bins divide each channel's exact range in the first pass, which `moments` (of `observe`, with the same settings)
    carry. Should a loader that augments at random go beyond it, the value counts in the outer bin. Memory is
    classes · channels · bins integers: with many classes, give a few layers at a time.
    """
    config = config or ObserveConfig()
    names = list(checked_layers(model, layers))
    low, high = _ranges(names, moments)
    widths = [moments[name].channels for name in names]
    classes = max(moments[name].classes for name in names)
    state: RunningHistograms | None = None

    def add(pooled: list[Tensor], labels: Tensor) -> None:
        nonlocal state
        if state is None:
            state = RunningHistograms(low, high, config.bins, classes, pooled[0].device)
        _check_widths(names, widths, [part.shape[1] for part in pooled])
        state.add(_side_by_side(pooled, state.device), labels)

    # The first pass was over the same data, so there is nothing left to check behind the layers.
    images = _run(model, loader, names, add, config, classes, device, max_images, on_batch, whole=False)
    if state is None or images == 0:
        raise CalibrationError(
            "the loader gave no images in the second pass; it must give the same data again. "
            "Pass a DataLoader or a list of batches, not an iterator that is used up after one pass."
        )
    found = state.histograms()
    return {
        name: ClassHistograms(found.count[:, columns], found.low[columns], found.high[columns])
        for name, columns in _columns(names, widths)
    }


def observe_heads(
    model: nn.Module,
    loader: Iterable[object],
    places: Mapping[str, Sequence[tuple[Tensor, Sequence[int]]]],
    moments: Mapping[str, ClassMoments],
    *,
    config: ObserveConfig | None = None,
    device: torch.device | str | None = None,
    max_images: int | None = None,
) -> dict[str, list[HeadMoments]]:
    """How the values of each head vary together in some of the classes: {layer: records, one a place}.

    `places` are (heads, span) columns of a layer's output, each with the classes that are wanted of it. This is a
    second pass over the data of `moments` (of `observe`, with the same settings), whose means it takes. Memory is
    classes · heads · span² numbers for each place.
    """
    config = config or ObserveConfig()
    names = list(checked_layers(model, places))
    running = {name: [RunningHeads(moments[name], *place) for place in places[name]] for name in names}

    def add(pooled: list[Tensor], labels: Tensor) -> None:
        for name, values in zip(names, pooled, strict=True):
            for each in running[name]:
                each.add(values, labels)

    classes = max(moments[name].classes for name in names)
    _run(model, loader, names, add, config, classes, device, max_images, None, whole=False)
    return {name: [each.moments() for each in running[name]] for name in names}


def _run(
    model: nn.Module,
    loader: Iterable[object],
    names: list[str],
    add: Callable[[list[Tensor], Tensor], None],
    config: ObserveConfig,
    classes: int | None,
    device: torch.device | str | None,
    max_images: int | None,
    on_batch: Progress | None,
    whole: bool,
) -> int:
    """Call `add` with every batch's pooled activations, (batch, channels) each, and labels; return how many images."""
    if max_images is not None and max_images < 1:
        raise CalibrationError(f"max_images is {max_images}; it must be at least 1, or None for the whole loader.")
    if isinstance(loader, Tensor) or not isinstance(loader, Iterable):
        raise CalibrationError(
            f"the calibration loader is {type(loader).__name__}; it must give batches of (input, label). "
            "Pass a DataLoader or a list of such pairs."
        )
    place = torch.device(device) if device is not None else device_of(model)
    seen = 0
    # Not inference_mode: a model may keep a tensor that it makes on its first pass, and train with it later.
    way = one_path(model) if whole else nullcontext(lambda _: None)
    with evaluating(model), way as check_path, _tapped(model, names, config) as latest:
        for number, batch in enumerate(loader):
            inputs, found = pair_of(batch, f"batch {number} of the calibration loader")
            labels = checked_labels(found, len(inputs), classes)
            if max_images is not None:
                inputs, labels = inputs[: max_images - seen], labels[: max_images - seen]
            if len(labels) == 0:
                continue
            # The first batch goes to the end in any case: a layer that runs again behind the last one is found.
            latest.ends_pass = not whole and seen > 0
            with suppress(PassEnded):
                model(inputs.to(place, non_blocking=True))
            check_path(f"batch {number}")
            # Not a generator: one that is left suspended by an error would leave its hooks on the model.
            _join_windows(model, names, latest, len(labels))
            add(_checked_taps(names, latest, len(labels)), labels)
            seen += len(labels)
            if on_batch is not None:
                on_batch(seen)
            if seen == max_images:
                break
    return seen


def _tapped(model: nn.Module, names: list[str], config: ObserveConfig) -> AbstractContextManager[Caught]:
    return tapped(model, names, config.tap, tokens=config.tokens)


def _join_windows(model: nn.Module, names: list[str], latest: dict[str, Tensor], images: int) -> None:
    """Attention in windows has these in the place of the batch, all of one image behind one another: their mean."""
    for name in names:
        within = name in latest and hasattr(model.get_submodule(name.rpartition(".")[0]), "window_size")
        if within and len(latest[name]) > images and len(latest[name]) % images == 0:
            latest[name] = latest[name].unflatten(0, (images, -1)).mean(1)


def _checked_taps(names: list[str], latest: dict[str, Tensor], images: int) -> list[Tensor]:
    idle = [name for name in names if name not in latest]
    if idle:
        raise CalibrationError(
            f"layers that never ran in a forward pass: {enumerated(map(repr, idle))}. They may be unused "
            "in evaluation, or called in a way that goes around the module (its weights used "
            "directly). Leave them out of `layers`."
        )
    for name in names:
        if len(latest[name]) != images:
            raise CalibrationError(
                f"layer {name!r} gave {len(latest[name])} rows for a batch of {images}; each image must give one. The "
                "model folds something else into the batch dimension there. Leave the layer out of `layers`."
            )
    return [latest[name] for name in names]


def _check_widths(names: list[str], expected: list[int], found: list[int]) -> None:
    if found != expected:
        name, before, now = next(x for x in zip(names, expected, found, strict=True) if x[1] != x[2])
        raise CalibrationError(
            f"layer {name!r} had {before} channels and now has {now}; its width must stay the same in all batches and "
            "passes. Observe the model again after it was changed."
        )


def _ranges(names: list[str], moments: Mapping[str, ClassMoments]) -> tuple[Tensor, Tensor]:
    low: list[Tensor] = []
    high: list[Tensor] = []
    for name in names:
        found = moments.get(name)
        if found is None or found.low is None or found.high is None:
            what = "there are no moments" if found is None else "the moments have no range"
            raise CalibrationError(
                f"{what} for layer {name!r}; histograms need them. Take those that `observe` returns."
            )
        low.append(found.low)
        high.append(found.high)
    return torch.cat(low), torch.cat(high)


def _side_by_side(pooled: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat([part.to(device) for part in pooled], dim=1)


def _columns(names: list[str], widths: list[int]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for name, width in zip(names, widths, strict=True):
        yield name, torch.arange(start, start + width)
        start += width
