"""How often splits are read, and how often their watermarks are passed on: as often as it is worth.

A batch costs about the same whether it holds one row or a hundred. A split that gives a few rows at a time is therefore left alone between
two reads, and the less time that takes of the machine, the shorter: a light job reads every millisecond, and one that would be at work most
of the time gathers for longer, up to `latency`. All seats of a process have one pace, and reads fall on multiples of it, so that what tasks
send each other arrives together, also where the paces of two processes differ: each is twice the one below.

Watermarks go out every `watermark_every` at most. A watermark costs each step on its way as much as a small batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LEAST_US", "Pace"]

LEAST_US = 1_000
WINDOW_US = 20_000
"""The share of time that is spent at work is looked at this often."""
BUSY, CALM = 0.25, 0.1
"""Above the one share the pace is halved, below the other doubled. To halve it at most halves the share: so it does not swing."""


class Pace:
    """The pace of one process.

    Args:
        latency: the longest gap between two reads, in microseconds.
        watermark_every: the shortest gap between two watermarks, in microseconds.
        worked: how long this thread has been at work, in seconds.
    """

    __slots__ = ("_looked_at", "_most", "_worked", "_worked_before", "every", "watermark_every")

    def __init__(self, latency: int, watermark_every: int, worked: Callable[[], float] = time.thread_time) -> None:
        self.every = LEAST_US
        self.watermark_every = watermark_every
        self._most, self._worked = max(latency, LEAST_US), worked
        self._looked_at: int | None = None
        self._worked_before = 0.0

    def look(self, now: int) -> None:
        """It is `now`. Called often; does something once in a while."""
        if self._looked_at is not None and 0 <= now - self._looked_at < WINDOW_US:
            return
        worked = self._worked()
        if self._looked_at is not None and now > self._looked_at:
            share = (worked - self._worked_before) * 1e6 / (now - self._looked_at)
            if share > BUSY:
                self.every = min(self.every * 2, self._most)
            elif share < CALM:
                self.every = max(self.every // 2, LEAST_US)
        self._looked_at, self._worked_before = now, worked

    def next_read(self, now: int) -> int:
        """When a split that gave few rows now is to be read again."""
        return now - now % self.every + self.every
