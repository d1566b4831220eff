"""Memory that a process has freed stays its own, so that the next layer need not ask the system for it again.

glibc gives large blocks back to the system as soon as they are freed, and the system hands out zeroed pages, one fault
each: with images of 224 x 224 a third of a pass over a ResNet-50 on a CPU goes into that.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; whether it does. Who has set this in the environment has decided.

    It holds for the whole process, so it is for commands, not for a library inside somebody else's program.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
