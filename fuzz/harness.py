"""What every target shares: coverage of our own code, mutations that keep a document well formed, and the one law.

The law: whatever bytes are read, only errors of `cosep.errors` come out, within libFuzzer's limits of time and memory.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import atheris

# The parsers that ours rest on are covered too, so before torch imports them; torch itself would cost much.
with atheris.instrument_imports(include=["pickle", "tomllib", "zipfile"]):
    import pickle  # noqa: F401
    import zipfile  # noqa: F401

    import tomllib  # noqa: F401

import torch

# In memory where the system has such a place: a target writes a file at every execution.
SCRATCH = Path(tempfile.mkdtemp(prefix="cosep-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
MOST_BYTES = 1 << 16

HOSTILE = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**12, 10**400, 0.0, -0.5, 1e308,
    "", "0", "..", "/", "\0", "\ud800", "<script>", "x" * 300, "../../etc/passwd",
    [], {}, [[]], [0], [1, 0], [10**12], [None], ["a"], {"": 0}, {"$float": "nan"}, {"$float": "inf"}, {"$float": 1},
]  # fmt: skip


def covered() -> Any:
    """A context in which imports of our code are covered."""
    return atheris.instrument_imports(include=["cosep"])


def deep(levels: int) -> list[Any]:
    """Lists within lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def mutated_document(document: Any, chance: random.Random) -> Any:
    """The document with one of its values replaced, removed, repeated or moved."""
    places = list(_places(document))
    if not places:
        return copy.deepcopy(chance.choice(HOSTILE))
    holder, key = chance.choice(places)
    what = chance.randrange(6)
    if what == 0 and isinstance(holder, dict):
        del holder[key]
    elif what == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif what == 2 and isinstance(holder, list):
        del holder[key]
    elif what == 3:
        other, place = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))
    elif what == 4 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = chance.choice(
            [holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, float(holder[key])]
        )
    else:
        holder[key] = copy.deepcopy(chance.choice([*HOSTILE, deep(chance.choice([3, 50, 900]))]))
    return document


def _places(document: Any) -> Iterable[tuple[Any, Any]]:
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        inside = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in inside:
            yield holder, key
            waiting.append(value)


def json_mutator(data: bytes, most: int, seed: int) -> bytes:
    """A mutation of a JSON document that is JSON again; now and then, one of its bytes."""
    chance = random.Random(seed)
    if chance.random() < 0.2:
        return atheris.Mutate(data, most)
    try:
        document = json.loads(data)
        for _ in range(chance.choice([1, 1, 2, 4])):
            document = mutated_document(document, chance)
        new = json.dumps(document).encode()
    except (ValueError, RecursionError, OverflowError):
        return atheris.Mutate(data, most)
    return new if len(new) <= most else atheris.Mutate(data, most)


def safetensors_mutator(data: bytes, most: int, seed: int) -> bytes:
    """A mutation of a safetensors file: of its header, whose length then fits again, or of its bytes."""
    chance = random.Random(seed)
    size = int.from_bytes(data[:8], "little")
    if chance.random() < 0.3 or size > len(data):
        return atheris.Mutate(data, most)
    header, body = data[8 : 8 + size], data[8 + size :]
    try:
        document = json.loads(header)
        inner = document.get("__metadata__", {}).get("document")
        if inner is not None and chance.random() < 0.7:
            document["__metadata__"]["document"] = json_mutator(inner.encode(), most, seed + 1).decode(
                "utf-8", "replace"
            )
        else:
            document = mutated_document(document, chance)
        header = json.dumps(document).encode()
    except (ValueError, AttributeError, RecursionError, OverflowError):
        return atheris.Mutate(data, most)
    new = len(header).to_bytes(8, "little") + header + body
    return new if len(new) <= most else atheris.Mutate(data, most)


@contextmanager
def only_our_errors() -> Any:
    """The law. With COSEP_FUZZ_COLLECT=FOLDER, breaches are kept there, one a place, and the run goes on."""
    from cosep.errors import CosepError

    try:
        yield
    except CosepError:
        pass
    except Exception as breach:
        folder = os.environ.get("COSEP_FUZZ_COLLECT")
        if not folder:
            raise
        _collect(breach, Path(folder))


def _collect(breach: Exception, folder: Path) -> None:
    import traceback

    frame = traceback.extract_tb(breach.__traceback__)[-1]
    path = folder / f"{type(breach).__name__}-{Path(frame.filename).stem}-{frame.lineno}.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(breach)) + f"\n{_latest!r}\n")


_latest = b""


def fuzz(test: Callable[[bytes], None], seeds: Iterable[bytes], mutator: Any = None) -> None:
    """Run libFuzzer on a target; without a corpus folder among the arguments, from the seeds alone."""

    def one(data: bytes) -> None:
        global _latest
        _latest = data
        with only_our_errors():
            test(data)

    torch.set_num_threads(1)
    corpus = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    if corpus is None:
        corpus = str(SCRATCH / "corpus")
        sys.argv.append(corpus)
    os.makedirs(corpus, exist_ok=True)
    for number, seed in enumerate(seeds):
        (Path(corpus) / f"seed-{number}").write_bytes(seed)
    given = " ".join(sys.argv)
    for limit in (f"-max_len={MOST_BYTES}", "-timeout=10", "-rss_limit_mb=2048"):
        if limit.partition("=")[0] not in given:
            sys.argv.append(limit)
    if mutator is None:
        atheris.Setup(sys.argv, one)
    else:
        atheris.Setup(sys.argv, one, custom_mutator=mutator)
    atheris.Fuzz()
