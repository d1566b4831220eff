"""How many images the rebuild sees where nobody says: what its solutions have use for."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cosep.config import RebuildConfig
from cosep.runs.remaking import images_of_rebuild


@pytest.mark.parametrize(
    ("features", "side", "images"),
    [
        (8, 32, 1000),  # 64 rows for each of 8 columns are 512 images, and that is few to judge by
        (32, 32, 64 * 32),  # the classifier has one row of each image
        (512, 32, 4000),  # as many as there is time for
        (512, 224, 3000),
    ],
)
def test_the_widest_solution_decides_within_bounds(features, side, images):
    network = nn.Sequential(nn.Conv2d(3, features, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 4))
    job = SimpleNamespace(original=network, example=torch.zeros(1, 3, side, side))
    assert images_of_rebuild(job, RebuildConfig()) == images


@pytest.mark.parametrize("asked", [0, 70])
def test_a_number_that_was_asked_for_is_taken(asked):
    job = SimpleNamespace(original=nn.Linear(4, 4), example=torch.zeros(1, 3, 32, 32))
    assert images_of_rebuild(job, RebuildConfig(images=asked)) == asked
