"""Tensors by name: from safetensors files of unknown origin, and into a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from cosep.errors import CosepError

# The format allows headers of 100 MB, whose million empty tensors took a minute and 2 GB to list. A header of ours also
# holds the document of a checkpoint: the curves of every group.
HEADER_LIMIT = 64 << 20
MOST_TENSORS = 100_000


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model, in place, values for exactly its parameters and buffers."""
    state = OrderedDict(weights)
    # Some modules (torchvision's MNASNet) read their own version from here, and refuse a state without it.
    state._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    model.load_state_dict(state)


def read_tensors(path: Path, error: type[CosepError], way_out: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file, on the CPU; `way_out` ends the sentence if it is none.

    The format holds no code, and its reader checks that the tensors are exactly the rest of the file; what is checked
    here is what a small file can ask for beyond that.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise ValueError("it is missing or no regular file")
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > HEADER_LIMIT:
            raise ValueError(f"its header has {header:,} bytes; at most {HEADER_LIMIT:,} are read")
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) > MOST_TENSORS:
                raise ValueError(f"it lists {len(names):,} tensors; at most {MOST_TENSORS:,} are read")
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    # The last three: shapes of no elements may have sizes that torch cannot hold, and kinds of numbers it lacks.
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, KeyError) as failure:
        raise error(f"{path} is damaged or no safetensors file ({failure}). {way_out}") from failure
