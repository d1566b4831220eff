"""What a criterion may look at: the network as it is now, and what passes over the calibration data show of it.

Everything is gathered when it is first asked for, in one pass for all the groups that are decided at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cosep.config import ObserveConfig, PruneConfig
from cosep.data.batches import even_batches, images_between, small_images
from cosep.groups.numbering import channel_norms, consumer_norms, output_columns
from cosep.models.heap import give_back_freed_memory
from cosep.observation import check_moments, observe, observe_heads, observe_histograms
from cosep.profiles.screen import top_classes
from cosep.rebuilding.grams import Grams, gather_grams
from cosep.records import ClassHistograms, ClassMoments, Group, HeadMoments, Layout
from cosep.surgery import copied

FITTED = 512  # calibration images behind the Gram matrices of elimination and damage
ASIDE = 256  # further images on which damage is measured, at most: the network behind every group runs on them
ALL_ASIDE = 7000  # of all groups together: in a deep network fewer each
ALL_ASIDE_LARGE = 2100  # the same, of images above 64 x 64
EVEN = 32  # the number of images set aside is a multiple of this: odd rests of batches have to be traced anew
HEAD_BYTES = 2**29  # of matrices of heads that are gathered in one pass; a head of 64 values has 32 KB for each class
HISTOGRAM_BYTES = 2**28  # of histograms that are gathered in one pass; with many classes a pass serves fewer groups

Found = TypeVar("Found")


def fitted_and_aside(images: int, groups: int, small: bool) -> tuple[int, int]:
    """How many of so many images make the Gram matrices, and how many more measure the damage of so many groups."""
    affordable = (ALL_ASIDE if small else ALL_ASIDE_LARGE) // groups
    aside = min(ASIDE, max(affordable // EVEN * EVEN, EVEN), -(-images // 3))
    return min(FITTED, images - aside), aside


@dataclass(frozen=True, eq=False)
class Passes:
    """How a run goes through its calibration data."""

    batches: Callable[[int], Iterator[tuple[Tensor, Tensor | None]]]  # the first so many images (0: all), on the device
    of_process: Callable[[Iterable[Any]], Iterable[Any]]  # the batches that this process is to see
    merged: Callable[[Mapping[str, ClassMoments]], dict[str, ClassMoments]]  # the moments of all processes
    stage: Callable[[str, str], AbstractContextManager[None]]  # tells and times a stage of a group ("": of all)


@dataclass(frozen=True, eq=False)
class LookedAt:
    """Gram matrices of consumers' inputs, the images behind them, and images that are set aside."""

    grams: Grams
    images: tuple[Tensor, ...]
    aside: tuple[Tensor, ...]


class NetworkView:
    """The network as it is, the groups that are decided now, and what was gathered for them."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        groups: Sequence[Group],
        *,
        config: PruneConfig,
        classes: int,
        passes: Passes,
        whole: bool,
    ) -> None:
        """`whole`: let passes run to the network's end and check that every batch takes the same way through it."""
        self.model, self.layout, self.groups = model, layout, tuple(groups)
        self.config, self.classes, self.passes, self.whole = config, classes, passes, whole
        self._gathered: dict[Hashable, Any] = {}
        self._of_heads: dict[Hashable, list[HeadMoments]] = {}  # each until it is asked for
        self._watched: nn.Module | None = None

    def of(self, group: Group) -> GroupView:
        """One group of it, as a criterion sees it."""
        return GroupView(self, group)

    def once(self, key: Hashable, gather: Callable[[], Found]) -> Found:
        """What `gather` gives, computed for the first group that asks and kept for the others."""
        if key not in self._gathered:
            self._gathered[key] = gather()
            give_back_freed_memory()  # what the passes needed, and with gradients that is a gigabyte
        return self._gathered[key]

    def moments(self, config: ObserveConfig) -> dict[str, ClassMoments]:
        """The class moments of every producer of the groups."""
        return self.once(("moments", config), lambda: self._observe(config))

    def histograms(self, config: ObserveConfig, group: Group) -> dict[str, ClassHistograms]:
        """The class histograms of a group's producers."""
        part = next(part for part in self._affordable(config.bins) if group in part)
        layers = [name for each in part for name in each.producers]

        def gather() -> dict[str, ClassHistograms]:
            moments = self.moments(config)
            with self.passes.stage("observe", self._name):
                batches = self.passes.batches(config.images_for(self.classes))
                return observe_histograms(copied(self._seen), batches, layers, moments, config=config)

        return self.once(("histograms", config, part[0].name), gather)

    def heads(self, config: ObserveConfig, group: Group, classes: tuple[int, ...]) -> list[HeadMoments]:
        """How the values of a group's heads vary together in some classes: a record for each run of places.

        It takes a pass over all the images, so what the groups behind it will ask for is gathered along with it.
        """
        key = (config, group.name, classes)
        if key not in self._of_heads:
            self._of_heads = self._observe_heads(config, group, classes)
        return self._of_heads.pop(key)

    def _observe_heads(
        self, config: ObserveConfig, group: Group, classes: tuple[int, ...]
    ) -> dict[Hashable, list[HeadMoments]]:
        """What a group asks for, and those behind it as far as there is room, by the key of `heads`."""
        moments, room = self.moments(config), HEAD_BYTES
        asked: list[tuple[Hashable, str]] = []
        places: dict[str, list[tuple[Tensor, tuple[int, ...]]]] = {}
        for each in self.groups[self.groups.index(group) :]:
            if each.unit != "head":
                continue
            if each is not group:
                classes = top_classes(self.of(each).moments(config), self.config.profile.max_classes)
            runs = [(n, run) for n in each.producers for run in _runs(output_columns(each, n, self.layout))]
            room -= sum(8 * len(classes) * run.numel() * run.shape[1] for _, run in runs)
            if asked and room < 0:
                break
            for name, run in runs:
                asked.append(((config, each.name, classes), name))
                places.setdefault(name, []).append((run, classes))
        with self.passes.stage("observe", self._name):
            batches = self.passes.batches(config.images_for(self.classes))
            found = observe_heads(copied(self._seen), batches, places, moments, config=config)
        records: dict[Hashable, list[HeadMoments]] = {}
        for key, name in asked:
            records.setdefault(key, []).append(found[name].pop(0))
        return records

    def looked_at(self) -> LookedAt:
        """What the images show of the layers that read the groups' channels, and images that it was not made from."""
        return self.once("looked at", self._look)

    def _look(self) -> LookedAt:
        with self.passes.stage("look", self._name):
            seen = [inputs for inputs, _ in self.passes.batches(FITTED + ASIDE)]
            images = sum(len(x) for x in seen)
            small = not seen or small_images(seen[0].shape)
            fitted, aside = fitted_and_aside(images, len(self.groups), small)
            fit = even_batches(images_between(seen, 0, fitted))
            consumers = [name for group in self.groups for name in group.consumers]
            grams = gather_grams(self.model, consumers, fit, self.config.rebuild, seed=self.config.seed)
            return LookedAt(grams, tuple(fit), tuple(even_batches(images_between(seen, fitted, fitted + aside))))

    @property
    def _name(self) -> str:
        return self.groups[0].name if len(self.groups) == 1 else ""

    @property
    def _seen(self) -> nn.Module:
        """The model that is watched. A pass that ends early may leave a model's own lists half filled: then a copy."""
        if self._watched is None:
            self._watched = self.model if self.whole else copied(self.model)
        return self._watched

    def _observe(self, config: ObserveConfig) -> dict[str, ClassMoments]:
        layers = list(dict.fromkeys(name for group in self.groups for name in group.producers))
        with self.passes.stage("observe", self._name):
            found = observe(
                self._seen,
                self.passes.of_process(self.passes.batches(config.images_for(self.classes))),
                layers,
                classes=self.classes,
                config=config,
                partial=True,
                whole=self.whole,
            )
            moments = self.passes.merged(found)
            for each in moments.values():
                check_moments(each)
        return moments

    def _affordable(self, bins: int) -> Iterator[list[Group]]:
        """The groups in their order, together while their histograms fit into memory."""
        part: list[Group] = []
        size = 0
        for group in self.groups:
            need = 8 * self.classes * bins * group.width * len(group.producers)
            if part and size + need > HISTOGRAM_BYTES:
                yield part
                part, size = [], 0
            part.append(group)
            size += need
        yield part


@dataclass(frozen=True, eq=False)
class GroupView:
    """One group, as a criterion sees it."""

    network: NetworkView
    group: Group

    @property
    def model(self) -> nn.Module:
        """The network as it is now."""
        return self.network.model

    @property
    def layout(self) -> Layout:
        """The cuts so far."""
        return self.network.layout

    @property
    def config(self) -> PruneConfig:
        return self.network.config

    @property
    def seed(self) -> int:
        return self.network.config.seed

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Tell and time what begins for this group."""
        return self.network.passes.stage(name, self.group.name)

    def images(self, count: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Batches with the first so many calibration images (0: all) and their labels, if any, the same every time."""
        return self.network.passes.batches(count)

    def outputs(self, group: Group | None = None) -> list[tuple[nn.Module, Tensor]]:
        """The layers that make a group's channels (by default this one's), and their places (width,) in them."""
        group = group or self.group
        return [
            (self.model.get_submodule(name), columns)
            for name in group.producers
            for columns in output_columns(group, name, self.layout)
        ]

    def moments(self, config: ObserveConfig | None = None) -> list[ClassMoments]:
        """The class moments of the channels, one record for each place that makes them."""
        found = self.network.moments(config or self.config.observe)
        return [found[name].of_channels(column) for name, column in self._columns()]

    def histograms(self, config: ObserveConfig | None = None) -> list[ClassHistograms]:
        """The class histograms of the channels, one record for each place that makes them."""
        found = self.network.histograms(config or self.config.observe, self.group)
        return [found[name].of_channels(column) for name, column in self._columns()]

    def heads(self, config: ObserveConfig, classes: tuple[int, ...]) -> list[HeadMoments]:
        """How the values of each head vary together, queries, keys and values apart, however they are made."""
        return self.network.heads(config, self.group, classes)

    def norms(self) -> Tensor:
        """The L2 norm of each channel's filters: (width,)."""
        return channel_norms(self.model, self.group, self.layout)

    def salience(self, moments: Sequence[ClassMoments]) -> Tensor:
        """What each channel passes on to its consumers: their weights' norm times its root mean square, (width,)."""
        images = moments[0].count.sum()
        power = sum((m.scatter + m.count.unsqueeze(1) * m.mean.square()).sum(0) / images for m in moments)
        return consumer_norms(self.model, self.group, self.layout) * torch.as_tensor(power).sqrt().cpu()

    def spans(self) -> list[int] | None:
        """How many places each producer has for one head; None where channels are no heads."""
        if self.group.unit != "head":
            return None
        return [len(output_columns(self.group, name, self.layout)) for name in self.group.producers]

    def _columns(self) -> list[tuple[str, Tensor]]:
        group = self.group
        return [(name, column) for name in group.producers for column in output_columns(group, name, self.layout)]


def _runs(columns: Sequence[Tensor]) -> list[Tensor]:
    """Places of heads in a layer's output, (heads, span) each: those that follow one another belong together.

    A layer that makes queries, keys and values has three such runs.
    """
    places = torch.stack(list(columns), dim=1)
    apart = (places.diff(dim=1) != 1).any(0).nonzero().flatten() + 1
    return list(places.tensor_split(apart.tolist(), dim=1))
