"""Numbers that a module keeps of its own channels: how many heads an attention has, and how wide they are together."""

from __future__ import annotations

from torch import nn

from cosep.layers.narrow import INNER, tell_width, told_width

HEADS = (
    *("num_heads", "n_heads", "heads", "nheads", "num_head", "n_head", "nhead", "num_attention_heads", "nh", "h"),
    *("num_kv_heads", "n_kv_heads", "num_key_value_heads", "kv_heads"),
)
# Some say by these how wide their input is, too; then a cut fails its check and is taken back.
INNER_WIDTHS = (
    *("all_head_size", "attn_dim", "inner_dim", "inner_size", "dim_inner", "inner_width", "total_head_dim"),
    *("val_attn_dim", "all_head_dim"),
    *("embed_dim", "embed_size", "dim", "d_model", "width", "hidden_size", "hidden_dim", "n_embd", "dim_head_total"),
)


def number_of(module: nn.Module, name: str) -> int | None:
    """A whole number that a module keeps under a name, or its inner width; None for anything else."""
    if name.startswith(f"{INNER}."):
        told = told_width(module)
        return told if told is not None else _inputs(module, name.removeprefix(f"{INNER}."))
    held = module.__dict__.get(name)
    return held if isinstance(held, int) and not isinstance(held, bool) else None


def set_number(module: nn.Module, name: str, count: int) -> None:
    """Change a number that `number_of` finds, in place."""
    if name.startswith(f"{INNER}."):
        tell_width(module, count)
    else:
        setattr(module, name, count)


def _inputs(module: nn.Module, name: str) -> int | None:
    """How many inputs a linear layer in a module has."""
    try:
        layer = module.get_submodule(name)
    except AttributeError:
        return None
    count = getattr(layer, "in_features", None)
    return count if isinstance(count, int) else None
