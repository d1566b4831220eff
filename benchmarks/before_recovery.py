"""What everything before recovery costs, in plain evaluation passes over the same images.

    python benchmarks/before_recovery.py [--model resnet56] [--images 2000] [--weights FILE] [--repeats 3]
    python benchmarks/before_recovery.py --model resnet50 --size 224 --images 512 --batch 32 --repeats 1
    python benchmarks/before_recovery.py --growth [resnet20 resnet110] [--rule uniform]

`cosep.prune` goes through the chain without training, half of the MACs being the limit: it looks at the network, takes
the damage of each group, selects, cuts, checks and rebuilds. Each run stands between two plain passes of the uncut
network over the same images, and the printed ratio is that to their mean. CPU seconds of the process suffer least from
other load on the machine; wall seconds are printed beside them. One thread, after a warm-up: what is imported once for
the whole process does not count. `--growth` goes through the CIFAR ResNets of 20 to 110 layers, or those named; the
rule `uniform` needs no damage. The images are noise: the time does not depend on them. On Linux the most memory that
the process held in each stage is printed too, beyond the most that it held in the plain pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cosep
from cosep.config import PruneConfig, preset, replace_settings
from cosep.runs import opening, state
from cosep.zoo import load_model

GROWTH = ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110")


@dataclass(frozen=True)
class Taken:
    """CPU and wall seconds, CPU seconds by stage, and the most bytes held in each stage."""

    cpu: float
    wall: float
    stages: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)


class PeakClock(state.Clock):
    """Notes also the most bytes that the process holds in each stage; a stage inside another has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, int] = {}
        self._stages = ["other"]
        clocks.append(self)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        self.note()
        self._stages.append(stage)
        try:
            with super().timed(stage):
                yield
        finally:
            self.note()
            self._stages.pop()

    def note(self) -> None:
        """Count what was held since the last time for the stage at hand."""
        stage = self._stages[-1]
        self.peaks[stage] = max(self.peaks.get(stage, 0), peak_since_last())


clocks: list[PeakClock] = []  # those of the runs so far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--weights", type=Path, help="a checkpoint of the model; random weights without")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=125)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rule", default="damage", help="the width rule")
    parser.add_argument("--refine", type=int, default=-1, help="passes of refining; 0: none, -1: the default")
    parser.add_argument("--growth", nargs="*", help="the networks named, or the CIFAR ResNets of 20 to 110 layers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # The chain times its stages by the wall clock; here they are to be told in CPU seconds.
    state.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]
    opening.Clock = PeakClock  # type: ignore[attr-defined, misc]

    torch.manual_seed(0)
    images = torch.randn(args.images, 3, args.size, args.size)
    batches = [(x, torch.arange(len(x)) % 10) for x in images.split(args.batch)]
    config = replace_settings(
        preset(),
        {
            "select": {"width_rule": args.rule},
            "limits": {"max_macs": "50%"},
            "rebuild": {"images": args.images, "refine": args.refine},
            "recover": {"epochs": 0.0},
        },
    )
    warm_up(config)
    if args.growth is None:
        report(args.model, args.weights, batches, config, args.repeats)
        return
    names = args.growth or GROWTH
    found = {name: report(name, None, batches, config, args.repeats) for name in names}
    for name, ratio in found.items():
        print(f"{name}: {ratio:.2f} plain passes, {ratio / found[names[0]]:.2f} times those of {names[0]}")


def warm_up(config: PruneConfig) -> None:
    """Let everything be imported that the chain needs."""
    chain(load_model("resnet20").eval(), [(torch.randn(32, 3, 32, 32), torch.arange(32) % 10)], config)


def report(
    name: str, weights: Path | None, batches: list[tuple[Tensor, Tensor]], config: PruneConfig, repeats: int
) -> float:
    """Print what the chain costs for one network, and return the median ratio of CPU seconds."""
    model = load_model(name, weights=weights).eval().to(memory_format=torch.channels_last)
    peak_since_last()
    plain(model, batches[:2])
    peak = peak_since_last()
    runs, passes = [], [plain(model, batches)]
    for _ in range(repeats):
        runs.append(chain(model, batches, config))
        passes.append(plain(model, batches))
    pairs = list(zip(runs, pairwise(passes), strict=True))
    cpu, wall = (
        [getattr(run, what) / statistics.mean(getattr(each, what) for each in pair) for run, pair in pairs]
        for what in ("cpu", "wall")
    )
    one = statistics.median(each.cpu for each in passes)
    images = sum(len(x) for x, _ in batches)
    print(f"{name}, {images} images of {tuple(batches[0][0].shape[1:])}, rule {config.select.width_rule}")
    print(f"  plain pass          {one:8.2f} s of CPU, {statistics.median(each.wall for each in passes):.2f} s of wall")
    print(f"  before recovery     {statistics.median(run.cpu for run in runs):8.2f} s of CPU")
    print(f"  ratio               {statistics.median(cpu):8.2f} in CPU time ({min(cpu):.2f} to {max(cpu):.2f})")
    print(f"                      {statistics.median(wall):8.2f} in wall time ({min(wall):.2f} to {max(wall):.2f})")
    beyond = {stage: (max(run.peaks[stage] for run in runs) - peak) / 2**30 for stage in runs[0].stages}
    for stage, most in beyond.items():
        passes_taken = statistics.median(run.stages[stage] for run in runs) / one
        print(f"    {stage:18}{passes_taken:8.2f}   {most:6.2f} GB")
    print(f"  memory beyond a plain pass {max(beyond.values()):.2f} GB", flush=True)
    return statistics.median(cpu)


def plain(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Taken:
    """One evaluation pass over the images."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        for x, _ in batches:
            model(x)
    return Taken(time.process_time() - cpu, time.perf_counter() - wall)


def chain(model: nn.Module, batches: list[tuple[Tensor, Tensor]], config: PruneConfig) -> Taken:
    """The whole chain but the recovery; what belongs to no stage (groups, checks of model and data) is `other`."""
    peak_since_last()
    wall, cpu = time.perf_counter(), time.process_time()
    result = cosep.prune(model, batches, config=config)
    taken, took = time.process_time() - cpu, time.perf_counter() - wall
    stages = dict(result.report.seconds)
    clocks[-1].note()
    return Taken(taken, took, {**stages, "other": taken - sum(stages.values())}, clocks[-1].peaks)


def peak_since_last() -> int:
    """The most bytes that the process has held since this was asked before; 0 where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
