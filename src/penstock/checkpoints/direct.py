"""Writing a file past the page cache: for what is written once and hardly ever read.

A snapshot of a million keys is 30 megabytes a second that nobody reads unless something breaks. The page cache would copy them, find
fresh pages for them and push out what others read; measured, 4 to 40 ms of a core where this takes 1 (Linux, ext4).

1. The system wants whole blocks from an aligned place (`O_DIRECT`), and pieces are neither: they are copied to a stage, which each
   thread has for good. What is left at the end is written the usual way.
2. Where the file system has nothing of the kind, or says so only when it is written to, everything goes the usual way.
3. This is about speed alone. The file is durable when its writer has called fsync, as any other.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterable

__all__ = ["write_past_cache"]

BLOCK = 4096
"""What offset, length and address must be whole numbers of, for any file system we know."""
STAGE_BYTES = 1 << 20
"""Little enough to stay in a core's own cache, so that the second copy costs next to nothing."""
_REFUSALS = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}


class _Stages(threading.local):
    """A piece of memory per thread, aligned to pages."""

    def __init__(self) -> None:
        # Private: a fork must not write over what its parent is about to write to a file.
        self.mine = memoryview(mmap.mmap(-1, STAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


_stages = _Stages()


def write_past_cache(file: int, pieces: Iterable[memoryview]) -> None:
    """Append these bytes, one piece after the other, to an empty file that is open for writing."""
    stage, filled = _stages.mine, 0
    direct = _set_direct(file, True)
    for piece in pieces:
        while piece:
            taken = min(len(piece), STAGE_BYTES - filled)
            stage[filled : filled + taken] = piece[:taken]
            piece, filled = piece[taken:], filled + taken
            if filled == STAGE_BYTES:
                direct = _write_all(file, stage, direct)
                filled = 0
    blocks = filled - filled % BLOCK
    direct = _write_all(file, stage[:blocks], direct)
    if direct:
        _set_direct(file, False)
    _write_all(file, stage[blocks:filled], False)


def _write_all(file: int, rest: memoryview, direct: bool) -> bool:
    """Write all of it; whether it is still past the cache."""
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except OSError as error:
            if not direct or error.errno not in _REFUSALS:
                raise
            _set_direct(file, False)
            direct = False
    return direct


def _set_direct(file: int, on: bool) -> bool:
    """Whether the file is written past the cache now."""
    flag = getattr(os, "O_DIRECT", 0)  # only Linux has it
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        return False
    return on and bool(flag)
