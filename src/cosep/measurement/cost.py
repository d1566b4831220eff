"""What a model costs whatever it runs on: multiply-accumulates, parameters, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosep.layers import bare_axis, kind_of, mixing_kind_of, written_out
from cosep.models.modes import device_of, evaluating
from cosep.models.passes import functional_linears
from cosep.records import LayerCost


def macs(model: nn.Module, example_input: Tensor) -> int:
    """Multiply-accumulates of one sample, the first of the example (batch, ...): convolutions and matrix products.

    Biases, normalisations, activations and pooling are not counted, as is the custom in the pruning literature.
    """
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # slow to import, and only this needs it

    def attention(query: Any, key: Any, value: Any, *_args: Any, out_shape: Any = None, **_settings: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    # The counter knows attention as one operation on other devices than a CPU only.
    own = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    one = example_input[:1].to(device_of(model))
    model = written_out(model)  # in which no product is hidden
    with evaluating(model), _frozen(model), FlopCounterMode(display=False, custom_mapping=own) as counter:
        model(one)
    # The counter counts a multiplication and an addition apart, and always in pairs.
    return int(counter.get_total_flops()) // 2


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for gradients: torch's counter stumbles over views of those that do."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in asking:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def parameters(model: nn.Module) -> int:
    """How many numbers the model learns; a parameter used in several places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weight_bytes(model: nn.Module) -> int:
    """The bytes of all the tensors a saved model holds, buffers included, shared ones once; a file adds its header."""
    unique = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values() if isinstance(tensor, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def layer_macs(model: nn.Module, example_input: Tensor) -> dict[str, LayerCost]:
    """Multiply-accumulates of one sample in every convolution and linear layer, and how many channels go in and out."""
    found: dict[str, LayerCost] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        # A transposed convolution multiplies every input by its weights, the others make every output with theirs.
        transposed = getattr(module, "transposed", False)
        values: Tensor = args[0] if transposed else output
        inputs, outputs = _sizes(module)
        weight: Tensor = module.weight  # type: ignore[assignment]  # no parameter where it is parametrised
        per_value = weight.numel() / (inputs if transposed else outputs)
        before = found[name].product if name in found else 0.0
        found[name] = LayerCost(inputs, outputs, before + per_value * values.numel())

    layers = {name: module for name, module in model.named_modules() if mixing_kind_of(module) is not None}
    one = example_input[:1].to(device_of(model))
    with ExitStack() as stack:
        for name, module in layers.items():
            stack.callback(module.register_forward_hook(partial(note, name)).remove)
        stack.enter_context(evaluating(model))
        stack.enter_context(
            functional_linears(model, layers, lambda name, output: note(name, layers[name], (), output))
        )
        model(one)
    return found


def layer_parameters(model: nn.Module) -> dict[str, LayerCost]:
    """The parameters of every layer that has some: a weight grows with inputs and outputs, all else with outputs."""
    found: dict[str, LayerCost] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        total = float(sum(parameter.numel() for parameter in own.values()))
        if mixing_kind_of(module) is not None:
            product, bias = (float(own[key].numel()) if key in own else 0.0 for key in ("weight", "bias"))
            found[name] = LayerCost(*_sizes(module), product, bias)
        else:
            found[name] = LayerCost(1, max(parameter.numel() for parameter in own.values()), 0.0, total)
        for key, parameter in own.items():
            found.setdefault(f"{name}.{key}" if name else key, _bare_cost(parameter))
    return found


def _bare_cost(parameter: Tensor) -> LayerCost:
    """A table of rows and columns grows with both; anything else with its channels."""
    size = parameter.numel()
    if sum(length > 1 for length in parameter.shape) == 2 and parameter.shape[-1] > 1:
        return LayerCost(parameter.shape[-1], size // parameter.shape[-1], float(size))
    return LayerCost(1, parameter.shape[bare_axis(parameter)] if parameter.ndim else 1, 0.0, size)


def _sizes(module: nn.Module) -> tuple[int, int]:
    """How many channels go into a layer that mixes them, and how many come out."""
    kind = kind_of(module)
    assert kind is not None
    return kind.size(module, "in"), kind.size(module, "out")
