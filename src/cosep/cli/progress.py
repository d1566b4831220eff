"""The progress of a command: bars with the time left, or lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosep.cli.common import console
from cosep.reporting.progress import muted, shown_on
from cosep.runs.state import Callbacks


@contextmanager
def shown(*, quiet: bool, run: Path) -> Iterator[Callbacks]:
    """Callbacks that draw the progress; Ctrl-C says how to go on."""
    try:
        with muted() if quiet else shown_on(console, groups=True) as callbacks:
            yield callbacks
    except KeyboardInterrupt:
        print(f"cosep: stopped; the same command goes on in {run}", file=sys.stderr)
        sys.exit(130)
