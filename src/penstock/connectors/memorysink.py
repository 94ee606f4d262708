"""A sink into this process's memory: for tests and notebooks.

1. Rows are kept under the sink's name: `sinks.memory("out").rows()` finds what a pipeline wrote to "out", during the run and after it.
2. A name holds the rows of one history of outputs. A run that begins a new one takes the name over, and what an earlier run left is
   gone: a cell or a test that runs again sees its own rows. A run that goes on, from a checkpoint or from a savepoint of the history
   whose rows are there, adds to them.
3. An epoch that is committed again replaces itself: each (lineage, step, epoch) is there once.
4. Of an update stream only the last row per key is shown. The key is the stream's own unless `key=` says another. Of a retract
   stream only the rows are shown that were not withdrawn.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Committer, Sink, SinkContext, Writer
from penstock.connectors.staged import StagedCommitter, StagedWriter
from penstock.names import check_name
from penstock.schema import to_rows

__all__ = ["MemorySink", "memory"]


class _Kept:
    """What one name holds."""

    def __init__(self) -> None:
        self.lineages: set[str] = set()
        self.epochs: dict[tuple[str, str, int], pa.Table] = {}
        self.keys: tuple[str, ...] = ()
        self.changes = "append"
        self.change: str | None = None


_KEPT: dict[str, _Kept] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True)
class MemorySink(Sink):
    """Rows in this process, by name."""

    name: str
    key: tuple[str, ...]
    kind: str = field(init=False, default="transactional")
    accepts: frozenset[str] = field(init=False, default=frozenset({"append", "update", "retract"}))

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
            keys, changes, change = (kept.keys, kept.changes, kept.change) if kept else ((), "append", None)
        if not tables:
            return None
        table = pa.concat_tables(tables)
        if changes == "retract":
            assert change is not None, "rows that can be withdrawn say so"
            return _remaining(table, change)
        return _newest(table, keys, change) if keys or changes == "update" else table

    def rows(self) -> list[dict[str, Any]]:
        """What was committed so far, as dicts."""
        table = self.table()
        return [] if table is None else to_rows(table)

    def clear(self) -> None:
        """Forget everything under this name."""
        with _LOCK:
            _KEPT.pop(self.name, None)

    def __enter__(self) -> MemorySink:
        """`with sinks.memory("out") as out:` begins with no rows, and leaves none."""
        self.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def memory(name: str = "memory", *, key: str | list[str] | None = None) -> MemorySink:
    """See `penstock.sinks.memory`."""
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    return MemorySink(check_name(name, "a sink"), keys)


class _MemoryCommitter(StagedCommitter):
    def __init__(self, sink: MemorySink, context: SinkContext) -> None:
        super().__init__(context)
        self._sink = sink
        with _LOCK:
            kept = _KEPT.get(sink.name)
            if kept is None or kept.lineages.isdisjoint({context.lineage, context.parent}):
                kept = _KEPT[sink.name] = _Kept()
            kept.lineages.add(context.lineage)

    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        table = rows.read_all()
        with _LOCK:
            kept = _KEPT.setdefault(self._sink.name, _Kept())
            kept.lineages.add(self.context.lineage)
            kept.keys, kept.changes = self._sink.key or self.context.keys, self.context.changes
            kept.change = self.context.change
            kept.epochs[self.context.lineage, self.context.name, epoch] = table


def _newest(table: pa.Table, keys: tuple[str, ...], change: str | None) -> pa.Table:
    """The last row of each key that was not deleted, in the order in which the keys first came."""
    last: dict[tuple[Any, ...], int] = {}
    named = [tuple(row.values()) for row in to_rows(table.select(keys))] if keys else repeat((), table.num_rows)
    changes = table.column(change).to_pylist() if change else repeat(1)
    for row, (key, sign) in enumerate(zip(named, changes)):
        if sign < 0:
            last.pop(key, None)
        else:
            last[key] = row
    left = table.take(pa.array(list(last.values()), pa.int64()))
    return left.drop_columns([change]) if change else left


def _remaining(table: pa.Table, change: str) -> pa.Table:
    """The rows that were not withdrawn. Within an epoch a row may be withdrawn before it comes: only the sum counts."""
    rows = table.drop_columns([change])
    places: dict[str, list[int]] = {}
    net: Counter[str] = Counter()
    for number, (row, sign) in enumerate(zip(to_rows(rows), table.column(change).to_pylist())):
        key = repr(row)
        net[key] += sign
        if sign > 0:
            places.setdefault(key, []).append(number)
    left = [number for key, numbers in places.items() for number in numbers[len(numbers) - max(net[key], 0) :]]
    return rows.take(pa.array(sorted(left), pa.int64()))
