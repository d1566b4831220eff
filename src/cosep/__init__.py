"""cosep: Complementary Separability Pruning for PyTorch image classifiers.

result = cosep.prune(model, calibration=train_loader, evaluate=test_loader)
result.model, result.plan, result.report
result.save("run/");  model = cosep.load("run/", build_model)
plan = cosep.plan(model, train_loader);  print(plan);  smaller = plan.apply(model)
"""

__version__ = "0.1.0"

import os

# A shell that asks how a word goes on wants its answer at once: then nothing that needs torch is imported.
if not os.environ.get("_COSEP_COMPLETE", "").startswith("complete_"):
    from cosep.comparison.trials import compare
    from cosep.config import (
        DeviceConfig,
        LimitConfig,
        ObserveConfig,
        ProfileConfig,
        PruneConfig,
        RebuildConfig,
        RecoverConfig,
        SelectConfig,
        SurgeryConfig,
        preset,
        replace_settings,
    )
    from cosep.criteria import Candidates, Criterion, GroupView, ranked
    from cosep.data import load_data
    from cosep.errors import (
        ArtifactError,
        CalibrationError,
        ConfigError,
        CosepError,
        DataError,
        ExportError,
        ModelError,
        PlanError,
        RecoveryError,
        RunError,
        TraceError,
    )
    from cosep.features import select_channels
    from cosep.groups import find_groups
    from cosep.observation import check_moments, class_histograms, class_moments, merge_all, observe, observe_histograms
    from cosep.pipeline import plan, prune
    from cosep.profiles import profiles as separability_profiles
    from cosep.profiles import separability_space
    from cosep.rebuilding import rebuild, reestimate_batchnorm
    from cosep.records import ClassHistograms, ClassMoments, Cost, Group, GroupPlan, Outcome, Plan, Selection, Space
    from cosep.recovery import RecoveryHooks
    from cosep.reporting.records import Report
    from cosep.runs.results import PruneResult
    from cosep.runs.state import Callbacks
    from cosep.runs.sweeping import Size, Sweep, sweep
    from cosep.selection import select
    from cosep.selection.rules import Probe, Target, Width, WidthRule, Widths
    from cosep.storage.artifacts import load, save
    from cosep.storage.export import export_onnx
    from cosep.storage.quantization import Quantized, quantize_onnx
    from cosep.surgery import cut, cut_checked, cut_group
    from cosep.zoo import load_model

__all__ = [
    "ArtifactError",
    "CalibrationError",
    "Callbacks",
    "Candidates",
    "ClassHistograms",
    "ClassMoments",
    "ConfigError",
    "CosepError",
    "Cost",
    "Criterion",
    "DataError",
    "DeviceConfig",
    "ExportError",
    "Group",
    "GroupPlan",
    "GroupView",
    "LimitConfig",
    "ModelError",
    "ObserveConfig",
    "Outcome",
    "Plan",
    "PlanError",
    "Probe",
    "ProfileConfig",
    "PruneConfig",
    "PruneResult",
    "Quantized",
    "RebuildConfig",
    "RecoverConfig",
    "RecoveryError",
    "RecoveryHooks",
    "Report",
    "RunError",
    "SelectConfig",
    "Selection",
    "Size",
    "Space",
    "SurgeryConfig",
    "Sweep",
    "Target",
    "TraceError",
    "Width",
    "WidthRule",
    "Widths",
    "check_moments",
    "class_histograms",
    "class_moments",
    "compare",
    "cut",
    "cut_checked",
    "cut_group",
    "export_onnx",
    "find_groups",
    "load",
    "load_data",
    "load_model",
    "merge_all",
    "observe",
    "observe_histograms",
    "plan",
    "preset",
    "prune",
    "quantize_onnx",
    "ranked",
    "rebuild",
    "reestimate_batchnorm",
    "replace_settings",
    "save",
    "select",
    "select_channels",
    "separability_profiles",
    "separability_space",
    "sweep",
]
