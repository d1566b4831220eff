"""Weights: a file of safetensors or of torch.save, as the first byte says, into a small network."""

import io

import harness
import torch
from safetensors.torch import save
from torch import nn

with harness.covered():
    from cosep.zoo.checkpoints import load_checkpoint

NET = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


def test(data: bytes) -> None:
    path = harness.SCRATCH / ("w.safetensors" if data[:1] == b"\0" else "w.pt")
    path.write_bytes(data[1:])
    load_checkpoint(NET, path)


def mutator(data: bytes, most: int, seed: int) -> bytes:
    if data[:1] == b"\0":
        return b"\0" + harness.safetensors_mutator(data[1:], most - 1, seed)
    return harness.atheris.Mutate(data, most)


def saved(value: object, **how: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **how)
    return b"\1" + buffer.getvalue()


def seeds():
    state = NET.state_dict()
    yield b"\0" + save(dict(state))
    yield b"\0" + save({"module." + name: tensor for name, tensor in state.items()}, {"format": "pt"})
    yield saved(state)
    yield saved({"state_dict": state, "epoch": 3}, _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    harness.fuzz(test, seeds(), mutator)
