"""ResNet-50 for ImageNet (He et al., 2016; stride in the 3x3 convolution); names and shapes are torchvision's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise

_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut: (n, inputs, h, w) -> (n, 4 * width, h / stride, w / stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet(nn.Module):
    """Four stages of bottleneck blocks: (n, 3, h, w) -> logits (n, classes)."""

    def __init__(self, blocks: tuple[int, int, int, int], *, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, blocks[0], 1)
        self.layer2 = _stage(256, 128, blocks[1], 2)
        self.layer3 = _stage(512, 256, blocks[2], 2)
        self.layer4 = _stage(1024, 512, blocks[3], 2)
        self.fc = nn.Linear(512 * _EXPANSION, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(first, *(Bottleneck(width * _EXPANSION, width, 1) for _ in range(blocks - 1)))
