"""What becomes of memory that a process has freed: kept for the next layer, or given back to the system.

glibc gives large blocks back to the system as soon as they are freed, and the system hands out zeroed pages, one fault
each: with images of 224 x 224 a third of a pass over a ResNet-50 on a CPU goes into that. Blocks below a threshold,
which rises up to 32 MB, it keeps wherever anything that lies behind them is in use: there the values between two
layers lie, and what was freed around them grows to gigabytes.
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


def give_back_freed_memory() -> bool:
    """Give whole pages that are free back to the system, wherever they lie; whether there were any.

    Nothing but the memory that the process holds changes. It is for places where much was let go of that will not be
    needed again soon: pages that are asked for anew cost a fault each.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # another C library
        return False
    return bool(trim(0))
