"""A pass and an update with freed memory kept (see `cosep.models.heap`) against glibc's own way.

    python benchmarks/freed_memory.py --model resnet50_v1 --size 224 --batch 32
    python benchmarks/freed_memory.py --model resnet20 --size 32 --batch 128 --train

Each way has processes of its own, as the choice holds for a whole process; the two take turns, and what counts is the
processor time of each, on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="resnet50_v1")
    made.add_argument("--size", type=int, default=224)
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--train", action="store_true", help="an update in place of a pass")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--measured", choices=("kept", "given back"), help=argparse.SUPPRESS)  # one process of the two
    args = made.parse_args()
    if args.measured:
        print(measured(args))
        return
    ratios = []
    for turn in range(args.rounds):
        seconds = {}
        for way in ("kept", "given back")[:: 1 if turn % 2 else -1]:
            command = [sys.executable, *sys.argv, "--measured", way]
            seconds[way] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratios.append(seconds["given back"] / seconds["kept"])
        print(f"given back {seconds['given back']:.3f} s, kept {seconds['kept']:.3f} s", flush=True)
    print(f"{statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")


def measured(args: argparse.Namespace) -> float:
    """The median processor time of a pass or an update."""
    import torch

    import cosep
    from cosep.models.heap import keep_freed_memory

    if args.measured == "kept" and not keep_freed_memory():
        raise SystemExit("this C library cannot be told")
    torch.set_num_threads(1)
    model = cosep.load_model(args.model).to(memory_format=torch.channels_last).train(args.train)
    inputs = torch.randn(args.batch, 3, args.size, args.size).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        with torch.set_grad_enabled(args.train):
            loss = model(inputs).square().mean()
        if args.train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
