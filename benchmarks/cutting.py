"""Cut and prove all interior groups of ResNet-50 at 224 x 224, and print the seconds of each part (target: under 20 s).

    python benchmarks/cutting.py [--model resnet50] [--size 224] [--threads 2]
    python benchmarks/cutting.py --chain 300 --size 8 --threads 1

Half of every group goes, each cut is compared with its masked copy. `--chain` takes a chain of that many convolutions
with BatchNorm in place of a model. For scale, the time of the plain forward passes
that the proofs need at least (two a group) is printed beside it.
"""

import argparse
import time

import torch
from torch import nn

from cosep.groups import find_groups, groups_in_scope
from cosep.surgery import cut_all_checked, cut_checked
from cosep.zoo import load_model

SOME = 10  # groups that are also cut one after the other, for comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--chain", type=int, help="so many convolutions of 16 channels, one behind the other")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = chain(arguments.chain) if arguments.chain else load_model(arguments.model).eval()
    what = f"a chain of {arguments.chain} convolutions" if arguments.chain else arguments.model
    example = torch.randn(1, 3, arguments.size, arguments.size)

    start = time.perf_counter()
    groups = find_groups(model, example)
    found = time.perf_counter()
    chosen = [(g, list(range(0, g.width, 2))) for g in groups_in_scope(groups) if g.blocks == 1]
    _, _, checks = cut_all_checked(model, chosen, example)
    together = time.perf_counter()
    current, layout = model, {}
    some = chosen[:SOME]
    for group, kept in some:
        result = cut_checked(current, group, kept, layout, example)
        current, layout = result.model, result.layout
    apart = time.perf_counter()
    with torch.no_grad():
        for _ in range(2):
            model(example)
        warm = time.perf_counter()
        for _ in range(2):
            model(example)
    forward = (time.perf_counter() - warm) / 2

    proven = sum(check.equal for check in checks.values())
    print(f"{what} at {arguments.size}, {torch.get_num_threads()} threads")
    print(f"groups found                      {found - start:6.2f} s   {len(groups)} groups")
    print(f"cut and proven together           {together - found:6.2f} s   {proven} of {len(chosen)} proven")
    print(f"the first {len(some)} one after the other {apart - together:6.2f} s   each in a copy of its own")
    print(f"{2 * len(chosen)} plain forward passes          {2 * len(chosen) * forward:6.2f} s")
    print(f"in all, together                  {together - start:6.2f} s   (target 20 s)")


def chain(layers: int) -> nn.Module:
    """Convolutions with BatchNorm and ReLU, one behind the other.

    Their weights are such that values neither vanish nor overflow, whole or cut in half: tiny numbers are slow.
    """
    blocks = [
        nn.Sequential(nn.Conv2d(16 if i else 3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        for i in range(layers)
    ]
    for convolution, _, _ in blocks:
        nn.init.normal_(convolution.weight, std=(2 / convolution.weight[0].numel()) ** 0.5 * 2**0.25)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()


if __name__ == "__main__":
    main()
