import torch
from torch import nn

from cosep.storage.tensors import load_weights


class Versioned(nn.Linear):
    """As torchvision's MNASNet: it refuses a state that does not say of which version it is."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version") != 2:
            raise ValueError("version should be set")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_a_module_that_asks_for_its_version_gets_it():
    model = nn.Sequential(Versioned(2, 3))
    values = {name: torch.full_like(tensor, 7.0) for name, tensor in model.state_dict().items()}
    load_weights(model, values)
    assert all((tensor == 7).all() for tensor in model.state_dict().values())
