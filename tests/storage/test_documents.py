import json
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosep.errors import ArtifactError
from cosep.storage.documents import decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(texts, values, max_size=5))
def test_a_document_comes_back_as_it_went_and_its_bytes_are_json(document):
    data = encode(document, "report.json")
    assert decode(data, "report.json") == document
    json.loads(data, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


def test_not_a_number_and_infinity_come_back():
    found = decode(
        encode({"losses": (math.nan, math.inf, -math.inf, numpy.float64(1.5))}, "report.json"), "report.json"
    )
    assert math.isnan(found["losses"][0])
    assert found["losses"][1:] == [math.inf, -math.inf, 1.5]


def test_the_order_of_keys_does_not_change_the_bytes():
    assert encode({"a": 1, "b": {"c": 2, "d": 3}}, "x") == encode({"b": {"d": 3, "c": 2}, "a": 1}, "x")


loop: dict = {}
loop["itself"] = loop


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"acc": {"after": [1, torch.tensor(2)]}}, r"report.json: acc: after\[1\] is a Tensor; only text.*\.item\(\)"),
        ({"acc": {1: 2}}, "report.json: acc has the key 1, a int; JSON needs keys of text"),
        ({"x": {"$float": "nan"}}, "reserved"),
        (loop, "nested too deeply, or holds itself"),
        ({"name": "\ud800"}, "no Unicode"),
        ({"when": object()}, "is a object"),
    ],
)
def test_what_json_cannot_hold_is_named_with_its_place(document, message):
    with pytest.raises(ArtifactError, match=message):
        encode(document, "report.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "plan.json is not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": {"$float": "5"}}', "is no number"),
        (b'{"a": {"$float": ["nan"]}}', "is no number"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b"[1, 2]", "holds a list; a JSON object is needed"),
        (b'{"$float": "nan"}', "holds a float"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
)
def test_bytes_that_are_no_document_are_refused(data, message):
    with pytest.raises(ArtifactError, match=message):
        decode(data, "plan.json")
