"""What observing costs: a forward pass of ResNet-56 with taps on all its convolutions against the same pass without.

    python benchmarks/observation.py [--weights resnet56_cifar10.safetensors] [--batch 128] [--repeats 20] [--threads 1]

Passes with and without alternate, so that other load on the machine meets both alike; each printed figure is the median
of the ratios of neighbours, with the quartiles beside it. The ratio of the fastest passes suffers less from other load,
but a busy machine distorts it too: measure on a quiet one. The input is noise: the time does not depend on it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from pairs import in_turns, ratios
from torch import Tensor, nn

from cosep.observation import observe, tapped
from cosep.zoo import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="a checkpoint of the CIFAR-10 ResNet-56; random weights without")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20, help="pairs of passes for each figure")
    parser.add_argument("--threads", type=int, help="of torch; on a busy machine 1 gives the steadiest figures")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    torch.manual_seed(0)
    model = load_model("resnet56", weights=args.weights).eval()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    inputs, labels = torch.randn(args.batch, 3, 32, 32), torch.arange(args.batch) % 10

    def plain() -> None:
        with torch.no_grad():
            model(inputs)

    def taps(tap: str) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad(), tapped(model, layers, tap):
                model(inputs)

        return run

    print(f"ResNet-56, taps on {len(layers)} convolutions, batch {args.batch}, {torch.get_num_threads()} threads")
    report("taps after the layers", taps("output"), plain, args.repeats)
    report("taps after the activations", taps("activation"), plain, args.repeats)
    report(
        "observe(): taps, checks and float64 moments",
        lambda: observe_batch(model, inputs, labels, layers),
        plain,
        args.repeats,
    )


def observe_batch(model: nn.Module, inputs: Tensor, labels: Tensor, layers: list[str]) -> None:
    """A whole observation of one batch, set-up and splitting into layers included."""
    observe(model, [(inputs, labels)], layers)


def report(what: str, tested: Callable[[], None], plain: Callable[[], None], repeats: int) -> None:
    """Print the median ratio of interleaved runs and its quartiles."""
    with_taps, without = in_turns(tested, plain, repeats)
    low, middle, high = statistics.quantiles(ratios(with_taps, without), n=4)
    print(
        f"{what}: {middle:.3f} times the plain pass (quartiles {low:.3f} to {high:.3f}); fastest against fastest "
        f"{min(with_taps) / min(without):.3f}; plain {statistics.median(without) * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
