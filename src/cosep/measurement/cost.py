"""What a model costs whatever it runs on: multiply-accumulates, parameters, bytes."""

from __future__ import annotations

from torch import Tensor, nn

from cosep.models.modes import device_of, evaluating


def macs(model: nn.Module, example_input: Tensor) -> int:
    """Multiply-accumulates of one sample, the first of the example (batch, ...): convolutions and matrix products.

    Biases, normalisations, activations and pooling are not counted, as is the custom in the pruning literature.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import, and only this needs it

    one = example_input[:1].to(device_of(model))
    with evaluating(model), FlopCounterMode(display=False) as counter:
        model(one)
    # The counter counts a multiplication and an addition apart, and always in pairs.
    return int(counter.get_total_flops()) // 2


def parameters(model: nn.Module) -> int:
    """How many numbers the model learns; a parameter used in several places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weight_bytes(model: nn.Module) -> int:
    """The bytes of all the tensors a saved model holds, buffers included, shared ones once; a file adds its header."""
    unique = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values() if isinstance(tensor, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())
