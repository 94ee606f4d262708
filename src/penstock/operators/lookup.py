"""Each row with the row of a table that has its key. The table is read whole, when the first row comes.

1. A task of the micro-batch runner lives for one epoch, so tables are kept by the process (`LOADED`), under an id that is new
   each time the pipeline is built and each time it starts from nothing.
2. With `refresh` a table is read again once it is that old by the time of day. Rows before and after see different tables, and a
   row that is read again after a failure may find something else: a refresh is not part of the snapshot.
3. Reading is like that of a stream's source, split by split, but with nobody to send bad records to: one is an error.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.connector import Source, SourceContext
from penstock.errors import Fix, RowError
from penstock.exact import exactly_batch
from penstock.operators.operator import MAIN, Operator, Origin, Out
from penstock.state.columns import gathered, key_list
from penstock.state.keygroups import canonical_keys

TABLES_MAX = 16
POLL_ROWS = 65_536
IDLE_SECONDS = 0.01
TIME_MAX = 2**63 - 1


@dataclass(frozen=True)
class Loaded:
    """A table in memory: its rows, and where each key is."""

    rows: pa.RecordBatch
    index: dict[object, int]
    read_at: int  # time of day


LOADED: OrderedDict[tuple[str, tuple[str, ...]], Loaded] = OrderedDict()
"""By table and columns: what this process has read. The least used go first."""


@dataclass(frozen=True)
class TableSource:
    """What to read, and when to read it again."""

    name: str
    uid: str
    source: Source
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    refresh: int | None
    job_dir: Path

    def load(self, now: int) -> Loaded:
        """The table as this process knows it, or as it is now if that is too old."""
        key = (self.uid, self.columns)
        found = LOADED.get(key)
        if found is None or (self.refresh is not None and found.read_at + self.refresh <= now):
            found = self._read(now)
            LOADED[key] = found
        LOADED.move_to_end(key)
        while len(LOADED) > TABLES_MAX:
            LOADED.popitem(last=False)
        return found

    def _read(self, now: int) -> Loaded:
        names = [f.name for f in self.source.schema if f.name in {*self.keys, *self.columns}]
        context = SourceContext(self.name, self.job_dir, tuple(names))
        batches = [batch for split in self.source.splits() for batch in self._split(split, context)]
        schema = pa.schema([self.source.schema.field(name) for name in names])
        table = pa.Table.from_batches([exactly_batch(batch, schema) for batch in batches], schema=schema).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=schema)
        keys = canonical_keys(rows, self.keys)
        whole = np.ones(rows.num_rows, np.bool_)
        for column in keys.columns:
            whole &= column.is_valid().to_numpy(zero_copy_only=False)
        listed, places = key_list(keys), np.flatnonzero(whole).tolist()
        index = {listed[place]: place for place in places}
        if len(index) < len(places):
            self._complain(keys, listed, places)
        return Loaded(rows.select(list(self.columns)), index, now)

    def _complain(self, keys: pa.RecordBatch, listed: list[object], places: list[int]) -> None:
        first: dict[object, int] = {}
        place = next(place for place in places if first.setdefault(listed[place], place) != place)
        values = ", ".join(f"{name}={keys.column(name)[place].as_py()!r}" for name in keys.schema.names)
        raise RowError(
            f"table {self.name!r} has two rows with the key {values}, and a lookup finds one row",
            fix=Fix("lookup.unique", "Make its rows unique, or give it another key="),
        )

    def _split(self, split: str, context: SourceContext) -> Iterator[pa.RecordBatch]:
        reader = self.source.open(split, None, context)
        try:
            while True:
                chunk = reader.poll(POLL_ROWS)
                if chunk is None:
                    time.sleep(IDLE_SECONDS)
                    continue
                if chunk.bad:
                    bad = chunk.bad[0]
                    raise RowError(
                        f"table {self.name!r}, split {split!r}, position {bad.position}: {bad.error}. The record: {bad.record}"
                    )
                if chunk.batch is not None and chunk.batch.num_rows:
                    yield chunk.batch
                if chunk.ended:
                    return
        finally:
            reader.close()


class Lookup(Operator):
    """Rows with what a table says of their key.

    Input:   rows. State: none: the table is no part of a snapshot.
    Output:  the rows, with the table's columns; a row that is not found is left out, or has nulls there ("left").
    """

    def __init__(self, name: str, table: TableSource, by: Sequence[str], how: str, fields: Sequence[pa.Field]) -> None:
        super().__init__(name)
        assert len(fields) == len(table.columns), "each column of the table has a name in the result"
        self._table, self._by, self._how, self._fields = table, list(by), how, list(fields)
        self._loaded: Loaded | None = None
        self.clocked = table.refresh is not None

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Find each row's partner."""
        if self._loaded is None:
            self._loaded = self._table.load(self.now)
        rows, index = self._loaded.rows, self._loaded.index
        keys = key_list(canonical_keys(batch, self._by))
        places = np.fromiter(map(index.get, keys, repeat(-1)), np.int64, len(keys))
        found = places >= 0
        self.counters["missing"] += int((~found).sum())
        if self._how == "inner" and not found.all():
            at = np.flatnonzero(found)
            batch, places, found = gathered(batch, at), places[at], found[at]
        taken = pa.array(places, mask=~found)
        visible = [name for name in batch.schema.names if not name.startswith("__")]
        hidden = [name for name in batch.schema.names if name.startswith("__")]
        arrays = [*(batch.column(name) for name in visible), *(pc.take(column, taken) for column in rows.columns)]
        fields = [*(batch.schema.field(name) for name in visible), *self._fields]
        arrays += [batch.column(name) for name in hidden]
        fields += [batch.schema.field(name) for name in hidden]
        yield MAIN, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    @property
    def wake_at(self) -> int | None:
        """When the table is too old."""
        if self._loaded is None or self._table.refresh is None:
            return None
        return self._loaded.read_at + self._table.refresh

    def on_time(self, now: int) -> Iterator[Out]:
        """Read the table again if it is too old."""
        if self._loaded is not None and now < TIME_MAX:
            self._loaded = self._table.load(now)
        yield from ()
