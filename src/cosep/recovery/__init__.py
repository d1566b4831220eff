"""Stage 6, recover: train a cut network for a number of updates, towards the labels and the unpruned network."""

from cosep.recovery.hooks import RecoveryHooks, check_trainable, make_optimizer
from cosep.recovery.loop import Progress, Recovery, recover
from cosep.recovery.schedule import rate, updates_per_group
from cosep.recovery.source import batch_count, endless, fixed_part, without_some

__all__ = [
    "Progress",
    "Recovery",
    "RecoveryHooks",
    "batch_count",
    "check_trainable",
    "endless",
    "fixed_part",
    "make_optimizer",
    "rate",
    "recover",
    "updates_per_group",
    "without_some",
]
