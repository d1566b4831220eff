"""What each run-time dependency of cosep costs: import time and installed size, with what it brings along.

python benchmarks/dependencies.py --out benchmarks/dependencies.json --table docs/dependencies.md
python benchmarks/dependencies.py --advisories constraints.txt

Run it in an environment that holds cosep and nothing else: some packages import others only where they are there.
Imports are timed in fresh interpreters, in processor time, the median of several; torch and NumPy are loaded before the
clock starts, as they are in any use of cosep. `alone` is the size of the package itself, `with` that of everything it
needs beyond torch, NumPy and what they need. The second form asks PyPI's own records for known vulnerabilities of
pinned versions, where pip-audit cannot reach them; PyPI tells those of the newest release only.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODULES = {"lightning-fabric": "lightning_fabric"}
PURPOSE = {
    "torch": "the networks",
    "numpy": "polynomials, arrays of data files, the matrix of features",
    "kmedoids": "FasterPAM, the clustering of channels",
    "kneed": "Kneedle, the knee of the curve; it brings SciPy, which `cosep compare` uses too",
    "safetensors": "weights on disk without code",
    "lightning-fabric": "devices, precision, several processes",
    "filelock": "one process at a time in a run folder; torch brings it",
    "typer": "the command",
    "rich": "its tables and progress; typer brings it",
}
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.S)
BASE = ("torch", "numpy")
TIMED = "{before}import time; start = time.process_time(); import {module}; print(time.process_time() - start)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--table", type=Path, help="a page in which the table is replaced")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--advisories", type=Path, help="ask PyPI about the pins in this file instead")
    arguments = parser.parse_args()
    if arguments.advisories:
        advisories(arguments.advisories)
        return
    rows = {name: costs(name, arguments.rounds) for name in run_time()}
    print(table(rows))
    if arguments.out:
        document = {"python": ".".join(map(str, sys.version_info[:3])), "packages": rows}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.table:
        page = arguments.table.read_text()
        arguments.table.write_text(TABLE.sub(lambda _: f"\n{table(rows)}\n", page))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The figures as a table in Markdown."""
    lines = ["| package | for | import, ms | alone, MB | with, MB | brings |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        figures = f"{row['import_ms']:.0f} | {row['alone_mb']:.1f} | {row['with_mb']:.1f}"
        version = row["version"].partition("+")[0]
        lines.append(f"| {name} {version} | {PURPOSE[name]} | {figures} | {', '.join(row['brings'])} |")
    return "\n".join(lines) + "\n"


def costs(name: str, rounds: int) -> dict[str, Any]:
    """The figures of one dependency."""
    shared: set[str] = set().union(*(closure(base) for base in BASE if base != name))
    brought = closure(name) - ({name} if name in BASE else shared | {name})
    return {
        "version": metadata.version(name),
        "import_ms": round(1000 * import_seconds(name, rounds), 1),
        "alone_mb": round(megabytes(name), 2),
        "with_mb": round(megabytes(name) + sum(map(megabytes, brought)), 2),
        "brings": sorted(brought),
    }


def run_time() -> list[str]:
    """The run-time dependencies that pyproject.toml lists."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    return needed(tomllib.loads(text)["project"]["dependencies"])


def needed(texts: list[str]) -> list[str]:
    """The names of those requirements that apply to this Python, without extras."""
    environment = {**default_environment(), "extra": ""}
    needs = [Requirement(text) for text in texts]
    return [canonicalize_name(n.name) for n in needs if n.marker is None or n.marker.evaluate(environment)]


def closure(name: str) -> set[str]:
    """A package and everything it needs, as far as it is installed."""
    found: set[str] = set()
    waiting = [canonicalize_name(name)]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        try:
            waiting += needed(metadata.requires(current) or [])
        except metadata.PackageNotFoundError:  # a CPU-only torch comes without the libraries that the other needs
            continue
        found.add(current)
    return found


def megabytes(name: str) -> float:
    """The size of a package's own files."""
    files = metadata.files(name) or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def import_seconds(name: str, rounds: int) -> float:
    """The median time of its import; the first round, which fills the disk cache, does not count."""
    before = "" if name in BASE else "import numpy, torch; "
    code = TIMED.format(before=before, module=MODULES.get(name, name))
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(rounds + 1)]
    return statistics.median(times[1:])


def advisories(file: Path) -> None:
    """Print the pins with vulnerabilities that PyPI knows of, and those whose state it does not tell."""
    lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    pins = [pin for line in lines if line and ((pin := Requirement(line)).marker is None or pin.marker.evaluate())]
    known, untold = [], []
    for pin in pins:
        with urllib.request.urlopen(f"https://pypi.org/pypi/{pin.name}/json", timeout=30) as answer:
            record = json.load(answer)
        if f"=={record['info']['version']}" == str(pin.specifier):
            known += [f"{pin.name}{pin.specifier}: {one['id']}" for one in record["vulnerabilities"]]
        else:
            untold.append(f"{pin.name}{pin.specifier}")
    print(
        f"{len(pins)} pins, {len(pins) - len(untold)} of them newest releases; known vulnerabilities: {known or 'none'}"
    )
    print(f"not told, as there is a newer release: {', '.join(untold)}")


if __name__ == "__main__":
    main()
