"""Devices and processes: the only home of Lightning Fabric, and what several processes must agree on."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cosep.config import DeviceConfig
from cosep.errors import ConfigError
from cosep.rebuilding.fit import ALONE, Team
from cosep.records import ClassMoments

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launched(config: DeviceConfig) -> Fabric:
    """Fabric for these settings; under torchrun, or with several devices, each process gets its own."""
    from lightning_fabric import Fabric

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about other devices and plugins than the ones that were asked for
        several = config.devices * config.nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))
        try:
            fabric = Fabric(
                accelerator=config.accelerator,
                devices=devices,
                num_nodes=config.nodes,
                precision=config.precision,  # type: ignore[arg-type]
                strategy="ddp" if several else "auto",
            )
        except Exception as error:  # Lightning has a class of its own for each kind of mistake
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ConfigError(
                f"device.accelerator is {config.accelerator!r}, device.devices {devices} and device.precision "
                f"{config.precision!r}, which is not to be had here: {first}"
            ) from error
        if several:
            _launch(fabric)
    return fabric


def _launch(fabric: Fabric) -> None:
    """Join the processes, and leave them before this one ends.

    A thread of the process group that still holds a tensor when the interpreter shuts down aborts the process, after
    all the work was done. Leaving the group ends its threads, unless somebody holds on to it: torch's own functions
    do, as the default of an argument, when they are imported only after the group was made.
    """
    import torch.distributed.nn.functional

    joined_before = torch.distributed.is_initialized()
    fabric.launch()
    if torch.distributed.is_initialized() and not joined_before:
        atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def batches_of_rank(batches: Iterable[Any], fabric: Fabric) -> Iterator[Any]:
    """Every world-size-th batch, beginning with this process's number: together the processes see each batch once."""
    return islice(iter(batches), fabric.global_rank, None, fabric.world_size)


def merged_over_ranks(moments: Mapping[str, ClassMoments], fabric: Fabric) -> dict[str, ClassMoments]:
    """The moments of all processes' samples together, the same to the bit in each of them."""
    if fabric.world_size == 1:
        return dict(moments)
    merged = {}
    for name, own in moments.items():
        tensors = {f.name: t.contiguous() for f in fields(own) if (t := getattr(own, f.name)) is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Fabric gathers by a function that torch has given a new name
            gathered = {key: fabric.all_gather(tensor) for key, tensor in tensors.items()}
        parts = [ClassMoments(**{key: ranks[r] for key, ranks in gathered.items()}) for r in range(fabric.world_size)]
        # In the order of the ranks, so that rounding is the same everywhere.
        merged[name] = reduce(ClassMoments.merge, parts)
    return merged


def same_weights_everywhere(model: nn.Module, fabric: Fabric) -> None:
    """Give every process the first one's weights and buffers, in place."""
    if fabric.world_size > 1:
        with torch.no_grad():
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)


def team_of(fabric: Fabric) -> Team:
    """The processes that share the images of a rebuild."""
    if fabric.world_size == 1:
        return ALONE
    return Team(fabric.world_size, partial(_on_device, fabric, _sum), partial(_on_device, fabric, _first))


def _sum(tensor: torch.Tensor) -> None:
    torch.distributed.all_reduce(tensor)


def _first(tensor: torch.Tensor) -> None:
    torch.distributed.broadcast(tensor, src=0)


def _on_device(fabric: Fabric, change: Callable[[torch.Tensor], None], tensors: Sequence[torch.Tensor]) -> None:
    """Change tensors, in place, where the processes talk to one another."""
    for tensor in tensors:
        there = tensor.contiguous().to(fabric.device)
        change(there)
        tensor.copy_(there)
