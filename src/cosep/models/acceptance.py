"""Models as callers give them: taken out of their wrappers, and refused at once where they would fail later."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from cosep.errors import ModelError, TraceError
from cosep.layers import TakesPlain, TellsWidth

# Modules of torch that hold packed integers where layers have weights.
_QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside wrappers for speed or several devices, with a warning that says so; others as they are."""
    inner, path = model, "model"
    while attribute := _wrapped_as(inner):
        inner, path = getattr(inner, attribute), f"{path}.{attribute}"
    if inner is not model:
        warnings.warn(
            f"the model is wrapped in {type(model).__name__}: the network inside, `{path}`, is worked on, and the "
            "result is not wrapped. Wrap or compile the result again.",
            stacklevel=3,
        )
    return inner


def _wrapped_as(module: object) -> str:
    """The attribute under which a wrapper keeps its network; "" for everything else."""
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "module"
    # By name: the class lives in torch's compiler, which takes seconds to import.
    return "_orig_mod" if type(module).__name__ == "OptimizedModule" else ""


def check_structure(model: nn.Module) -> None:
    """Refuse a model whose layers cannot be copied, followed or cut, and say what to give instead."""
    if not isinstance(model, nn.Module):
        raise TraceError(f"the model is a {type(model).__name__}; an nn.Module is needed.")
    for name, module in model.named_modules():
        what, path = (name, f"model.{name}") if name else ("the model", "model")
        if attribute := _wrapped_as(module):
            wrapper = "torch.compile" if attribute == "_orig_mod" else type(module).__name__
            raise TraceError(
                f"{what} is wrapped in {wrapper}; give the module inside, `{path}.{attribute}`, and wrap the result."
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{what} is a ScriptModule, whose layers cannot be changed; give the nn.Module it was made from."
            )
        if type(module).__module__.startswith(_QUANTISED):
            raise TraceError(
                f"{what} is quantised ({type(module).__name__}), and its integers cannot be cut or trained. "
                "Prune the model in float32 and quantise the result."
            )
        if remedy := _computed_weight(module):
            raise TraceError(
                f"the weight of {what} is computed anew in every pass by a hook, which cannot be copied or cut. "
                f"Make it a plain parameter first: {remedy.format(path)}."
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise TraceError(f"{name} has no shape yet (a lazy layer); run the model once on an input first.")
        if tensor.is_meta:
            raise TraceError(f"{name} is on the meta device and has no values; give the model its weights first.")


def _computed_weight(module: nn.Module) -> str:
    """The call that ends an old-style reparametrisation of a module, {} standing for the module; "" if it has none."""
    from torch.nn.utils.prune import BasePruningMethod
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            return f"torch.nn.utils.remove_weight_norm({{}}, {hook.name!r})"
        if isinstance(hook, SpectralNorm):
            return f"torch.nn.utils.remove_spectral_norm({{}}, {hook.name!r})"
        if isinstance(hook, BasePruningMethod):
            return f"torch.nn.utils.prune.remove({{}}, {hook._tensor_name!r})"
    return ""


def check_values(model: nn.Module) -> None:
    """Refuse weights that statistics, least squares and training cannot work with, by name."""
    start: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ModelError(f"{name} is {parameter.dtype}; real weights are needed. Leave out complex layers.")
        if parameter.is_floating_point() and parameter.dtype.itemsize < 4:
            raise ModelError(
                f"{name} is {parameter.dtype}, too coarse for statistics, the rebuild and training. Prune "
                "`model.float()` with float32 inputs and convert the result back; for speed on a GPU, train with the "
                "setting device.precision (16-mixed, bf16-mixed)."
            )
        if not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"{name} holds {_first_odd(parameter)}; finite weights are needed. The checkpoint is damaged, or its "
                "training diverged: load another one."
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"{name} has a hook on its gradient, which would be lost: a parameter that is cut is a new one. "
                "Remove the hook before, and register it on the parameter of the result."
            )
        if parameter.numel() and start.setdefault(parameter.data_ptr(), name) != name:
            raise ModelError(
                f"{start[parameter.data_ptr()]} and {name} are two parameters in the same memory, which a copy would "
                "part. Tie layers by giving them one parameter, as in `b.weight = a.weight`."
            )
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"the model's state_dict holds a {type(value).__name__} ({name}); only tensors can be kept without "
                "pickle. Register what it is made of as a buffer, or take get_extra_state out of the class."
            )
    for name, buffer in model.named_buffers():
        # Infinite buffers are masks, and meant; nan never is.
        if buffer.is_floating_point() and bool(buffer.isnan().any()):
            raise ModelError(f"the buffer {name} holds nan; load a checkpoint whose statistics are whole.")


def _first_odd(tensor: Tensor) -> float:
    return float(tensor.detach()[~torch.isfinite(tensor)][0])


def warn_of_hooks(model: nn.Module) -> None:
    """Tell the caller of hooks in the model: they come along, and run in every pass."""
    found: list[str] = []
    for name, module in model.named_modules():
        tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        hooks = [hook for table in tables for hook in getattr(module, table, {}).values()]
        if any(not isinstance(hook, (TellsWidth, TakesPlain)) for hook in hooks):
            found.append(name or "the model itself")
    if found:
        named = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        warnings.warn(
            f"the model has hooks (on {named}). They are copied with it, run in every pass over the data here, and are "
            "in the result. Remove those that only watch before pruning.",
            stacklevel=3,
        )
