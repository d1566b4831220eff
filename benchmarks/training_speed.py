"""What could make an update of a recovery faster on a CPU, measured against the update as it is.

    python benchmarks/training_speed.py [--model resnet20] [--batch 128] [--repeats 10] [WAY ...]
    python benchmarks/training_speed.py threads [--busy 1]

An update is one of `cosep prune`: the teacher's pass, the cut network's pass with outputs and block outputs as targets,
the backward pass and the optimizer's step. The ways:

    fused, foreach   the optimizer's step as one kernel, or tensor by tensor in lists
    cached           the teacher's outputs and block outputs are there already
    compile          torch.compile on the cut network
    bfloat16         torch's autocast
    threads          one thread, two, two that do not spin while they wait (OMP_WAIT_POLICY=PASSIVE), and two processes
                     with half of the batch each, beside as many busy processes as --busy says: wall seconds

Each way runs in a process of its own, one thread, in turns with the update as it is; a way that fails says so. The
printed figure is the median of the ratios of neighbours in CPU time, with the quartiles beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from cosep.config import RecoverConfig
from cosep.groups import find_groups, groups_in_scope
from cosep.recovery.losses import block_outputs, recovery_loss
from cosep.runs.preflight import blocks_around
from cosep.surgery import cut_groups
from cosep.zoo import input_shape, load_model

WAYS = ("fused", "foreach", "cached", "compile", "bfloat16")
LIMIT = 600  # seconds for one way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", choices=[*WAYS, "threads", []], help="all of one thread, if none is named")
    parser.add_argument("--model", default="resnet20", help="one of the zoo")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10, help="pairs of updates")
    parser.add_argument("--busy", type=int, default=1, help="busy processes beside `threads`")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # what a child process is to do
    args = parser.parse_args()
    if args.inside == "plain":
        plain_updates(args)
    elif args.inside:
        in_turns(args)
    else:
        for way in args.ways or WAYS:
            if way == "threads":
                threads(args)
                continue
            child = subprocess.run(
                command(args, way), env=environment(1), timeout=LIMIT, capture_output=True, text=True
            )
            lines = (child.stdout if child.returncode == 0 else child.stderr).strip().splitlines()
            print(f"{way:10}{lines[-1] if lines else f'died with code {child.returncode}'}", flush=True)


def command(args: argparse.Namespace, inside: str, batch: int | None = None) -> list[str]:
    sizes = ["--batch", str(batch or args.batch), "--repeats", str(args.repeats)]
    return [sys.executable, __file__, "--inside", inside, "--model", args.model, *sizes]


def environment(count: int, **more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(count), **more}


def in_turns(args: argparse.Namespace) -> None:
    """Time a way and the update as it is, in turns."""
    base, changed = update(args, ""), update(args, args.inside)
    for run in (base, changed):
        run()
        run()
    ratios = []
    for turn in range(args.repeats):
        took = {run: cpu_seconds(run) for run in ((base, changed) if turn % 2 else (changed, base))}
        ratios.append(took[base] / took[changed])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{middle:.2f} times as fast (quartiles {low:.2f} to {high:.2f})")


def cpu_seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def update(args: argparse.Namespace, way: str) -> Callable[[], None]:
    """One update of a network of its own, half of whose channels are gone, beside its teacher."""
    torch.manual_seed(0)
    config = RecoverConfig()
    teacher = load_model(args.model, classes=10).eval().to(memory_format=torch.channels_last)
    inputs = torch.randn(args.batch, *input_shape(args.model)).to(memory_format=torch.channels_last)
    labels = torch.arange(args.batch) % 10
    groups = groups_in_scope(find_groups(teacher, inputs[:1]))
    student, _ = cut_groups(teacher, [(group, range(0, group.width, 2)) for group in groups], {})
    student.train()
    optimizer = torch.optim.SGD(
        student.parameters(), lr=config.lr, momentum=0.9, fused=way == "fused", foreach=way == "foreach" or None
    )
    blocks = blocks_around(groups)
    taught = block_outputs(teacher, blocks).__enter__()
    seen = block_outputs(student, blocks).__enter__()
    network = torch.compile(student) if way == "compile" else student
    stored = None
    if way == "cached":
        with torch.no_grad():
            stored = teacher(inputs)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16) if way == "bfloat16" else nullcontext():
            optimizer.zero_grad()
            if stored is None:
                with torch.no_grad():
                    goals = teacher(inputs)
            else:
                goals = stored
            loss = recovery_loss(network(inputs), labels, config, goals, seen, taught)
        loss.backward()
        optimizer.step()

    return run


def plain_updates(args: argparse.Namespace) -> None:
    """Print the median wall seconds of the update as it is."""
    run = update(args, "")
    run()
    times = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    print(statistics.median(times))


def threads(args: argparse.Namespace) -> None:
    """Threads against processes, and what waiting costs where another process wants the cores too."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    try:
        half = args.batch // 2
        for what, batch, processes, env in (
            ("one thread", args.batch, 1, environment(1)),
            ("two threads", args.batch, 1, environment(2)),
            ("two threads, passive", args.batch, 1, environment(2, OMP_WAIT_POLICY="PASSIVE")),
            ("two processes", half, 2, environment(1)),
        ):
            children = [
                subprocess.Popen(command(args, "plain", batch), env=env, stdout=subprocess.PIPE, text=True)
                for _ in range(processes)
            ]
            times = [float(child.communicate(timeout=LIMIT)[0]) for child in children]
            print(f"{what:22}{max(times):8.3f} s for {args.batch} images, {args.busy} busy beside it", flush=True)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()
