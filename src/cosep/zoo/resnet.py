"""ResNet-50 for ImageNet (He et al., 2016); names and shapes are torchvision's.

Two networks bear this name. In the paper, in Caffe and in Keras a stage's stride is in its first 1x1 convolution
("v1"); torchvision has it in the 3x3 convolution behind that. Their weights have the same names and shapes, so a file
fits both and is right in one.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise

_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut: (n, inputs, h, w) -> (n, 4 * width, h / stride, w / stride)."""

    def __init__(self, inputs: int, width: int, stride: int, *, stride_first: bool = False) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.conv1 = conv(inputs, width, 1, stride=stride if stride_first else 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride=1 if stride_first else stride)
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
    """Four stages of bottleneck blocks: (n, 3, h, w) -> logits (n, classes); `stride_first` is the variant v1."""

    def __init__(self, blocks: tuple[int, int, int, int], *, classes: int = 1000, stride_first: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(Bottleneck(64, 64, 1, stride_first=stride_first), 64, blocks[0])
        self.layer2 = _stage(Bottleneck(256, 128, 2, stride_first=stride_first), 128, blocks[1])
        self.layer3 = _stage(Bottleneck(512, 256, 2, stride_first=stride_first), 256, blocks[2])
        self.layer4 = _stage(Bottleneck(1024, 512, 2, stride_first=stride_first), 512, blocks[3])
        self.fc = nn.Linear(512 * _EXPANSION, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(first: Bottleneck, width: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(first, *(Bottleneck(width * _EXPANSION, width, 1) for _ in range(blocks - 1)))
