"""Values into a model's tensors, by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model, in place, values for exactly its parameters and buffers."""
    state = OrderedDict(weights)
    # Some modules (torchvision's MNASNet) read their own version from here, and refuse a state without it.
    state._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    model.load_state_dict(state)
