"""A process that keeps the memory it has freed, to use it for the next batch.

Each batch is worked on in arrays of about a megabyte, made and freed again within a millisecond. By default the C library gives so
large a piece back to the system when it is freed, and the next one costs hundreds of page faults: measured, as much time as
decoding its lines of JSON. Arrow's own allocator does not, so this is about numpy and Python.
"""

from __future__ import annotations

import ctypes
import functools

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as in malloc.h
KEPT_BYTES_MAX = 128 << 20
PIECE_BYTES_MAX = 32 << 20
"""The most the library allows: larger pieces come straight from the system, and go back to it."""


@functools.cache
def keep_memory() -> bool:
    """Set this process up, once; False if its C library is not the GNU one, and nothing was done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, PIECE_BYTES_MAX)) and bool(mallopt(TRIM_THRESHOLD, KEPT_BYTES_MAX))
