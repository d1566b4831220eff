"""Where the command `cosep` starts: outside the package, whose import takes seconds in which Ctrl-C may come."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported is one line and exit code 130, as it is later."""
    try:
        from cosep.cli import main as command
    except KeyboardInterrupt:
        print("cosep: stopped", file=sys.stderr)
        sys.exit(130)
    command()
