"""Rows in flight: as files of a snapshot, and back in front of the tasks that go on from it.

A task that does not wait for barriers records the rows that had been sent to it and that it had not processed (see
`protocol.task`). They are written beside its state, one file for each incoming edge: frames, as they would travel, in the order in
which each sender sent them. The manifest names the step they were on their way to and the key groups of the task.

1. Whoever owns one of these key groups now takes the rows of its own groups. So the parallelism may change.
2. They come before anything else that any channel of the task delivers. A row that follows them, of the same key, can only come
   from a channel: so the order of a key stays what it was.
3. Only keyed exchanges have rows in flight. Others are aligned: rows that go forward, or to everybody, have no key group to be
   found by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import CorruptError
from penstock.plan.physical import Exchange
from penstock.protocol.messages import Batch
from penstock.runners.spark.frames import read_messages, write_messages
from penstock.runtime.task import Task
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.runfile import Files, checksum

KIND = "frames"


def write_rows(batches: Sequence[pa.RecordBatch], path: str, files: Files) -> dict[str, Any]:
    """Write the rows of one edge; what a manifest says about the file."""
    data = pa.py_buffer(write_messages(Batch(rows, rows.num_rows, rows.nbytes) for rows in batches))
    files.write(path, data)
    rows = sum(batch.num_rows for batch in batches)
    return {"path": path, "kind": KIND, "rows": rows, "bytes": data.size, "checksum": checksum(data)}


def read_rows(task: Task) -> Iterator[tuple[int, Batch]]:
    """The rows in flight that are this task's now, each with the number of an input of the edge they were on."""
    groups, names = task.site.groups, {op.id: op.name for op in task.stage.ops}
    for exchange in task.stage.incoming:
        entries = [e for e in task.site.restored.in_flight if (e["step"], e["input"]) == (names[exchange.target], exchange.input)]
        number = next(channel.number for channel in task.channels if channel.exchange == exchange.id)
        for entry in entries:
            if entry["first_group"] >= groups.stop or entry["last_group"] < groups.start:
                continue
            within = entry["first_group"] >= groups.start and entry["last_group"] < groups.stop
            for batch in _read(entry, exchange, task.site.files):
                rows = batch if within else _owned(batch, exchange, groups, task.site.plan.max_parallelism)
                if rows.num_rows:
                    yield number, Batch(rows, rows.num_rows, rows.nbytes)


def _read(entry: Mapping[str, Any], exchange: Exchange, files: Files) -> Iterator[pa.RecordBatch]:
    data = files.open(entry["path"])
    if data.size != entry["bytes"] or checksum(data) != entry["checksum"]:
        raise CorruptError(f"{entry['path']} was altered or cut short: its rows in flight cannot be trusted")
    for message in read_messages(memoryview(data).cast("B"), exchange.schema):
        assert isinstance(message, Batch), "only rows are recorded"
        yield message.payload


def _owned(rows: pa.RecordBatch, exchange: Exchange, groups: range, max_parallelism: int) -> pa.RecordBatch:
    """Those of some key groups, in the same order."""
    assert exchange.keys, "rows in flight have keys"
    found = groups_of(hash_keys(canonical_keys(rows, exchange.keys)), max_parallelism)
    return rows.filter(pa.array((found >= groups.start) & (found < groups.stop)))
