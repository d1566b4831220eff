"""Test accuracy of a zoo network on CIFAR-10 (ResNet-20 91.73 %, ResNet-56 93.39 % with the public weights).

python experiments/base_accuracy.py --data DIR --weights DIR_OR_FILE --model resnet56
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from cosep.data import load_data
from cosep.errors import CosepError
from cosep.zoo import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of CIFAR-10's files, or its parent")
    parser.add_argument(
        "--weights", required=True, type=Path, help="a checkpoint, or a folder with MODEL_cifar10.safetensors"
    )
    parser.add_argument("--model", default="resnet56")
    given = parser.parse_args()
    weights = given.weights / f"{given.model}_cifar10.safetensors" if given.weights.is_dir() else given.weights
    try:
        model = load_model(given.model, weights=weights).eval()
        data = load_data(f"cifar10:{given.data}")
    except CosepError as error:
        sys.exit(f"error: {error}")
    correct = images = 0
    with torch.inference_mode():
        for inputs, labels in data.test:
            correct += int((model(inputs).argmax(1) == labels).sum())
            images += len(labels)
    print(f"{given.model}: {100 * correct / images:.2f} % of {images} test images")


if __name__ == "__main__":
    main()
