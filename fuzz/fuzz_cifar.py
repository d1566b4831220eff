"""CIFAR files of all four layouts, images and names: the first byte chooses, the rest is the file."""

import harness
import numpy as np
from harness import pickle  # the covered one

with harness.covered():
    from cosep.data import cifar

LAYOUTS = [layout for both in cifar._LAYOUTS.values() for layout in both]
PATH = harness.SCRATCH / "file"


def test(data: bytes) -> None:
    choice, content = data[:1] or b"\0", data[1:]
    layout = LAYOUTS[choice[0] % 4]
    PATH.write_bytes(content)
    if choice[0] & 4:
        names = cifar._class_names(PATH, layout)
        assert len(names) == layout.classes
    else:
        pixels, labels = cifar._read_file(PATH, layout)
        assert pixels.shape == (len(labels), 3072)
        assert labels.max() < layout.classes


def seeds():
    pixels = np.zeros((2, 3072), np.uint8)
    yield b"\0" + (b"\1" + bytes(3072)) * 2
    yield b"\2" + (b"\1\2" + bytes(3072)) * 2
    for protocol in (0, 2, 3, 4, 5):
        yield b"\1" + pickle.dumps({b"data": pixels, b"labels": [1, 2]}, protocol=protocol)
        yield b"\3" + pickle.dumps({"data": pixels, "fine_labels": [1, 2], "coarse_labels": [0, 0]}, protocol=protocol)
        yield b"\5" + pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}, protocol=protocol)
    yield b"\4" + b"\n".join(b"name%d" % i for i in range(10))


if __name__ == "__main__":
    harness.fuzz(test, seeds())
