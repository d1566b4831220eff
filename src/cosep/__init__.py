"""cosep: Complementary Separability Pruning for PyTorch image classifiers.

result = cosep.prune(model, calibration=train_loader, evaluate=test_loader)
result.model, result.plan, result.report
result.save("run/");  model = cosep.load("run/", build_model)
"""

__version__ = "0.1.0"

from cosep.config import (
    DeviceConfig,
    LimitConfig,
    ObserveConfig,
    ProfileConfig,
    PruneConfig,
    RecoverConfig,
    SelectConfig,
    SurgeryConfig,
    preset,
    replace_settings,
)
from cosep.errors import CosepError
from cosep.features import select_channels
from cosep.groups import find_groups
from cosep.observation import class_histograms, class_moments, observe, observe_histograms
from cosep.pipeline import plan, prune
from cosep.profiles import profiles, separability_space
from cosep.rebuilding import compensate, reestimate_batchnorm
from cosep.records import ClassHistograms, ClassMoments, Group, GroupPlan, Plan, Selection, Space
from cosep.runs.results import PruneResult
from cosep.runs.state import Callbacks
from cosep.selection import select
from cosep.storage.artifacts import load, save
from cosep.surgery import cut, cut_checked
from cosep.zoo import load_model

__all__ = [
    "Callbacks",
    "ClassHistograms",
    "ClassMoments",
    "CosepError",
    "DeviceConfig",
    "Group",
    "GroupPlan",
    "LimitConfig",
    "ObserveConfig",
    "Plan",
    "ProfileConfig",
    "PruneConfig",
    "PruneResult",
    "RecoverConfig",
    "SelectConfig",
    "Selection",
    "Space",
    "SurgeryConfig",
    "class_histograms",
    "class_moments",
    "compensate",
    "cut",
    "cut_checked",
    "find_groups",
    "load",
    "load_model",
    "observe",
    "observe_histograms",
    "plan",
    "preset",
    "profiles",
    "prune",
    "reestimate_batchnorm",
    "replace_settings",
    "save",
    "select",
    "select_channels",
    "separability_space",
]
