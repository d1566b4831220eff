"""The command `cosep`: arguments become settings, settings go to the library; no decisions of its own."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; an error of ours is one line on standard error and exit code 1."""
    from cosep.cli.completion import answered

    if answered():
        return
    from cosep.errors import CosepError

    try:
        from cosep.cli.app import app
        from cosep.models.heap import keep_freed_memory

        if sys.argv[1:2] != ["bench"]:  # which times what a program of the user's would take
            keep_freed_memory()

        app()
    except CosepError as error:
        from cosep.reporting.words import printable

        print(f"cosep: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("cosep: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)
