"""Records of a run -> one page that needs nothing else, and figures. Pure: no model, no network, no clock."""

from cosep.reporting.evidence import Evidence, collect_evidence, evidence_from_bytes, evidence_to_bytes, projection
from cosep.reporting.records import Report
from cosep.reporting.run import RunRecord

__all__ = [
    "Evidence",
    "Report",
    "RunRecord",
    "collect_evidence",
    "evidence_from_bytes",
    "evidence_to_bytes",
    "projection",
]
