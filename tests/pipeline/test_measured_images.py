"""Accuracies cost passes over the held-out images: how many are run for them."""

import torch
from torch import nn

import cosep
from cosep.config import preset, replace_settings
from cosep.measurement import accuracy
from tests.pipeline.conftest import CPU


class Counted(list):
    """Batches that count how many of them were asked for."""

    def __init__(self, batches):
        super().__init__(batches)
        self.drawn = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.drawn += 1
            yield batch


def pruned(order):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(3 if i == 0 else 4, 4, 1), nn.ReLU()) for i in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    images = torch.randn(1280, 3, 4, 4)
    batches = [(x, torch.arange(len(x)) % 2) for x in images.split(64)]
    holdout = Counted(batches)
    config = replace_settings(
        preset(),
        {
            **CPU,
            "order": order,
            "select": {"criterion": "l2", "width_rule": "uniform"},
            "limits": {"max_macs": "70%"},
            "rebuild": {"solve": False},
            "recover": {"epochs": 0.0},
        },
    )
    result = cosep.prune(model, batches[:2], holdout=holdout, config=config)
    cut = [entry for entry in result.report.groups if entry.kept < entry.width]
    assert len(cut) >= 3
    return result, holdout


def test_together_the_uncut_and_the_finished_network_are_measured_once_each():
    result, holdout = pruned("together")
    assert holdout.drawn == 2 * len(holdout) + 1  # one batch is tried before any work
    expected = accuracy(result.model, list(holdout))
    assert result.report.holdout_accuracy.after == expected


def test_one_by_one_some_hundred_images_are_measured_after_each_group():
    result, holdout = pruned("one-by-one")
    groups = len(result.report.groups)
    assert holdout.drawn == 2 * len(holdout) + 1 + 8 * groups
    assert all(entry.accuracy is not None for entry in result.report.groups)
