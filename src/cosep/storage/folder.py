"""An artifact: weights, plan and report in a folder, with a manifest that vouches for them.

    model.safetensors   every parameter and buffer          plan.json     what was cut and why
    manifest.json       format, sizes, checksums, versions  report.json   the figures

The folder may hold other files; only these are the artifact's. Of others, such as a run's log, the manifest may hold
the seals, by which `check_beside` sees whether they are still as they were.
Replacing an artifact never leaves a mixture: the new files are gathered in a subfolder, which is renamed once (that is
the moment the artifact changes) and then emptied into place, the manifest last. Whoever reads meanwhile, or after a
crash, takes each file from the subfolder while it is there. One writer at a time; a run's lock sees to that.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cosep
from cosep.errors import ArtifactError
from cosep.storage.documents import decode, encode
from cosep.storage.files import Seal, damage, is_inside, is_seal, sha256, sync
from cosep.storage.tensors import read_tensors

FORMAT = "cosep-artifact"
VERSION = 1  # of the format; a reader refuses newer ones

WEIGHTS, PLAN, REPORT, MANIFEST = "model.safetensors", "plan.json", "report.json", "manifest.json"
FILES = (WEIGHTS, PLAN, REPORT)
GATHERING, READY = ".artifact-gathering", ".artifact-ready"

# A manifest is a few lines and a document at most the curves of a few hundred layers; anything larger is not ours.
MANIFEST_LIMIT = 16 << 20
DOCUMENT_LIMIT = 256 << 20


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files were all checked when it was read."""

    folder: Path
    manifest: dict[str, Any]
    plan: dict[str, Any]
    report: dict[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """Every tensor by its name, on the CPU; tensors that were shared are one object again."""
        path = _located(self.folder, WEIGHTS)
        weights, _ = read_tensors(path, ArtifactError, "Save the artifact again.")
        shared = self.manifest["shared"]
        for name, stored in shared.items():
            if stored not in weights or name in weights:
                raise ArtifactError(f"{self.folder / MANIFEST} says {name} is shared with {stored}; {path} disagrees.")
        return {**weights, **{name: weights[stored] for name, stored in shared.items()}}


def write_artifact(
    folder: str | os.PathLike[str],
    *,
    weights: Mapping[str, Tensor],
    plan: Mapping[str, Any],
    report: Mapping[str, Any],
    beside: Mapping[str, Seal] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write an artifact into a folder, which is made if need be, and return the folder.

    All or nothing: after any failure the folder holds what it held before. The same values give the same bytes.
    beside: seals of other files in the folder, by their names with / between folders.
    """
    folder = Path(folder)
    stored, shared = _without_repeats(weights)
    documents = {PLAN: encode(plan, PLAN), REPORT: encode(report, REPORT)}
    for name, data in documents.items():
        if len(data) > DOCUMENT_LIMIT:
            raise ArtifactError(f"{name} would have {len(data):,} bytes; at most {DOCUMENT_LIMIT:,} can be read again.")
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file; an artifact needs a folder.")
    in_the_way = [name for name in (MANIFEST, *FILES, READY) if os.path.lexists(folder / name)]
    if in_the_way and not overwrite:
        raise ArtifactError(
            f"{folder} already has {', '.join(in_the_way)}. Choose another folder, or pass overwrite=True."
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    gathering = folder / GATHERING
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _settle(folder)
        _remove(gathering)  # of a writer that was killed
        gathering.mkdir()
        (gathering / WEIGHTS).write_bytes(_as_safetensors(stored))
        for name, data in documents.items():
            (gathering / name).write_bytes(data)
        (gathering / MANIFEST).write_bytes(_manifest(gathering, shared, beside or {}))
        for name in (*FILES, MANIFEST):
            sync(gathering / name)
        sync(gathering)
        os.replace(gathering, folder / READY)
    except BaseException as error:
        _remove(gathering)
        for path in made:
            _remove_if_empty(path)
        if isinstance(error, OSError):
            raise ArtifactError(
                f"{folder} could not be written ({error}); what was there before is unchanged."
            ) from error
        raise
    # From here on the new artifact is what a reader finds, whatever happens.
    try:
        sync(folder)
        _settle(folder)
    except OSError as error:
        raise ArtifactError(
            f"the new artifact is complete and loads from {folder}, but could not be moved out of {READY} ({error}). "
            "Save again to finish."
        ) from error
    return folder


def read_artifact(folder: str | os.PathLike[str]) -> Artifact:
    """Read an artifact after checking its format and the size and checksum of each of its files."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is {'a file, not a folder' if folder.exists() else 'not there'}.")
    manifest = _read_manifest(folder)
    for name, entry in manifest["files"].items():
        path = _located(folder, name)
        if name != WEIGHTS and entry["bytes"] > DOCUMENT_LIMIT:
            raise ArtifactError(f"{path} has {entry['bytes']:,} bytes; at most {DOCUMENT_LIMIT:,} are read.")
        if found := damage(path, entry):
            raise ArtifactError(f"{path} {found}. Copy or save it again.")
    plan, report = (decode(_located(folder, name).read_bytes(), str(folder / name)) for name in (PLAN, REPORT))
    return Artifact(folder, manifest, plan, report)


def check_beside(artifact: Artifact) -> None:
    """Refuse an artifact beside which one of the sealed files is no longer as it was; one that was removed is not."""
    for name, seal in artifact.manifest.get("beside", {}).items():
        if os.path.lexists(artifact.folder / name):
            path = _located(artifact.folder, name)
            if found := damage(path, seal):
                raise ArtifactError(f"{path} {found}. Put back a copy of it, or remove it to go on without it.")


def settle(folder: str | os.PathLike[str]) -> None:
    """Finish what a crash interrupted: move an artifact that is complete to its final place. One writer at a time."""
    folder = Path(folder)
    try:
        _settle(folder)
        _remove(folder / GATHERING)
    except OSError as error:
        raise ArtifactError(f"the artifact in {folder} could not be moved out of {READY} ({error}).") from error


def _without_repeats(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to store, on the CPU, and for each name that is the very same memory as another, that other name."""
    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    places: dict[tuple[Any, ...], str] = {}
    for name, tensor in sorted(weights.items()):
        if not isinstance(tensor, Tensor):
            raise ArtifactError(
                f"{name} is a {type(tensor).__name__}; only tensors can be saved. A module's `get_extra_state` must "
                "return a tensor, or be left out."
            )
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else str(tensor.layout)
            raise ArtifactError(f"{name} is a {kind} tensor; only ordinary tensors with values can be saved.")
        place = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and place in places:
            shared[name] = places[place]
        else:
            places[place] = name
            # A clone, for safetensors refuses tensors that overlap, and a view would store all that it is a view of.
            stored[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return stored, shared


def _as_safetensors(weights: dict[str, Tensor]) -> bytes:
    # Not `save_file`: what that writes only its owner may read, and a full disk has no kind of its own there.
    from safetensors.torch import save

    try:
        return save(weights, metadata={"format": "pt"})
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"the weights cannot be stored as safetensors: {error}") from error


def _manifest(folder: Path, shared: Mapping[str, str], beside: Mapping[str, Seal]) -> bytes:
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "files": {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in FILES},
        "beside": dict(beside),
        "shared": dict(shared),
        "made_by": {"cosep": cosep.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }
    return encode({**body, "sha256": _seal(body)}, MANIFEST)


def _seal(body: Mapping[str, Any]) -> str:
    """The manifest's checksum of itself, without that entry: it vouches for the others, so it must vouch for itself."""
    return hashlib.sha256(encode({key: value for key, value in body.items() if key != "sha256"}, MANIFEST)).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not os.path.lexists(folder / MANIFEST) and not os.path.lexists(folder / READY / MANIFEST):
        raise ArtifactError(f"{folder} has no {MANIFEST}: it is no artifact, or one that was never finished.")
    path = _located(folder, MANIFEST)
    with path.open("rb") as file:
        data = file.read(MANIFEST_LIMIT + 1)
    if len(data) > MANIFEST_LIMIT:
        raise ArtifactError(f"{path} has more than {MANIFEST_LIMIT:,} bytes; it is no manifest of ours.")
    manifest = decode(data, str(path))
    if manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} has the format {manifest.get('format')!r}; {FORMAT!r} is needed.")
    version = manifest.get("version")
    if type(version) is int and version > VERSION:
        raise ArtifactError(
            f"{path} has format version {version}; this cosep reads up to {VERSION}. It was written by a newer one: "
            "pip install --upgrade cosep."
        )
    for name in manifest["files"] if isinstance(manifest.get("files"), dict) else ():
        _check_name(name, "/" not in name and is_inside(name), path)
    for name in manifest["beside"] if isinstance(manifest.get("beside"), dict) else ():
        _check_name(name, is_inside(name), path)
    # Byte for byte, so that not even a space may change unnoticed.
    if data != encode(manifest, MANIFEST) or manifest.get("sha256") != _seal(manifest) or not _well_formed(manifest):
        raise ArtifactError(f"{path} was altered or is damaged: it does not match its own checksum. Save it again.")
    return manifest


def _well_formed(manifest: dict[str, Any]) -> bool:
    """Whether the entries are of the kinds that the reader goes on to use; a checksum anybody can make does not say."""
    files, beside, shared = manifest.get("files"), manifest.get("beside", {}), manifest.get("shared")
    return (
        type(manifest.get("version")) is int
        and isinstance(files, dict)
        and set(FILES) <= set(files)
        and isinstance(beside, dict)
        and all(is_seal(entry) for entry in (*files.values(), *beside.values()))
        and isinstance(shared, dict)
        and all(isinstance(stored, str) for stored in shared.values())
    )


def _check_name(name: str, plain: bool, manifest: Path) -> None:
    if not plain:
        raise ArtifactError(
            f"{manifest} lists the file {name!r}, which is not a plain name: it may lead out of the folder. Nothing "
            "was read; do not trust this artifact."
        )


def _located(folder: Path, name: str) -> Path:
    """Where a file of the artifact is now: a regular file inside the folder, or an error."""
    path = folder / READY / name
    if not os.path.lexists(path):
        path = folder / name
    try:
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError before Python 3.13
        raise ArtifactError(
            f"{path} is missing or leads nowhere; the artifact is incomplete. Copy it again."
        ) from error
    if not real.is_relative_to(root):
        raise ArtifactError(f"{path} is a link to {real}, outside the artifact's folder; nothing was read.")
    if not stat.S_ISREG(mode):
        raise ArtifactError(f"{path} is not a regular file; nothing was read from it.")
    return path


def _settle(folder: Path) -> None:
    """Move what is ready into place, the manifest last, and remove the empty subfolder; also after a crash halfway."""
    ready = folder / READY
    if not os.path.lexists(ready):
        return
    for name in (*FILES, MANIFEST):
        if os.path.lexists(ready / name):
            os.replace(ready / name, folder / name)
    sync(folder)
    ready.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or folder if that can be done: it tidies up after failures, of which it must not be the next."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()
