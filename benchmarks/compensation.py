"""How long it takes to compensate every interior group of ResNet-56, cut to half its channels, with 5,000 images.

    python benchmarks/compensation.py [--data DIR --weights resnet56_cifar10.safetensors] [--images 5000] [--no-cache]

Groups are compensated and cut in order of execution, each on the network as it is by then. Without data the images are
noise and the weights random: the time does not depend on them. The target is 60 s on two cores.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch

from cosep.config import SurgeryConfig
from cosep.data import load_data
from cosep.groups import find_groups, groups_in_scope
from cosep.rebuilding.compensate import compensate
from cosep.rebuilding.sweep import PrefixCache
from cosep.surgery.cut import cut_group
from cosep.zoo import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10's files; noise without")
    parser.add_argument("--weights", type=Path, help="a checkpoint of the model; random weights without")
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--positions", type=int, default=SurgeryConfig().positions)
    parser.add_argument("--no-cache", action="store_true", help="run every group's forward passes from the start")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = load_model(args.model, weights=args.weights).eval()
    batches = calibration_batches(args.data, args.images, args.batch)
    groups = groups_in_scope(find_groups(model, batches[0][:2]))
    config = SurgeryConfig(positions=args.positions)
    cache = None if args.no_cache else PrefixCache()

    with torch.no_grad():
        begin = time.perf_counter()
        for batch in batches[: max(1, len(batches) // 5)]:
            model(batch)
        once = (time.perf_counter() - begin) * len(batches) / max(1, len(batches) // 5)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    solving = cutting = busy = 0.0
    errors, layout, applied = [], {}, 0
    for group in groups:
        producer = model.get_submodule(group.producers[0])
        strongest = producer.weight.detach().flatten(1).norm(dim=1).argsort(descending=True)
        kept = sorted(strongest[: group.width // 2].tolist())
        begin, work = time.perf_counter(), time.process_time()
        model, records = compensate(model, group, kept, layout, batches, config, cache=cache)
        solved, busy = time.perf_counter(), busy + time.process_time() - work
        model, layout = cut_group(model, group, kept, layout)
        solving, cutting = solving + solved - begin, cutting + time.perf_counter() - solved
        applied += sum(r.applied for r in records)
        errors += [(r.error_before, r.error_after) for r in records]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    mean_before, mean_after = torch.tensor(errors).mean(0).tolist()
    print(f"{args.model}, {args.images} images, {len(groups)} groups, {applied} consumers re-solved")
    print(f"compensating all groups          {solving:7.1f} s   {busy:.1f} s of processor time")
    print(f"cutting them                     {cutting:7.1f} s")
    print(f"one forward pass of the images   {once:7.1f} s   compensating costs {solving / once:.1f} of them")
    if cache is not None:
        print(f"batches that started late        {cache.reused:7d} of {len(groups) * len(batches)}")
    print(f"peak memory grew by              {grown:7.0f} MB")
    print(f"mean relative error              {mean_before:.3f} cut only, {mean_after:.3f} compensated")


def calibration_batches(data: Path | None, images: int, size: int) -> list[torch.Tensor]:
    """Training images, or noise: a list of (size, 3, 32, 32)."""
    if data is None:
        return list(torch.randn(images, 3, 32, 32).split(size))
    found: list[torch.Tensor] = []
    for inputs, _ in load_data(f"cifar10:{data}").calibration:
        found.append(inputs)
        if sum(map(len, found)) >= images:
            break
    return list(torch.cat(found)[:images].split(size))


if __name__ == "__main__":
    main()
