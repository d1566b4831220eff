"""Documents and files with random damage: whatever is read, only errors of ours come out. The long run is in fuzz/."""

import copy
import json
import pickle
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from cosep.cli.common import run_model
from cosep.cli.options import configured
from cosep.config import RecoverConfig, preset
from cosep.config import settings as settings_of
from cosep.data.cifar import _LAYOUTS, _class_names, _read_file
from cosep.errors import CosepError, ModelError, RunError
from cosep.records import Plan
from cosep.reporting import evidence_from_bytes, evidence_to_bytes
from cosep.reporting.page import run_page
from cosep.reporting.records import Report
from cosep.reporting.run import check_groups
from cosep.runs.folder import CHECKPOINT, Checkpoint, Run, _digest
from cosep.runs.state import from_checkpoint
from cosep.storage.documents import decode
from cosep.storage.files import seal_of
from cosep.storage.schemas import COUNT, FINITE, POSITIVE, SCALAR, Each, Maybe, misfit
from cosep.storage.tensors import load_weights
from cosep.storage.toml import to_toml
from cosep.surgery.cut import apply_layout
from cosep.surgery.plan import plan_from_document, plan_to_document
from cosep.zoo import load_checkpoint
from tests.hostile.made import ABOUT, small
from tests.reporting.made import record

# The same examples every time: what fails in one place fails in all.
some = settings(
    derandomize=True, deadline=None, max_examples=60, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**63, -(2**63) - 1, 10**400, 10**12]), st.floats(),
    st.text(max_size=5), st.sampled_from(["..", "/", "<script>", "\0"]), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


def places(document):
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inside:
        yield document, key
        yield from places(value)


@st.composite
def damaged(draw, document):
    """The document with one or two of its values replaced or removed."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        found = list(places(document))
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        if draw(st.booleans()) and draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = draw(HOSTILE)
    return document


@st.composite
def flipped(draw, data):
    """The bytes with some replaced, cut out or added."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        changed[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(changed)


RUN = record(groups=1)
NET = small()
PLAN = plan_to_document(replace(RUN.plan, layout={("0", "out"): (0, 2), ("1", "out"): (0, 2)}))
REPORT = json.loads(json.dumps(RUN.report.to_document()))


@some
@given(damaged(PLAN))
def test_a_damaged_plan(document):
    with suppress(CosepError):
        plan = plan_from_document(decode(json.dumps(document).encode(), "plan.json"))
        assert plan_from_document(plan_to_document(plan)) is not None
        apply_layout(NET, plan.layout)


@some
@given(st.one_of(damaged({"plan": PLAN, "report": REPORT}), damaged({"report": REPORT, "plan": PLAN})))
def test_a_damaged_report(document):
    with suppress(CosepError):
        read = decode(json.dumps(document, allow_nan=True).replace("NaN", "null").encode(), "report.json")
        plan = plan_from_document(read.get("plan"))
        report = Report.from_document(read.get("report"))
        if not check_groups(report, plan):
            assert "<html" in run_page(replace(RUN, plan=plan, report=report, evidence={}))


@some
@given(st.one_of(flipped(evidence_to_bytes(RUN.evidence[0]))))
def test_damaged_evidence(data):
    with suppress(CosepError):
        evidence = evidence_from_bytes(data, "0.safetensors")
        if len(evidence.weights) == RUN.plan.groups[0].width:
            run_page(replace(RUN, evidence={0: evidence}))


TOML = to_toml({"about": ABOUT, **settings_of(preset())})


@some
@given(st.one_of(flipped(TOML.encode()), damaged({"about": ABOUT, **settings_of(preset())})))
def test_a_damaged_config(tmp_path, content):
    if isinstance(content, dict):
        with suppress(Exception):  # what cannot be written needs no reader
            content = to_toml(content).encode()
    (tmp_path / "config.toml").write_bytes(content if isinstance(content, bytes) else b"")
    with suppress(CosepError):
        configured("default", tmp_path / "config.toml", {})
    with suppress(CosepError):
        run_model(tmp_path)


@some
@given(flipped(save(dict(small().state_dict()))))
def test_damaged_safetensors(tmp_path, data):
    (tmp_path / "w.safetensors").write_bytes(data)
    with suppress(ModelError):
        load_checkpoint(NET, tmp_path / "w.safetensors")


STATE = {
    "plan": plan_to_document(Plan()), "entries": [], "waiting": True, "final": None,
    "before": {"macs": 10, "holdout_accuracy": 0.5}, "widths": {"0": 2}, "limit_notes": ["a"], "seconds": {"cut": 1.0},
    "damage": {"0": 0.5}, "tried": [{"share": 0.5, "drop": 1.0}],
    "rebuild": {"layers": [], "divergence": 0.1, "divergence_cut": 0.2, "notes": ["b"]},
    "files": {"log.jsonl": {**seal_of(b"")}},
    "progress": {
        "update": 1, "losses": [0.5], "param_groups": [{"params": list(range(6))}], "optimizer": {"0/step": 1},
    },
}  # fmt: skip


@some
@given(damaged(STATE))
def test_a_damaged_checkpoint_of_a_run(tmp_path, document):
    tensors = {f"model/{name}": tensor for name, tensor in small().state_dict().items()} | {
        "rng": torch.get_rng_state()
    }
    text = json.dumps(document)
    data = save(tensors, {"format": "2", "document": text, "sha256": _digest(tensors, text)})
    (tmp_path / CHECKPOINT).write_bytes(data)
    (tmp_path / "log.jsonl").write_bytes(b"")
    with suppress(RunError):
        from_checkpoint(Run(tmp_path, seal_of(b"")).restore(), NET, RecoverConfig())


def test_the_checkpoint_of_these_tests_is_sound_before_it_is_damaged(tmp_path):
    tensors = {f"model/{name}": tensor for name, tensor in small().state_dict().items()} | {
        "rng": torch.get_rng_state()
    }
    state, progress = from_checkpoint(Checkpoint(tensors, STATE), small(), RecoverConfig())
    assert state.waiting
    assert progress.update == 1


@pytest.mark.parametrize("layout", [layout for both in _LAYOUTS.values() for layout in both])
@some
@given(st.data())
def test_damaged_cifar_files(tmp_path, layout, data):
    if layout.label_bytes:
        images, names = bytes(layout.label_bytes + 3072) * 2, b"\n".join([b"name"] * layout.classes)
    else:
        content = {b"data": np.zeros((2, 3072), np.uint8), layout.label_key.encode(): [0, 1]}
        images = pickle.dumps(content, protocol=2)
        names = pickle.dumps({layout.name_key: ["name"] * layout.classes}, protocol=2)
    path = tmp_path / "file"
    path.write_bytes(data.draw(flipped(images)))
    with suppress(CosepError):
        pixels, labels = _read_file(path, layout)
        assert len(pixels) == len(labels)
    path.write_bytes(data.draw(flipped(names)))
    with suppress(CosepError):
        assert len(_class_names(path, layout)) == layout.classes


def test_weights_of_another_model_do_not_fit_a_checkpoint_of_a_run():
    tensors = {f"model/{name}": tensor for name, tensor in small().state_dict().items()}
    tensors["model/0.weight"] = torch.zeros(3)
    with pytest.raises(RunError, match="the checkpoint does not fit this run"):
        from_checkpoint(
            Checkpoint(tensors, {key: value for key, value in STATE.items() if key != "progress"}),
            small(),
            RecoverConfig(),
        )
    load_weights(small(), small().state_dict())


@pytest.mark.parametrize(
    ("value", "form", "wrong"),
    [
        (3, int, ""),
        (True, int, "x is of the kind bool; a whole number of 64 bits is needed"),
        (2**63, int, "x is of the kind int; a whole number of 64 bits is needed"),
        (3, float, ""),
        ("3", float, "x is of the kind str; a number is needed"),
        (float("nan"), FINITE, "x must be a number below 1e+18"),
        (0, POSITIVE, "x must be a number above 0"),
        (-1, COUNT, "x must be a whole number from 0 on"),
        ([1], SCALAR, "x must be text or a number"),
        (None, Maybe(str), ""),
        ({}, {"a": Maybe(str)}, ""),
        ({}, {"a": str}, "x has no 'a'"),
        ({"a": [1, "b"]}, {"a": [int]}, "x: a[1] is of the kind str; a whole number of 64 bits is needed"),
        ({"a": 1, "b": None}, Each(int), "x: b is nothing; a whole number of 64 bits is needed"),
        ([], {}, "x is of the kind list; names with values are needed"),
        ({}, [int], "x is of the kind dict; a list is needed"),
    ],
)
def test_a_form_says_what_is_wrong_and_where(value, form, wrong):
    assert misfit(value, form, "x") == wrong
