"""Weights from files, without running code that a file may carry."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosep.errors import ModelError
from cosep.storage.tensors import read_tensors

_WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
)  # the entry of a training checkpoint that holds the weights
_PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
)  # what DataParallel, torch.compile and Lightning modules put before names


def read_state_dict(path: str | Path, *, known: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors of a checkpoint by parameter name: .safetensors, or a file of torch.save that holds no code.

    Weights within a training checkpoint are found, and prefixes that wrappers put before every name are taken off,
    unless the names are among the `known` ones as they are.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(
            f"there is no checkpoint {path}; give a .safetensors file or a state dict saved by torch.save."
        )
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    return _under_own_names(_unwrapped(loaded, path), set(known), path)


def load_checkpoint(model: nn.Module, path: str | Path, *, ignore: tuple[str, ...] = ()) -> None:
    """Fill a model with the weights of a file: all, or a ModelError with the first mismatches and no change.

    Entries whose names begin with one of `ignore` may be there or not.
    """
    expected = model.state_dict()
    found = read_state_dict(path, known=expected.keys())
    found = {k: v for k, v in found.items() if k in expected or not k.startswith(ignore)} if ignore else found
    # Checkpoints older than torch 0.4.1 do not count batches; nothing depends on it.
    missing = [k for k in expected if k not in found and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in found if k not in expected]
    reshaped = [
        f"{k} is {_shape(v)} instead of {_shape(expected[k])}"
        for k, v in found.items()
        if k in expected and isinstance(expected[k], Tensor) and v.shape != expected[k].shape
    ]
    # torch would copy whole numbers and truth values into weights, and the real part of complex ones, without a word.
    retyped = [
        f"{k} is {v.dtype}"
        for k, v in found.items()
        if k in expected and isinstance(expected[k], Tensor) and expected[k].is_floating_point() > v.is_floating_point()
    ]
    lists = (("missing", missing), ("unexpected", unexpected), ("wrong shape", reshaped), ("no floats", retyped))
    mismatches = [
        f"{title}: {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for title, keys in lists
        if keys
    ]
    if mismatches:
        raise ModelError(
            f"{path} does not fit the model; {'; '.join(mismatches)}. "
            "Check the model's name and its number of classes. The model was left as it was."
        )
    model.load_state_dict(found, strict=False)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    return read_tensors(path, ModelError, "Copy or download it again.")[0]


def _read_torch(path: Path) -> Any:
    try:
        _refuse_bombs(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about old and TorchScript files; the error below says more
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as failure:
        told = str(failure)
        if "TorchScript" in told or (isinstance(failure, pickle.UnpicklingError) and _is_refusal(told)):
            raise ModelError(
                f"{path} carries code (a whole pickled model or other objects), which is refused: loading it could run "
                "anything. Where you trust the file, convert it once: "
                "torch.save(torch.load(FILE, weights_only=False).state_dict(), 'weights.pt')."
            ) from failure
        first = told.strip().splitlines()[0] if told.strip() else type(failure).__name__
        raise ModelError(
            f"{path} is damaged or no checkpoint ({first}). Expected a .safetensors file or a state dict saved by "
            "torch.save; copy or download it again."
        ) from failure


def _refuse_bombs(path: Path) -> None:
    """Refuse an archive whose entries would take more memory than the file has bytes; torch.save makes no such one."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        if any("/code/" in entry.filename for entry in archive.infolist()):
            raise ValueError("it is a TorchScript archive")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("its entries are compressed, which torch.save never does")
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError("its entries are larger than the file")


def _is_refusal(told: str) -> bool:
    return any(
        words in told for words in ("Unsupported global", "Unsupported class", "GLOBAL", "Trying to call reduce")
    )


def _unwrapped(loaded: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(3):  # Lightning and others nest once or twice
        inner = next(
            (loaded[w] for w in _WRAPPERS if isinstance(loaded, Mapping) and isinstance(loaded.get(w), Mapping)), None
        )
        if inner is None:
            break
        loaded = inner
    if not isinstance(loaded, Mapping) or not loaded:
        raise ModelError(
            f"{path} holds {_described(loaded)}; expected parameter names with their tensors (a state dict)."
        )
    odd = [k if isinstance(k, str) else f"a {type(k).__name__}" for k, v in loaded.items() if not _is_entry(k, v)]
    if odd:
        raise ModelError(
            f"{path} holds entries that are no tensors ({', '.join(odd[:3])}), and none of {', '.join(_WRAPPERS)} "
            "to look into; save the model's state_dict() instead."
        )
    unusual = [k for k, v in loaded.items() if v.layout != torch.strided or v.is_meta or v.is_quantized or v.is_nested]
    if unusual:
        raise ModelError(
            f"{path} holds tensors that are sparse, quantized, nested or without values ({', '.join(unusual[:3])}); "
            "save the state_dict() of an ordinary model instead."
        )
    return dict(loaded)


def _is_entry(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, Tensor)


def _under_own_names(state: dict[str, Tensor], known: set[str], path: Path) -> dict[str, Tensor]:
    """The entries under the model's own names: what a wrapper put before them is taken off.

    A Lightning module keeps its network under a name of its author's choice, beside entries of its own such as the
    weights of a loss; so where the names are `known`, any prefix serves under which all of them are found.
    """
    if not known.isdisjoint(state):
        return state
    needed = {name for name in known if not name.endswith("num_batches_tracked")}
    one = next(iter(needed), "")
    places = {k.removesuffix(one) for k in state if needed and k.endswith("." + one)}
    places = {place for place in places if all(place + name in state for name in needed)}
    if len(places) > 1:
        raise ModelError(
            f"{path} holds the model's weights {len(places)} times, under {' and '.join(sorted(places))}. Save the one "
            "that is meant by itself, with its state_dict()."
        )
    if places:
        place = places.pop()
        return {k.removeprefix(place): v for k, v in state.items() if k.startswith(place)}
    while prefix := next((p for p in _PREFIXES if all(k.startswith(p) for k in state)), None):
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def _described(value: object) -> str:
    return "nothing" if isinstance(value, Mapping) and not value else f"a {type(value).__name__}"
