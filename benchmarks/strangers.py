"""Prune models as strangers write them, and compare each cut with a masked copy that knows nothing of cosep.

    python benchmarks/strangers.py --seeds 3 [--out strangers.json] [--only NAME ...]

The models and who reads which of their channels, said by hand, are in tests/odd/strangers.py; the oracle is in
tests/odd/oracle.py. Half of every group goes, and the cut model is compared in training mode and in use, on five kinds
of input. Then each model goes through the default chain: search, cut, rebuild, a little training. An error that is not
one of cosep's own is a failure, and so is an output that is not finite.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+")
    given = parser.parse_args()
    import torch

    from tests.odd.oracle import chained, examine
    from tests.odd.strangers import STRANGERS

    torch.set_num_threads(1)
    rows = []
    for name in given.only or STRANGERS:
        for seed in range(given.seeds):
            for way, act in (("half", examine), ("chain", chained)):
                try:
                    row = act(STRANGERS[name], seed)
                except Exception as error:
                    traceback.print_exc()
                    row = {"outcome": "foreign error", "why": "".join(traceback.format_exception_only(error)).strip()}
                rows.append({"model": name, "seed": seed, "way": way, **row})
                if row["outcome"] in ("wrong", "foreign error"):
                    print(json.dumps(rows[-1]), flush=True)
    print(f"{len({row['model'] for row in rows})} models, {given.seeds} seeds")
    for way in ("half", "chain"):
        some = [row for row in rows if row["way"] == way]
        counts = Counter(row["outcome"] for row in some)
        print(f"{way}: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())}")
    compared, random = (sum(row.get(key, 0) for row in rows) for key in ("compared", "random"))
    print(f"compared: {compared} passes; not comparable, since chance has a part in training: {random}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    raise SystemExit(any(row["outcome"] in ("wrong", "foreign error") for row in rows))


if __name__ == "__main__":
    main()
