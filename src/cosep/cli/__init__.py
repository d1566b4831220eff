"""The command `cosep`: arguments become settings, settings go to the library; no decisions of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _said(words: str) -> Iterator[None]:
    """Words on a terminal as long as something lasts that takes seconds, such as importing torch; then they go."""
    shown = sys.stderr.isatty() and "--quiet" not in sys.argv
    if shown:
        print(words, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # to the start of the line, and empty it


def main() -> None:
    """Run the command; an error of ours is one line on standard error and exit code 1."""
    from cosep.cli.completion import answered

    if answered():
        return
    from cosep.errors import CosepError

    try:
        with _said("starting"):
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
