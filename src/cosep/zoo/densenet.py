"""DenseNet-40 (Huang et al., 2017) for CIFAR: growth 12, no bottlenecks, no compression."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise


class DenseLayer(nn.Module):
    """Append what one convolution makes of all channels so far: (n, inputs, h, w) -> (n, inputs + growth, h, w)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = conv(inputs, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class Transition(nn.Module):
    """Between two blocks: (n, inputs, h, w) -> (n, inputs, h / 2, w / 2)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = conv(inputs, inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class CifarDenseNet(nn.Module):
    """Three dense blocks of (depth - 4) / 3 layers: (n, 3, 32, 32) -> logits (n, classes)."""

    def __init__(self, depth: int = 40, *, growth: int = 12, classes: int = 10) -> None:
        super().__init__()
        layers = (depth - 4) // 3
        width = 16  # of the stem; the paper doubles the growth rate instead only with bottlenecks and compression
        self.conv1 = conv(3, width, 3)
        self.block1, width = _block(width, growth, layers)
        self.transition1 = Transition(width)
        self.block2, width = _block(width, growth, layers)
        self.transition2 = Transition(width)
        self.block3, width = _block(width, growth, layers)
        self.bn = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.transition1(self.block1(self.conv1(x)))
        x = self.block3(self.transition2(self.block2(x)))
        return self.linear(F.adaptive_avg_pool2d(F.relu(self.bn(x)), 1).flatten(1))


def _block(inputs: int, growth: int, layers: int) -> tuple[nn.Sequential, int]:
    return nn.Sequential(*(DenseLayer(inputs + i * growth, growth) for i in range(layers))), inputs + layers * growth
