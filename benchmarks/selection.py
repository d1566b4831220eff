"""How fast channels are selected, in four parts:

1  gbfs      the whole selection (class statistics, space, every k, scores, knee) against the authors' package `gbfs`
             on the same activations, 256 channels and 10 classes: the ratio of the times, and the largest excess of
             our k-medoids loss over theirs.
2  growth    64 to 2048 channels: seconds each, and the exponent of the fit.
3  imagenet  1,000 classes, the best 100 of each layer, the 32 interior groups of ResNet-50 and one of 2048 channels:
             seconds for all together, and the peak of memory beyond the bare process.
4  wide      4,096 neurons (a classifier of VGG) and 100 classes: seconds, and the peak of memory beyond the process.

python benchmarks/selection.py [gbfs] [growth] [imagenet] [wide] [--channels 256] [--cache DIR] [--rounds 3]

All parts unless some are named. `gbfs` is installed into a virtual environment of its own (it needs numpy < 2) under
--cache, or in a temporary folder. The cost of observing is in `observation.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from cosep import ProfileConfig, SelectConfig, class_moments, select, separability_space
from cosep.profiles import profiles
from cosep.records import ClassMoments

HERE = Path(__file__).parent
PARTS = ("gbfs", "growth", "imagenet", "wide")
BY_MEDOID = SelectConfig(representative="medoid")
# ResNet-50: two interior convolutions in each of 3, 4, 6 and 3 bottlenecks.
RESNET50 = [width for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)) for _ in range(2 * blocks)]


def layer_moments(classes: int, channels: int, seed: int, samples: int = 50) -> ClassMoments:
    """Statistics like a layer's: few directions, mixed and noisy, channels of different strength and scale."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(classes, 16)) @ rng.normal(size=(16, channels)) * 0.15
    mean = (directions + rng.normal(size=(classes, channels)) * 0.1) * np.exp(0.7 * rng.normal(size=channels))
    variance = rng.uniform(0.5, 1.5, size=(classes, channels))
    scale = 10.0 ** rng.uniform(-3, 0, size=channels)
    counts = torch.full((classes,), samples)
    return ClassMoments(counts, torch.tensor(mean * scale), torch.tensor(variance * scale**2 * samples))


def layer_activations(classes: int, channels: int, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Activations (images, channels) drawn from such statistics, and their labels."""
    moments = layer_moments(classes, channels, seed)
    labels = np.repeat(np.arange(classes), samples)
    rng = np.random.default_rng(seed + 1)
    noise = rng.normal(size=(len(labels), channels)) * moments.variance.sqrt().numpy()[labels]
    return moments.mean.numpy()[labels] + noise, labels


def seconds_of(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def against_gbfs(channels: int, cache: Path, rounds: int) -> None:
    python = gbfs_interpreter(cache)
    activations, labels = layer_activations(10, channels, 100, seed=0)

    def ours():
        return select(separability_space(class_moments(activations, labels)), config=BY_MEDOID)

    ours()  # imports and caches
    times, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "activations.npz", Path(folder) / "result.json"
        np.savez(source, activations=activations, labels=labels)
        for _ in range(rounds):
            times += [seconds_of(ours) for _ in range(5)]
            subprocess.run(
                [str(python), str(HERE / "gbfs_reference.py"), str(source), str(target)],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            theirs.append(json.loads(target.read_text()))
            times += [seconds_of(ours) for _ in range(5)]

    selection = ours()
    moments = class_moments(activations, labels)
    apart = np.abs(np.array(theirs[0]["profiles"]) - profiles(moments).numpy()).max()
    distances = separability_space(moments).distances.numpy()
    excess = {}
    for result in theirs:
        for k, loss in zip(selection.candidates, selection.losses, strict=True):
            other = distances[result["medoids"][str(k)]].min(axis=0).sum()
            excess[k] = max(excess.get(k, -1.0), loss / other - 1)
    worst = max(excess, key=excess.__getitem__)
    slow, fast = np.median([result["seconds"] for result in theirs]), np.median(times)
    print(f"1  gbfs, {channels} channels, 10 classes, {len(labels)} samples, {rounds} round(s)")
    print(f"   gbfs {slow:.1f} s, cosep {fast:.3f} s (slowest {max(times):.3f} s): {slow / fast:.0f} times faster")
    print(f"   largest difference between the profiles: {apart:.1e}")
    print(
        f"   k-medoids loss against theirs: at most {100 * excess[worst]:+.2f} % (k = {worst}), "
        f"{100 * np.mean(list(excess.values())):+.2f} % on average over {len(excess)} k"
    )


def gbfs_interpreter(cache: Path) -> Path:
    """The interpreter of a virtual environment with gbfs, made if need be."""
    python = cache / "gbfs-venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(cache / "gbfs-venv")], check=True)
        # scikit-learn-extra is compiled against numpy 1; setuptools is for its import of pkg_resources.
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "gbfs", "numpy<2", "setuptools<80"], check=True)
    return python


def growth(rounds: int) -> None:
    widths = (64, 128, 256, 512, 1024, 2048)
    layers = {width: layer_moments(10, width, seed=width) for width in widths}
    times: dict[int, list[float]] = {width: [] for width in widths}
    select(separability_space(layers[64]), config=BY_MEDOID)
    for _ in range(rounds):
        for width in widths:
            times[width].append(seconds_of(lambda w=width: select(separability_space(layers[w]), config=BY_MEDOID)))
    medians = [float(np.median(times[width])) for width in widths]
    exponent = np.polyfit(np.log(widths), np.log(medians), 1)[0]
    print(f"2  growth, 10 classes, median of {rounds}")
    for width, median in zip(widths, medians, strict=True):
        print(f"   {width:5d} channels  {median:8.3f} s")
    print(f"   time grows with channels to the power of {exponent:.2f}")


def apart(part: str) -> None:
    """In a process of its own, as a peak of memory never goes down."""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import selection; selection.{part}_here()"
    subprocess.run([sys.executable, "-c", code, str(HERE)], check=True)


def imagenet_here() -> None:
    config = ProfileConfig(max_classes=100)
    select(separability_space(layer_moments(101, 16, 0), config), config=BY_MEDOID)  # imports and thread pools
    bare = peak_megabytes()
    spaces = clusters = busy = 0.0
    knees = []
    for seed, width in enumerate([*RESNET50, 2048]):
        moments = layer_moments(1000, width, seed)
        start, working = time.perf_counter(), time.process_time()
        space = separability_space(moments, config)
        middle = time.perf_counter()
        knees.append(select(space, config=BY_MEDOID).reason == "knee")
        spaces += middle - start
        clusters += time.perf_counter() - middle
        busy += time.process_time() - working
    print(f"3  ImageNet's scale: 1,000 classes, M = 100, {len(RESNET50)} groups of ResNet-50 and one of 2048 channels")
    print(
        f"   {spaces + clusters:.1f} s in all ({spaces:.1f} s spaces, {clusters:.1f} s selections), {sum(knees)} knees"
    )
    print(f"   {peak_megabytes() - bare:.0f} MB of memory beyond the bare process's {bare:.0f} MB (peak)")
    print(f"   {busy:.1f} s of processor time, {torch.get_num_threads()} threads on {os.cpu_count()} cores")


def wide_here() -> None:
    select(separability_space(layer_moments(100, 16, 0)), config=BY_MEDOID)  # imports and thread pools
    bare = peak_megabytes()
    moments = layer_moments(100, 4096, 0)
    start, working = time.perf_counter(), time.process_time()
    found = select(separability_space(moments), config=BY_MEDOID)
    took, busy = time.perf_counter() - start, time.process_time() - working
    print(f"4  4,096 neurons, 100 classes: {found.reason}, {len(found.kept)} stay; {'; '.join(found.notes)}")
    print(f"   {took:.1f} s, {busy:.1f} s of processor time, {torch.get_num_threads()} threads")
    print(f"   {peak_megabytes() - bare:.0f} MB of memory beyond the bare process's {bare:.0f} MB (peak)")


def peak_megabytes() -> float:
    """The largest resident memory of this process so far. (getrusage would count the parent's, before exec.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the peak of memory is read from /proc/self/status, which this system does not have.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, if none is named")
    parser.add_argument("--channels", type=int, default=256, help="of the comparison with gbfs")
    parser.add_argument("--cache", type=Path, help="where the environment of gbfs is kept")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    parts = given.parts or PARTS
    if "gbfs" in parts:
        if given.cache:
            given.cache.mkdir(parents=True, exist_ok=True)
            against_gbfs(given.channels, given.cache.resolve(), given.rounds)
        else:
            with tempfile.TemporaryDirectory() as folder:
                against_gbfs(given.channels, Path(folder), given.rounds)
    if "growth" in parts:
        growth(given.rounds)
    for part in ("imagenet", "wide"):
        if part in parts:
            apart(part)


if __name__ == "__main__":
    main()
