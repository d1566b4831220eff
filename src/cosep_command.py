"""Where the command `cosep` starts: outside the package, whose import takes seconds in which Ctrl-C may come."""

import os
import sys

CLEARED = "\r\x1b[K"  # a terminal goes to the start of the line and empties it


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported is one line and exit code 130, as it is later."""
    asked_by_shell = "_COSEP_COMPLETE" in os.environ  # which wants its answer and nothing else
    shown = sys.stderr.isatty() and not asked_by_shell and "--quiet" not in sys.argv
    try:
        if shown:
            print("starting", end="", file=sys.stderr, flush=True)
        from cosep.cli import main as command
    except KeyboardInterrupt:
        print(f"{CLEARED if shown else ''}cosep: stopped", file=sys.stderr)
        sys.exit(130)
    if shown:
        print(CLEARED, end="", file=sys.stderr, flush=True)
    command()
