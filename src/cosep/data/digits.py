"""The embedded data set: 1,797 handwritten digits of 8x8 pixels with grey levels 0 to 16.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
(doi.org/10.24432/C50P49, CC BY 4.0): its test part, as scikit-learn distributes it. `digits.npz` holds the images and
labels unchanged, as bytes.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch

from cosep.data.order import stratified
from cosep.data.tensors import TensorSplit

_LEVEL = 15  # 16 grey levels over a byte: 0 ... 240
_MEAN, _STD = (0.2876,), (0.3541,)  # of pixel / 255 in the training part
_TEST_SHARE = 0.2


def read_digits() -> tuple[TensorSplit, TensorSplit, tuple[str, ...]]:
    """The digits as (train, test, class names); which fifth is the test set is fixed, whatever the seed of a run."""
    with files("cosep.data").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        images = torch.from_numpy(stored["images"]).unsqueeze(1) * _LEVEL
        labels = torch.from_numpy(stored["labels"]).long()
    train, test = stratified(labels, _TEST_SHARE, seed=0, purpose="holdout")
    # Not augmented: a mirrored digit is no digit, and shifts by a pixel of eight did not help on held-out images.
    splits = (TensorSplit(images[i], labels[i], _MEAN, _STD, pad=0, flip=False) for i in (train, test))
    return next(splits), next(splits), tuple("0123456789")
