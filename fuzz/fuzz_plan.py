"""plan.json: its bytes, the plan in them, and the cut that it asks for on a small network."""

import json

import harness
from torch import nn

with harness.covered():
    from cosep.records import GroupPlan, Plan, Selection
    from cosep.storage.documents import decode
    from cosep.surgery.cut import apply_layout
    from cosep.surgery.plan import plan_from_document, plan_to_document

NET = nn.Sequential(
    nn.Conv2d(3, 4, 1),
    nn.BatchNorm2d(4),
    nn.PReLU(4),
    nn.Conv2d(4, 4, 1, groups=4),
    nn.Conv2d(4, 6, 1, groups=2),
    nn.Linear(6, 2),
)
TENSORS = sum(tensor.numel() for tensor in NET.state_dict().values())


def test(data: bytes) -> None:
    plan = plan_from_document(decode(data, "plan.json"))
    written = json.dumps(plan_to_document(plan))  # as text: nan is like itself there
    assert json.dumps(plan_to_document(plan_from_document(json.loads(written)))) == written
    cut = apply_layout(NET, plan.layout)
    assert sum(tensor.numel() for tensor in cut.state_dict().values()) <= TENSORS


def seeds():
    numbers = (0.25, 0.5)
    selection = Selection(
        4, (0, 2), "knee", 2, (2, 3), numbers, numbers, numbers, (0, 0, 1, 1), (0, 2), (0, 2), ("a note",)
    )
    groups = (GroupPlan("0", 4, (0, 2), "knee", selection), GroupPlan("4", 6, (0, 3), "width given"))
    layout = {
        ("0", "out"): (0, 2), ("1", "out"): (0, 2), ("2", "out"): (0, 2), ("3", "out"): (0, 2),
        ("4", "in"): (0, 2), ("4", "out"): (0, 3), ("5", "in"): (0, 3),
    }  # fmt: skip
    for plan in (Plan(), Plan(groups), Plan(groups, layout, "0" * 64)):
        yield json.dumps(plan_to_document(plan)).encode()


if __name__ == "__main__":
    harness.fuzz(test, seeds(), harness.json_mutator)
