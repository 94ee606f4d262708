"""Letting sources forget what no checkpoint needs any more, in a thread of its own: a source may have to ask somebody far away.

Only the newest positions matter. Those that come while a source is still at the ones before replace each other, so whoever is slow
falls behind by one, not further and further. Not being able to forget is no reason to stop: it is logged, and comes again with the
next checkpoint.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.connectors.connector import Json, Source, SourceContext
from penstock.errors import RAISED
from penstock.passing import text_of

__all__ = ["Collecting", "Positions"]

log = logging.getLogger("penstock")

FINISH_S = 5.0

Positions = Mapping[str, tuple[Source, SourceContext, list[Json]]]
"""By source: how far each of its splits was read in the newest checkpoint."""


class Collecting:
    """The calls of `Source.collect` of one job.

    Args:
        beside: otherwise there is no thread, and `begin` itself calls, as a simulation wants it.
    """

    def __init__(self, *, beside: bool) -> None:
        self._beside = beside
        self._asked: queue.Queue[Positions | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def begin(self, positions: Positions) -> None:
        """A checkpoint with these positions is published."""
        if not self._beside:
            self._collect(positions)
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="penstock-collecting", daemon=True)
            self._thread.start()
        self._asked.put(positions)

    def finish(self) -> None:
        """Wait for the call under way, but not for long: what is not forgotten now is forgotten by the next run."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(FINISH_S)
            self._thread = None

    def _run(self) -> None:
        while (positions := self._newest()) is not None:
            self._collect(positions)

    def _newest(self) -> Positions | None:
        """The last that was asked for; None once there will be no more."""
        asked = self._asked.get()
        while asked is not None:
            try:
                asked = self._asked.get_nowait()
            except queue.Empty:
                return asked
        return None

    def _collect(self, positions: Positions) -> None:
        for name, (source, context, splits) in positions.items():
            for position in splits:
                forget(lambda: source.collect(position, context), name)  # noqa: B023 (called at once)


def forget(call: Callable[[], Any], name: str) -> None:
    """Call, and log what goes wrong: whatever it is, the job goes on."""
    try:
        call()
    except RAISED as error:
        log.warning("source %r could not let go of what is read: %s", name, text_of(error))
