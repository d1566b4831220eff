"""What lives outside the package: optional libraries, and factories in users' own files. Loaded only when asked for."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cosep.errors import CosepError

# Operators for which torchvision registers Python code while it is imported, whether its compiled part loaded or not.
_TORCHVISION_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []  # a Library takes its operators along when it is collected


def import_extra(name: str, error: type[CosepError]) -> ModuleType:
    """Import an optional library ("torchvision", "timm"), or say which extra of cosep installs it."""
    try:
        if name == "timm":  # it imports torchvision itself
            _import_torchvision()
        return _import_torchvision() if name == "torchvision" else importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise error(
            f'{missing.name or name} is not installed, and this needs it. Install it with: pip install "cosep[{name}]"'
        ) from missing
    except (ImportError, RuntimeError, OSError) as broken:
        raise error(
            f"{name} is installed but cannot be imported ({_first_line(broken)}). "
            f"Install the build of it that belongs to torch {torch.__version__}."
        ) from broken


def _import_torchvision() -> ModuleType:
    """Import torchvision, also beside a torch for which its compiled operators were not built.

    The build on PyPI needs a CUDA torch. Beside a CPU-only one its library does not load, and the import ends with
    "operator torchvision::nms does not exist". Classification models and transforms need none of these operators:
    declaring them, without any implementation, is enough. A torchvision whose operators load is imported as it is.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as failure:
        if "operator torchvision::" not in str(failure):
            raise
    _forget("torchvision")
    if not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _TORCHVISION_OPERATORS.values():
            library.define(schema)
        _declared.append(library)
    return importlib.import_module("torchvision")


def _forget(package: str) -> None:
    for name in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        del sys.modules[name]


def is_file_factory(spec: str) -> bool:
    """Whether a name has the form path/to/file.py:factory."""
    path, colon, factory = spec.rpartition(":")
    return bool(colon) and path.endswith(".py") and bool(factory)


def without_folder(spec: str) -> str:
    """A model's or data set's name to hand on: "cifar10" of cifar10:DIR, "net.py:build" of a factory in a file."""
    if is_file_factory(spec):
        return Path(spec).name
    kind = spec.partition(":")[0]
    return spec if kind in ("torchvision", "timm") else kind


@contextmanager
def file_factory(spec: str, error: type[CosepError]) -> Iterator[Callable[..., Any]]:
    """Yield the function that `path/to/file.py:factory` names; the file's folder is importable meanwhile."""
    location, _, name = spec.rpartition(":")
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise error(f"{path} does not exist; {spec!r} needs a Python file and the name of a function in it.")
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        module = _run_file(path, error)
        factory = getattr(module, name, None)
        if not callable(factory):
            known = [
                n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
            ]
            raise error(f"{path} has no function {name!r}; it has {', '.join(known) or 'none'}.")
        yield factory
    finally:
        sys.path.remove(folder)


def call_factory(factory: Callable[..., Any], spec: str, error: type[CosepError], **wanted: object) -> Any:
    """Call a user's factory with those of the wanted arguments that it takes; its failure is told with its name.

    What it prints goes to standard error: standard output is for what a command was asked to print.
    """
    accepted = inspect.signature(factory).parameters
    try:
        with redirect_stdout(sys.stderr):
            return factory(**{k: v for k, v in wanted.items() if k in accepted})
    except Exception as failure:
        raise error(f"{spec} failed: {type(failure).__name__}: {_first_line(failure)}") from failure


def _run_file(path: Path, error: type[CosepError]) -> ModuleType:
    name = f"cosep_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and worker processes look their module up
    try:
        with redirect_stdout(sys.stderr):
            module_spec.loader.exec_module(module)
    except Exception as failure:
        del sys.modules[name]
        raise error(f"{path} could not be run: {type(failure).__name__}: {_first_line(failure)}") from failure
    return module


def _first_line(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines()
    return lines[0] if lines else type(failure).__name__
