"""Order the channels that a wide convolution reads by elimination, and print the seconds (target: under 20 s).

    python benchmarks/elimination.py [--channels 512] [--outputs 512] [--taps 9] [--threads 1]

The rows are made up: channels that are mixtures of one another, as neighbours in a network are.
"""

import argparse
import time

import torch

from cosep.criteria.elimination import Consumer, eliminate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--outputs", type=int, default=512)
    parser.add_argument("--taps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    columns = arguments.channels * arguments.taps
    mixing = torch.randn(columns, columns, generator=generator, dtype=torch.float64) / columns**0.5
    gram = mixing @ mixing.T + 0.1 * torch.eye(columns, dtype=torch.float64)
    shape = (arguments.outputs, arguments.channels, arguments.taps)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    metric = torch.diag(torch.rand(arguments.outputs, generator=generator, dtype=torch.float64))

    start, used = time.perf_counter(), time.process_time()
    found = eliminate(Consumer(gram, weight, metric), swaps=0)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(f"{arguments.channels} channels, {columns} columns, {arguments.outputs} outputs, {arguments.threads} threads")
    print(f"the whole order            {seconds:6.2f} s   {used:.2f} s of processor time")
    print(f"error with half of them    {float(found.errors[arguments.channels // 2]):6.3f}")


if __name__ == "__main__":
    main()
