"""MobileNet-V2 (Sandler et al., 2018), for ImageNet and for CIFAR; parameter names and shapes are torchvision's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from cosep.zoo.layers import conv, initialise

# Table 2 of the paper: expansion, width, repetitions, stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, project: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [_conv_bn_relu(inputs, hidden, 1)] if expansion != 1 else []
        depthwise = _conv_bn_relu(hidden, hidden, 3, stride=stride, groups=hidden)
        self.conv = nn.Sequential(*expand, depthwise, conv(hidden, outputs, 1), nn.BatchNorm2d(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """(n, 3, h, w) -> logits (n, classes); images shrink 32-fold, `small_images` 8-fold (two strides less)."""

    def __init__(self, *, classes: int = 1000, small_images: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu(3, 32, 3, stride=1 if small_images else 2)]
        inputs = 32
        for expansion, width, repetitions, stride in _STAGES:
            first = 1 if small_images and width == 24 else stride
            for i in range(repetitions):
                layers.append(InvertedResidual(inputs, width, stride=1 if i else first, expansion=expansion))
                inputs = width
        layers.append(_conv_bn_relu(inputs, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, classes))
        initialise(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def _conv_bn_relu(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        conv(inputs, outputs, kernel, stride=stride, groups=groups), nn.BatchNorm2d(outputs), nn.ReLU6()
    )
