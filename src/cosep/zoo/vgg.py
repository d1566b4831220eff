"""VGG-16 and VGG-19 (Simonyan & Zisserman, 2015) with BatchNorm, as usual for CIFAR: one linear layer at the end."""

from __future__ import annotations

from torch import Tensor, nn

from cosep.zoo.layers import initialise

_STAGES = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


class CifarVGG(nn.Module):
    """Five stages of 3x3 convolutions, each halving the image: (n, 3, 32, 32) -> logits (n, classes)."""

    def __init__(self, depth: int, *, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width, count in zip(_WIDTHS, _STAGES[depth], strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                inputs = width
            # The same as without ceil_mode for 32 pixels; smaller images end as one pixel too.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
