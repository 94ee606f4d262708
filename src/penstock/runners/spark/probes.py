"""Whether there is anything to read: what the driver asks before it lets Spark run a job.

An epoch costs a job however little it reads, so it begins only if somebody has something to say. One reader per split looks, in the
driver; its rows are thrown away, and a task reads them again. How long it took until a reader had rows is also what a task is told
about its own, which has just been opened.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.connectors.connector import Began, Reader, SourceContext
from penstock.plan.logical import Read
from penstock.plan.physical import Op
from penstock.protocol.messages import SplitAssigned
from penstock.runners.conductor import Conductor
from penstock.tracebacks import Within

__all__ = ["Probes"]

WAIT_LEAST_US, WAIT_MOST_US = 100_000, 10_000_000
"""For a reader that has just been opened, of a split that is known to have rows."""


class Probes:
    """Whether splits have rows after where they were read to. One reader per split in the driver; its rows are thrown away."""

    def __init__(self, conductor: Conductor) -> None:
        self._job_dir = conductor.job_dir
        self._ops = {op.name: op for op in conductor.plan.reads}
        self._open: dict[tuple[str, str], tuple[Any, Reader]] = {}
        self._opened_at: dict[tuple[str, str], float] = {}
        self._full: dict[tuple[str, str], int] = {}  # known to have rows, and how long that took, in µs

    def has_rows(self, split: SplitAssigned, began: Began) -> bool:
        """Whether a reader would get something now."""
        op = self._ops[split.source]
        with Within(op.who):
            return self._has_rows(op, split, began)

    def _has_rows(self, op: Op, split: SplitAssigned, began: Began) -> bool:
        key = (split.source, split.split)
        if key not in self._open or self._open[key][0] != split.position:
            self.forget(key)
            assert isinstance(op.node, Read)
            context = SourceContext(op.name, self._job_dir, op.columns, began, op.bounds)
            reader = op.node.source.open(split.split, split.position, context)
            self._open[key] = (split.position, reader)
            self._opened_at[key] = time.monotonic()
        reader = self._open[key][1]
        # Readers may answer "perhaps" with yes; polling settles it. What is polled here is read again by a task.
        if key not in self._full and reader.backlog() and reader.poll(1) is not None:
            self._full[key] = int((time.monotonic() - self._opened_at[key]) * 1e6)
        return key in self._full

    def wait_us(self, key: tuple[str, str]) -> int:
        """How long a task shall wait for a reader of a split that is known to have rows: longer than it took here."""
        took = self._full.get(key)
        return 0 if took is None else min(2 * took + WAIT_LEAST_US, WAIT_MOST_US)

    def forget(self, key: tuple[str, str]) -> None:
        """The split is somewhere else now."""
        self._full.pop(key, None)
        if key in self._open:
            self._open.pop(key)[1].close()

    def close(self) -> None:
        """Let go of all readers."""
        for key in list(self._open):
            self.forget(key)
