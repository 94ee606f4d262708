"""A sink into this process's memory: for tests and notebooks.

1. Rows are kept under the sink's name, for the life of the process: `sinks.memory("out").rows()` finds what a pipeline
   wrote to "out".
2. An epoch that is committed again replaces itself: each (lineage, epoch) is there once.
3. Of an update stream only the last row per key is shown. The key is the stream's own unless `key=` says another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Committer, Sink, SinkContext, Writer
from penstock.connectors.staged import StagedCommitter, StagedWriter
from penstock.names import check_name

__all__ = ["MemorySink", "memory"]


class _Kept:
    """What one name holds."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[str, int], pa.Table] = {}
        self.keys: tuple[str, ...] = ()


_KEPT: dict[str, _Kept] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True)
class MemorySink(Sink):
    """Rows in this process, by name."""

    name: str
    key: tuple[str, ...]
    kind: str = field(init=False, default="transactional")
    accepts: frozenset[str] = field(init=False, default=frozenset({"append", "update"}))

    def writer(self, context: SinkContext) -> Writer:
        return StagedWriter(context)

    def committer(self, context: SinkContext) -> Committer:
        return _MemoryCommitter(self, context)

    def describe(self) -> str:
        return "memory, transactional"

    def table(self) -> pa.Table | None:
        """What was committed so far, in order; None before the first row."""
        with _LOCK:
            kept = _KEPT.get(self.name)
            tables = list(kept.epochs.values()) if kept else []
            keys = kept.keys if kept else ()
        if not tables:
            return None
        table = pa.concat_tables(tables)
        return _newest(table, keys) if keys else table

    def rows(self) -> list[dict[str, Any]]:
        """What was committed so far, as dicts."""
        table = self.table()
        return [] if table is None else table.to_pylist()

    def clear(self) -> None:
        """Forget everything under this name."""
        with _LOCK:
            _KEPT.pop(self.name, None)


def memory(name: str = "memory", *, key: str | list[str] | None = None) -> MemorySink:
    """See `penstock.sinks.memory`."""
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    return MemorySink(check_name(name, "a sink"), keys)


class _MemoryCommitter(StagedCommitter):
    def __init__(self, sink: MemorySink, context: SinkContext) -> None:
        super().__init__(context)
        self._sink = sink

    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        table = rows.read_all()
        with _LOCK:
            kept = _KEPT.setdefault(self._sink.name, _Kept())
            kept.keys = self._sink.key or self.context.keys
            kept.epochs[self.context.lineage, epoch] = table


def _newest(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last row of each key, in the order in which the keys first came."""
    last: dict[tuple[Any, ...], int] = {}
    columns = [table.column(name).to_pylist() for name in keys]
    for row, key in enumerate(zip(*columns)):
        last[key] = row
    return table.take(pa.array(list(last.values()), pa.int64()))
