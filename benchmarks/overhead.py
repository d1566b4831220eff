"""What deciding costs: the share of a run's time that goes into observing, profiling and selecting.

    cosep prune resnet20 --weights FILE --data cifar10:DIR --out run/
    python benchmarks/overhead.py run/ [more runs]

The times are those that the run recorded of itself. The paper reports below 20 % for its own implementation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cosep.saving import read_documents

DECIDING = ("observe", "profile", "select")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        _plan, report = read_documents(run)
        seconds = report["seconds"]
        total = sum(seconds.values())
        shares = "  ".join(f"{stage} {100 * spent / total:.1f} %" for stage, spent in seconds.items())
        deciding = sum(seconds.get(stage, 0.0) for stage in DECIDING) / total
        print(f"{run}: {total:.0f} s, of which deciding {100 * deciding:.1f} %  ({shares})")


if __name__ == "__main__":
    main()
