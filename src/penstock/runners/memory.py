"""A process that keeps the memory it has freed, to use it for the next batch.

Each batch is worked on in arrays of about a megabyte, made and freed again within a millisecond. By default the C library gives so
large a piece back to the system when it is freed, and the next one costs hundreds of page faults: measured, as much time as
decoding its lines of JSON. Arrow's own allocator does not, so this is about numpy and Python.

The columns of a snapshot of millions of keys are larger than that by far, and come once a second: with fresh pages the task stands
still for them eight times as long. So no piece is too large to be kept. What a process once needed it may hold for good, the last
`KEPT_BYTES_MAX` of it at least.
"""

from __future__ import annotations

import ctypes
import functools

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # as in malloc.h
KEPT_BYTES_MAX = 256 << 20


@functools.cache
def keep_memory() -> bool:
    """Set this process up, once; False if its C library is not the GNU one, and nothing was done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # No piece comes straight from the system, to go back there when it is freed.
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, KEPT_BYTES_MAX))
