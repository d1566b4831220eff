"""What `cosep report` reads, and its pages: report, plan and facts of the run as one document, or evidence."""

import json

import harness
import torch

with harness.covered():
    from cosep.cli.summary import summary_table
    from cosep.errors import ArtifactError
    from cosep.records import GroupPlan, Plan, Selection
    from cosep.reporting.comparison import comparison_page
    from cosep.reporting.evidence import Evidence, evidence_from_bytes, evidence_to_bytes
    from cosep.reporting.page import run_page
    from cosep.reporting.progress import group_line
    from cosep.reporting.records import Report
    from cosep.reporting.run import RunRecord, check_groups
    from cosep.runs.folder import _ABOUT
    from cosep.storage.documents import decode
    from cosep.storage.schemas import misfit
    from cosep.surgery.plan import plan_from_document, plan_to_document

CHANNELS, CLASSES = 4, 3
KEPT = (0, 2)


def drawn(plan: Plan, report: Report, about: object, evidence: dict) -> None:
    run = RunRecord("run", plan, report, about, evidence)
    for page in (run_page(run), comparison_page([run, run])):
        assert page.count("<script") == page.count("</script>")
    for outcome in report.groups:
        group_line(outcome, report.before.macs)
    summary_table(report)


def test(data: bytes) -> None:
    if data[:1] == b"{":
        document = decode(data, "documents")
        plan = plan_from_document(document.get("plan"))
        report = Report.from_document(document.get("report"))
        wrong = check_groups(report, plan) or misfit(document.get("about"), _ABOUT, "about")
        if wrong:
            raise ArtifactError(wrong)
        drawn(plan, report, document["about"], {})
    else:
        evidence = evidence_from_bytes(data, "evidence")
        if evidence.group != "0" or len(evidence.weights) != CHANNELS:
            raise ArtifactError("of another group")
        drawn(PLAN, Report.from_document(REPORT), {}, {0: evidence})


def mutator(data: bytes, most: int, seed: int) -> bytes:
    return (harness.json_mutator if data[:1] == b"{" else harness.safetensors_mutator)(data, most, seed)


def planned() -> Plan:
    curve = (0.25, 0.5)
    selection = Selection(
        CHANNELS, KEPT, "knee", 2, (2, 3), curve, curve, curve, (0, 0, 1, 1), (0, 2), KEPT, ("a note",)
    )
    return Plan((GroupPlan("0", CHANNELS, KEPT, "knee", selection),), {("0", "out"): KEPT}, "0" * 64)


def reported() -> dict:
    latency = {"median_ms": 2.0, "p10_ms": 1.9, "p90_ms": 2.2, "batch": 1, "threads": 1, "repeats": 30, "device": "cpu"}
    latency |= dict.fromkeys(("throughput", "speedup", "speedup_p10", "speedup_p90"), 1.0)
    latency |= {"memory_format": "contiguous", "runtime": "torch"}
    recovery = {"updates": 2, "outcome": "done", "losses": [1.0, 0.5], "accuracy": 0.9}
    layer = {"layer": "2", "towards": "sum", "applied": True, "reason": "re-solved", "rows": 9, "columns": 3}
    layer |= {"error_before": 0.5, "error_after": 0.1}
    entry = {
        "group": "0", "width": CHANNELS, "kept": 2, "reason": "knee", "notes": ["a note"], "twin_difference": 0.0,
        "accuracy": 0.9, "macs": 10, "parameters": 9, "recovery": recovery,
    }  # fmt: skip
    return {
        "format": 1,
        "settings": {"seed": 0, "select": {"degree": 2, "representative": "weighted"}, "profile": {"max_classes": 100}},
        "before": {"accuracy": 0.92, "macs": 20, "parameters": 10, "bytes": 40, "latency": latency},
        "after": {"accuracy": 0.91, "macs": 10, "parameters": 5, "bytes": 20, "latency": latency},
        "change": {"accuracy": -0.01, "macs": 0.5, "parameters": 0.5, "bytes": 0.5, "speedup": 1.0},
        "holdout_accuracy": {"before": 0.93, "after": 0.9},
        "groups": [entry],
        "not_pruned": [{"group": "fc", "width": 10, "why": "the classifier"}],
        "recovery": recovery,
        "limits": ["a limit"],
        "rebuild": {"layers": [layer], "notes": ["a note"], "divergence": 0.5, "divergence_cut": 1.0},
        "damage": {"0": 0.25},
        "tried": [{"share": 0.5, "drop": 1.0}, {"share": 0.75, "drop": 0.0}],
        "seconds": {"observe": 1.0, "recover": 3.0},
    }


def seen() -> Evidence:
    pairs = CLASSES * (CLASSES - 1) // 2
    some = torch.linspace(0, 2, CHANNELS)
    return Evidence(
        "0", "jm", tuple(range(CLASSES)), CLASSES, (0.5, 0.25), some, some.clone(), torch.stack((some, -some), 1),
        torch.arange(pairs).int(), some.outer(torch.ones(pairs)).half(), torch.ones(pairs).int(), torch.ones(pairs),
        torch.zeros(pairs).int(), torch.zeros(pairs),
    )  # fmt: skip


PLAN, REPORT = planned(), reported()


def seeds():
    about = {
        "model": "net.py:build",
        "data": "cifar10:/data",
        "classes": CLASSES,
        "class_names": ["a", "b", "c"],
        "input": [3, 32, 32],
    }
    yield json.dumps({"plan": plan_to_document(PLAN), "report": REPORT, "about": about}).encode()
    yield json.dumps({"plan": plan_to_document(PLAN), "report": REPORT, "about": {}}).encode()
    yield evidence_to_bytes(seen())


if __name__ == "__main__":
    harness.fuzz(test, seeds(), mutator)
