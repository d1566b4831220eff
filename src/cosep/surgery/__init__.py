"""Plans, cuts and their proof."""

from cosep.surgery.batchnorm import reestimate_batchnorm
from cosep.surgery.channels import channel_norms, consumer_norms, output_columns
from cosep.surgery.compensate import compensate
from cosep.surgery.cut import apply_layout, copied, cut, cut_group, layout_of
from cosep.surgery.plan import check_plan, fingerprint, plan_for, plan_from_document, plan_to_document
from cosep.surgery.sweep import PrefixCache
from cosep.surgery.twin import CutResult, TwinCheck, check_cut, cut_all_checked, cut_checked

__all__ = [
    "CutResult",
    "PrefixCache",
    "TwinCheck",
    "apply_layout",
    "channel_norms",
    "check_cut",
    "check_plan",
    "compensate",
    "consumer_norms",
    "copied",
    "cut",
    "cut_all_checked",
    "cut_checked",
    "cut_group",
    "fingerprint",
    "layout_of",
    "output_columns",
    "plan_for",
    "plan_from_document",
    "plan_to_document",
    "reestimate_batchnorm",
]
