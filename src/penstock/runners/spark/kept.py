"""Readers that stay open from one epoch to the next, in the Python worker that has them.

The tasks of an epoch are gone when it ends. A reader that asks an outside system in a thread of its own would be closed before the
answer is there, epoch after epoch. So a task that has ended well leaves its readers here, and the next one goes on with them, if
Spark gives it the same Python worker; otherwise it opens new ones and gives those time (`SplitOrder.wait_us`). Nothing depends on it:

1. A reader is kept with the position behind the last rows that it gave, and taken only for exactly that position. After an epoch
   that was given up, or one that another worker has read, the position is another one: the reader is closed, and a new one opened.
2. It is kept for one attempt, and found under that attempt's stamp. Tasks of two attempts never share one.
3. It is closed when its attempt is over, which a worker sees by the attempt's sign (`spark.sign`) being gone; when nobody came for it
   for `LEASE_S`, as when the driver was killed or its split is read elsewhere; and with its process.
4. Readers that have at once whatever there is say so (`Reader.prompt`) and are not kept, nor are those that have ended or failed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.connectors.connector import Began, Json, Reader
from penstock.protocol.messages import Stamp

__all__ = ["KEPT", "KeptReaders"]

log = logging.getLogger("penstock")

LEASE_S = 30.0
LOOK_S = 1.0

Key = tuple[Stamp, str, str]
"""(attempt, source, split)."""


@dataclass(slots=True)
class Kept:
    """A reader that waits for the next task."""

    reader: Reader
    began: Began
    position: str
    until: float
    lives: Callable[[], bool]  # whether its attempt goes on


class KeptReaders:
    """The readers of one process that wait for a task. A thread closes those for which none will come, as long as there are any."""

    def __init__(self, *, lease_s: float = LEASE_S, look_s: float = LOOK_S) -> None:
        self._lease_s, self._look_s = lease_s, look_s
        self._kept: dict[Key, Kept] = {}
        self._guard = threading.Lock()
        self._looks = False  # whether the thread is there

    def take(self, stamp: Stamp, source: str, split: str, position: Json) -> tuple[Reader, Began] | None:
        """The reader that stands at `position`, and the time that it goes by. One that stands elsewhere is closed."""
        with self._guard:
            kept = self._kept.pop((stamp, source, split), None)
        if kept is None:
            return None
        if kept.position == text_of(position):
            return kept.reader, kept.began
        close(kept.reader)
        return None

    def keep(
        self,
        stamp: Stamp,
        source: str,
        split: str,
        position: Json,
        reader: Reader,
        began: Began,
        lives: Callable[[], bool],
    ) -> None:
        """Leave a reader that stands at `position` for the next task of the same attempt."""
        kept = Kept(reader, began, text_of(position), time.monotonic() + self._lease_s, lives)
        with self._guard:
            before = self._kept.pop((stamp, source, split), None)
            self._kept[stamp, source, split] = kept
            begin, self._looks = not self._looks, True
        if before is not None:
            close(before.reader)
        if begin:
            threading.Thread(target=self._look_after, name="penstock-kept-readers", daemon=True).start()

    def __len__(self) -> int:
        return len(self._kept)

    def _look_after(self) -> None:
        while True:
            time.sleep(self._look_s)
            now = time.monotonic()
            with self._guard:
                waiting = list(self._kept.items())
            over = {key for key, kept in waiting if now > kept.until or not kept.lives()}
            with self._guard:
                # A task may have taken it meanwhile, and even have brought it back.
                closing = [self._kept.pop(key) for key, kept in waiting if key in over and self._kept.get(key) is kept]
                if not self._kept:
                    self._looks = False
            for kept in closing:
                close(kept.reader)
            if not self._looks:
                return


def text_of(position: Any) -> str:
    """A position as it is once it has been in a checkpoint: tuples have become lists."""
    return json.dumps(position, sort_keys=True)


def close(reader: Reader) -> None:
    """Close a reader that nobody waits for: what goes wrong then is no task's."""
    try:
        reader.close()
    except Exception as error:
        log.debug("a reader could not be closed: %s", error)


KEPT = KeptReaders()
"""Those of this process."""
