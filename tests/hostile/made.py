"""Things to be hostile with: a small run folder that is sound, ways to alter it so that its checksums fit, and code."""

import hashlib
import json
import os
import pickle
from dataclasses import replace

import torch
from safetensors.torch import save
from torch import nn

from cosep.reporting import evidence_to_bytes
from cosep.storage.artifacts import save as save_model
from cosep.storage.documents import encode
from cosep.storage.folder import _seal
from cosep.storage.toml import to_toml
from cosep.surgery.plan import fingerprint
from tests.reporting.made import record

ABOUT = {
    "model": "digits_cnn", "checkpoint": "", "classes": 10, "input": [1, 8, 8], "data": "digits",
    "class_names": [str(n) for n in range(10)],
}  # fmt: skip


class Code:
    """Pickled, it makes a folder where it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))


def make_run(folder, model=None, about=ABOUT, **changes):
    """A finished run of one group of 8 channels, 4 of them kept; nothing was cut out of its network."""
    model = model or small()
    run = record(groups=1, **changes)
    before = replace(run.report.before, parameters=sum(p.numel() for p in model.parameters()))
    report = replace(run.report, before=before).to_document()
    save_model(folder, model, replace(run.plan, fingerprint=fingerprint(model)), report)
    (folder / "config.toml").write_text(to_toml({"about": about}), encoding="utf-8")
    (folder / "evidence").mkdir()
    (folder / "evidence" / "0.safetensors").write_bytes(evidence_to_bytes(run.evidence[0]))
    return folder


def put(folder, name, data):
    """Replace a file of a run, with a manifest that vouches for it."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / name).write_bytes(data)
    if name in manifest["files"]:
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["sha256"] = _seal(manifest)
        (folder / "manifest.json").write_bytes(encode(manifest, "manifest.json"))


def safetensors(header, body=b"", length=None):
    """A safetensors file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def carriers(marker):
    """Files of several kinds that run code in the hands of a careless reader."""
    code = Code(marker)
    yield "pickle.pt", pickle.dumps(code)
    yield "pickle0.pt", pickle.dumps(code, protocol=0)
    yield "pickle.safetensors", pickle.dumps(code)
    yield "entry.pt", pickle.dumps({"0.weight": code})
    yield "hidden.safetensors", save({"a": torch.zeros(1)}, {"document": "x"}) + pickle.dumps(code)


def all_files(folder):
    """Every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
