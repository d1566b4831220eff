"""What share of a recovery step is spent on data: augmented CIFAR batches against a training step of ResNet-20.

python benchmarks/loading.py [--data DIR] [--batch-size 128]     (random images where no folder of CIFAR-10 is given)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cosep.data import Loader, TensorSplit, load_data
from cosep.zoo import load_model


def random_images(batch_size: int) -> Loader:
    """A loader like CIFAR-10's, over noise."""
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    split = TensorSplit(images, torch.randint(0, 10, (50_000,)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return Loader(split, torch.arange(50_000), batch_size, shuffle=True, augment=True, drop_last=True)


def median_seconds(work: Callable[[], object], repetitions: int) -> float:
    """The median time of one call."""
    work()
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of CIFAR-10's files, or its parent")
    parser.add_argument("--batch-size", type=int, default=128)
    given = parser.parse_args()
    loader = (
        load_data(f"cifar10:{given.data}", batch_size=given.batch_size).train
        if given.data
        else random_images(given.batch_size)
    )

    model = load_model("resnet20").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(inputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    batches = iter(loader)
    inputs, labels = next(batches)
    loading = median_seconds(lambda: next(batches), 150)
    training = median_seconds(lambda: step(inputs, labels), 15)
    print(f"batch of {given.batch_size}, {torch.get_num_threads()} threads, median of 150 batches and 15 steps")
    print(f"loading   {1e3 * loading:8.2f} ms a batch, {given.batch_size / loading:10,.0f} images/s")
    print(f"training  {1e3 * training:8.2f} ms a step,  {given.batch_size / training:10,.0f} images/s")
    print(f"share of a recovery step spent on data: {100 * loading / (loading + training):.2f} % (target: below 10 %)")


if __name__ == "__main__":
    main()
