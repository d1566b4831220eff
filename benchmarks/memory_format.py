"""What the memory format is worth in a recovery: updates in channels_last against updates in PyTorch's usual format.

    python benchmarks/memory_format.py [--model resnet20] [--batch 128] [--repeats 10] [--threads 2]

An update is the forward pass, the backward pass and the optimizer's step. Both formats take turns, so that other load
on the machine meets both alike; the printed figure is the median of the ratios of neighbours, with the quartiles beside
it. The input is noise: the time does not depend on it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from pairs import in_turns, ratios
from torch.nn.functional import cross_entropy

from cosep.zoo import input_shape, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20", help="one of the zoo")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10, help="pairs of updates")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    usual, last = (update(args, layout) for layout in (torch.contiguous_format, torch.channels_last))
    before, found = in_turns(usual, last, args.repeats)
    low, middle, high = statistics.quantiles(ratios(before, found), n=4)
    print(
        f"{args.model}, batch {args.batch}, {args.threads} threads: an update in channels_last is {middle:.2f} "
        f"times as fast (quartiles {low:.2f} to {high:.2f}); {statistics.median(found) * 1e3:.0f} ms"
    )


def update(args: argparse.Namespace, layout: torch.memory_format) -> Callable[[], None]:
    """One update of a network of its own in that format."""
    torch.manual_seed(0)
    model = load_model(args.model, classes=10).train().to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(args.batch, *input_shape(args.model)).to(memory_format=layout)
    labels = torch.arange(args.batch) % 10

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return run


if __name__ == "__main__":
    main()
