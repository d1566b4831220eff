"""Test accuracy of an unpruned network, beside the paper's.

    python experiments/base_accuracy.py --model resnet56 --weights FILE --data cifar10:DIR --out FILE

With the public weights: ResNet-20 91.73 %, ResNet-56 93.39 % on CIFAR-10.
"""

from __future__ import annotations

import cells as kept_cells
from common import arguments, loaded, run
from paper import headline, key

from cosep.comparison.trials import accuracy_there


def main() -> None:
    args = arguments(__doc__, model="resnet56", out="a JSON file", quick="few test images").parse_args()
    data, model, about = loaded(args, "base accuracy")
    cells = kept_cells.read(args.out, about)
    if not cells:
        cells = {"accuracy": accuracy_there(model, data.test)}
        kept_cells.write(args.out, about, cells)
    reported = headline(args.model, args.data)
    row = (
        key(args.model, args.data),
        str(about["test_images"] or "–"),
        f"{100 * cells['accuracy']:.2f} %",
        f"{reported['base']:.2f} %" if reported else "–",
    )
    print(kept_cells.markdown(("network", "test images", "accuracy", "the paper's"), [row]))


if __name__ == "__main__":
    run(main)
