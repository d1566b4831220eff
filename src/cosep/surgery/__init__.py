"""Plans, cuts and their proof."""

from cosep.surgery.cut import apply_layout, cut, cut_group
from cosep.surgery.plan import check_plan, fingerprint, plan_for, plan_from_document, plan_to_document
from cosep.surgery.twin import CutResult, TwinCheck, check_cut, cut_checked

__all__ = [
    "CutResult",
    "TwinCheck",
    "apply_layout",
    "check_cut",
    "check_plan",
    "cut",
    "cut_checked",
    "cut_group",
    "fingerprint",
    "plan_for",
    "plan_from_document",
    "plan_to_document",
]
