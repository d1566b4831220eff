"""How long `import cosep` takes against `import torch`, each in a fresh interpreter, in turn.

python benchmarks/import_time.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    ratios = []
    for number in range(parser.parse_args().rounds + 1):
        torch, cosep = (
            float(subprocess.run([sys.executable, "-c", CODE.format(name)], capture_output=True, check=True).stdout)
            for name in ("torch", "cosep")
        )
        if number:  # the first round fills the disk cache
            ratios.append(cosep / torch)
            print(f"torch {torch:.2f} s, cosep {cosep:.2f} s, ratio {cosep / torch:.3f}")
    print(f"import cosep / import torch: median {statistics.median(ratios):.3f} (target: under 1.3)")


if __name__ == "__main__":
    main()
