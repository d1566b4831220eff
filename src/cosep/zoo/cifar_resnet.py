"""The ResNets of He et al. (2016), section 4.2, for small images: three stages of basic blocks.

Parameter names and shortcuts are those of the public project akamaster/pytorch_resnet_cifar10, whose weights fit.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and an option-A shortcut: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Option A: every second pixel, and zeros for the new channels, half before and half after."""
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return x


class CifarResNet(nn.Module):
    """6 * blocks + 2 layers: (n, channels, h, w) -> logits (n, classes)."""

    def __init__(
        self, blocks: int, *, classes: int = 10, channels: int = 3, widths: tuple[int, int, int] = (16, 32, 64)
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layer1 = _stage(widths[0], widths[0], blocks, 1)
        self.layer2 = _stage(widths[0], widths[1], blocks, 2)
        self.layer3 = _stage(widths[1], widths[2], blocks, 2)
        self.linear = nn.Linear(widths[2], classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))
