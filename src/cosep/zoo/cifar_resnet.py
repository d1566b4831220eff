"""The ResNets of He et al. (2016), section 4.2, for small images: three stages of basic blocks.

With option-A shortcuts, parameter names are those of the public project akamaster/pytorch_resnet_cifar10, whose weights
fit. With option B they are torchvision's (`downsample.0`, `downsample.1`, `fc`), as other public weights have them.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise

Shortcut = Literal["A", "B"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut = "A") -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs
        self.downsample: nn.Sequential | None = None
        if shortcut == "B" and (stride != 1 or inputs != outputs):
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Option B: a 1x1 convolution. Option A: every second pixel, and zeros for new channels, half on each side."""
        if self.downsample is not None:
            return self.downsample(x)
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return x


class CifarResNet(nn.Module):
    """6 * blocks + 2 layers: (n, channels, h, w) -> logits (n, classes)."""

    def __init__(
        self,
        blocks: int,
        *,
        classes: int = 10,
        channels: int = 3,
        widths: tuple[int, int, int] = (16, 32, 64),
        shortcut: Shortcut = "A",
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layer1 = _stage(BasicBlock(widths[0], widths[0], 1, shortcut), blocks)
        self.layer2 = _stage(BasicBlock(widths[0], widths[1], 2, shortcut), blocks)
        self.layer3 = _stage(BasicBlock(widths[1], widths[2], 2, shortcut), blocks)
        # Public weights name the last layer after the project that they come from.
        self.classifier = "linear" if shortcut == "A" else "fc"
        self.add_module(self.classifier, nn.Linear(widths[2], classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.get_submodule(self.classifier)(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(first: BasicBlock, blocks: int) -> nn.Sequential:
    width = first.bn2.num_features
    return nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(blocks - 1)))
