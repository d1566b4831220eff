"""checkpoint.safetensors of a run, its checksum made to fit again: restored, and unpacked for a small network."""

import json

import harness
import torch
from safetensors.torch import load, save
from torch import nn

with harness.covered():
    from cosep.config import RecoverConfig
    from cosep.records import GroupPlan, Plan
    from cosep.runs.folder import CHECKPOINT, CHECKPOINT_FORMAT, Run, _digest
    from cosep.runs.state import from_checkpoint
    from cosep.storage.files import seal_of
    from cosep.surgery import apply_layout, plan_to_document

NET = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
LAYOUT = {("0", "out"): (0, 2), ("1", "out"): (0, 2), ("2", "in"): (0, 2)}
FOLDER = harness.SCRATCH / "run"
FOLDER.mkdir()


def resealed(data: bytes) -> bytes:
    """The file with a checksum that fits, where that can be: else it would be the only thing that is ever tested."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
        document = header["__metadata__"]["document"]
        header["__metadata__"]["sha256"] = _digest(load(data), document)
        text = json.dumps(header).encode()
    except Exception:
        return data
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def test(data: bytes) -> None:
    (FOLDER / CHECKPOINT).write_bytes(resealed(data))
    (FOLDER / "log.jsonl").write_bytes(b"{}\n")
    checkpoint = Run(FOLDER, seal_of(b"")).restore()
    if checkpoint:
        from_checkpoint(checkpoint, NET, RecoverConfig())


def seeds():
    cut = apply_layout(NET, LAYOUT)
    model = {f"model/{name}": tensor for name, tensor in cut.state_dict().items()}
    progress = {"optimizer/0/momentum_buffer": torch.zeros(2, 3, 1, 1), "rng": torch.get_rng_state()}
    state = {
        "plan": plan_to_document(Plan((GroupPlan("0", 4, (0, 2), "knee"),), LAYOUT)),
        "entries": [{"group": "0", "width": 4, "kept": 2, "reason": "knee", "accuracy": 0.5}],
        "waiting": True,
        "final": None,
    }
    document = {
        **state,
        "before": {"macs": 10, "holdout_accuracy": 0.5},
        "widths": {},
        "limit_notes": [],
        "seconds": {"cut": 1.0},
        "files": {"log.jsonl": seal_of(b"{}\n")},
    }
    recovering = {
        "update": 1,
        "losses": [0.5],
        "param_groups": [{"lr": 0.1, "params": list(range(6))}],
        "optimizer": {},
    }
    for more, tensors in (
        ({}, model),
        ({"progress": recovering}, {**model, **progress}),
        ({"previous": state}, {**model, **{f"previous/{name}": tensor.clone() for name, tensor in model.items()}}),
    ):
        yield save(
            tensors, {"format": str(CHECKPOINT_FORMAT), "document": json.dumps({**document, **more}), "sha256": ""}
        )


if __name__ == "__main__":
    harness.fuzz(test, seeds(), harness.safetensors_mutator)
