"""Plans, cuts, and the check of a cut against a masked copy."""

import warnings
from typing import Any

from cosep.surgery.cut import apply_layout, copied, cut, cut_group, cut_groups, layout_of
from cosep.surgery.masked import CutResult, MaskedCheck, check_cut, cut_all_checked, cut_checked
from cosep.surgery.plan import check_plan, fingerprint, plan_for, plan_from_document, plan_to_document
from cosep.surgery.trial import with_cuts_tried

__all__ = [
    "CutResult",
    "MaskedCheck",
    "apply_layout",
    "check_cut",
    "check_plan",
    "copied",
    "cut",
    "cut_all_checked",
    "cut_checked",
    "cut_group",
    "cut_groups",
    "fingerprint",
    "layout_of",
    "plan_for",
    "plan_from_document",
    "plan_to_document",
    "with_cuts_tried",
]


def __getattr__(name: str) -> Any:
    if name == "TwinCheck":
        warnings.warn("cosep.surgery.TwinCheck is now called MaskedCheck.", DeprecationWarning, stacklevel=2)
        return MaskedCheck
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
