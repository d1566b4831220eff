"""Activations with weights of their own: PReLU."""

from __future__ import annotations

from torch import nn

from cosep.layers.kind import Channelwise

PRELU = Channelwise((nn.PReLU,), ("weight",), "num_parameters")
