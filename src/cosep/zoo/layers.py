"""What the zoo's networks share: convolution with BatchNorm, and the initialisation."""

from __future__ import annotations

from torch import nn


def conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the size (at stride 1)."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def initialise(model: nn.Module, *, linear_std: float | None = None) -> None:
    """He et al. (2015) for convolutions, BatchNorm the identity; linear layers N(0, linear_std), if given."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and linear_std is not None:
            nn.init.normal_(module.weight, 0.0, linear_std)
            nn.init.zeros_(module.bias)
