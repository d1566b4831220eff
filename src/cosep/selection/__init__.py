"""Stage 4, select: a separability space -> the channels to keep, with the evidence. Pure: numbers in, numbers out."""

from cosep.selection.candidates import Candidates, best_channels, fixed, ranked
from cosep.selection.clustering import Clustering, assign, cluster_at, cluster_every_k
from cosep.selection.finishing import finished, finished_width
from cosep.selection.knee import Knee, check_degree, find_knee, fit_curve
from cosep.selection.representatives import representatives
from cosep.selection.selection import select
from cosep.selection.silhouette import mean_simplified_silhouette
from cosep.selection.stability import instability
from cosep.selection.sweep import Sweep
from cosep.selection.widths import balance, round_up, with_width

__all__ = [
    "Candidates",
    "Clustering",
    "Knee",
    "Sweep",
    "assign",
    "balance",
    "best_channels",
    "check_degree",
    "cluster_at",
    "cluster_every_k",
    "find_knee",
    "finished",
    "finished_width",
    "fit_curve",
    "fixed",
    "instability",
    "mean_simplified_silhouette",
    "ranked",
    "representatives",
    "round_up",
    "select",
    "with_width",
]
