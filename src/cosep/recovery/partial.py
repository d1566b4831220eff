"""A training between two updates as one file: put there whole or not at all, and sealed, so that damage is seen."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cosep.errors import RunError
from cosep.recovery.loop import Progress, check_average
from cosep.runs.folder import difference, failing_as_ours, write_atomically

_MARK = b"cosep training 2 "  # then the SHA-256 of all that follows the line


def write_partial(path: Path, described: Mapping[str, Any], progress: Progress, seconds: float = 0.0) -> None:
    """Write a training between two updates; what stood there before is replaced at once or not at all."""
    stream = io.BytesIO()
    state = {name: getattr(progress, name) for name in Progress.__annotations__}
    torch.save({"described": dict(described), **state, "seconds": seconds}, stream)
    content = stream.getvalue()
    with failing_as_ours(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_partial(path: Path, described: Mapping[str, Any], model: nn.Module) -> tuple[Progress | None, float]:
    """What an earlier start of this training left, and its seconds; None if there is nothing."""
    if not path.exists():
        return None, 0.0
    try:
        state = torch.load(io.BytesIO(_unsealed(path)), map_location="cpu", weights_only=True)  # never runs its code
        before = state.pop("described")
        if other := difference(before, described):
            raise RunError(
                f"{path} holds another training: {other}. Remove it to start over, or choose another place for the "
                "result."
            )
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        if {name: tensor.shape for name, tensor in state["weights"].items()} != shapes:
            raise RunError(f"{path} is of another network than this one. Remove it to start over.")
        check_average(state["average"], shapes)
        seconds = float(state.pop("seconds", 0.0))
        return Progress(**state), seconds
    except RunError:
        raise
    except Exception as error:  # torch's reader fails in many ways
        raise RunError(f"{path} is damaged ({error}). Remove it to start over.") from error


def _unsealed(path: Path) -> bytes:
    seal, _, content = path.read_bytes().partition(b"\n")
    if not seal.startswith(_MARK):
        raise ValueError("it does not begin as a training of this version of cosep does")
    if seal.removeprefix(_MARK).decode(errors="replace") != hashlib.sha256(content).hexdigest():
        raise ValueError("its checksum is not the one that it was written with")
    return content
