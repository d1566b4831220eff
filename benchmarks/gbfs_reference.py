"""Run the authors' package `gbfs` (GB-AFS) on activations: python gbfs_reference.py activations.npz result.json

For the interpreter of a virtual environment that has `gbfs` and numpy < 2; `selection.py` makes it and calls this file.
The clock runs over what a selection is: the separability space, k-medoids and the silhouette for every k, the knee.
Reading and normalising the CSV file that the package wants is left out, in its favour. Its k-medoids draws from numpy's
global generator, which is seeded here, so that a run can be repeated.
"""

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from gbfs import GBAFS


class Unreduced:
    """GB-AFS clusters a two-dimensional embedding; CoSeP clusters the space itself: reduce nothing."""

    def fit_transform(self, x, y=None):
        return x


def main(source, target):
    warnings.filterwarnings("ignore")
    np.random.seed(0)  # noqa: NPY002
    data = np.load(source)
    table = pd.DataFrame(data["activations"], columns=[f"c{c}" for c in range(data["activations"].shape[1])])
    table["class"] = data["labels"]
    table = pd.concat([table.iloc[:1], table])  # it takes the first row for the costs of the features and drops it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "activations.csv"
        table.to_csv(path, index=False, float_format="%.17g")
        selector = GBAFS(dataset_path=str(path), separability_metric="jm", dim_reducer_model=Unreduced())
    start = time.perf_counter()
    selector._create_feature_space()
    selector._evaluate_clustering()
    selector._find_knee_point()
    seconds = time.perf_counter() - start
    result = {
        "seconds": seconds,
        "medoids": {entry["k"]: entry["kmedoids"]["medoids"].tolist() for entry in selector.clustering},
        "scores": {entry["k"]: float(entry["mss"]) for entry in selector.clustering},
        "profiles": selector.separation_matrix.tolist(),
    }
    Path(target).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
