"""Rows kept by key and bucket: what joins remember of each side.

A **bucket** is a piece of time (or a window, or all time): rows of a key are found by it, and go away with it. Two tables:

    buckets   key, __bucket       -> how many rows it was given
    rows      key, __bucket, __n  -> the row

1. A row gets the next number of its bucket and keeps it. A row that is taken out alone leaves a hole; numbers are not used again
   while the bucket is there.
2. Everything works on whole batches. What costs a Python step per row is the tables' dict, once per row read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.groups import Groups, group_pairs, group_rows
from penstock.state.columns import fixed_array, gathered, nulls_filled
from penstock.state.keygroups import hash_keys
from penstock.state.table import KeyedTable

INT64 = pa.int64()
BUCKET, NUMBER = "__bucket", "__n"
PAIRS_MAX = 262_144

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


class Keys:
    """The keys of some rows: canonical columns, their hashes, and which rows have the same."""

    def __init__(self, columns: pa.RecordBatch, hashes: Hashes | None = None, codes: Ints | None = None) -> None:
        self.columns = columns
        self.hashes = hash_keys(columns) if hashes is None else hashes
        self.codes = group_rows(columns, columns.schema.names).of if codes is None else codes

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def take(self, rows: Ints) -> Keys:
        """Those of some rows."""
        return Keys(gathered(self.columns, rows), self.hashes[rows], self.codes[rows])

    @property
    def whole(self) -> Bools:
        """Which have no null in them: others match nothing."""
        found = np.ones(len(self), np.bool_)
        for column in self.columns.columns:
            if column.null_count:
                found &= column.is_valid().to_numpy(zero_copy_only=False)
        return found


@dataclass(frozen=True, slots=True)
class Places:
    """Some buckets of some keys, each once; `columns` are the key and `__bucket`."""

    columns: pa.RecordBatch
    hashes: Hashes

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def take(self, rows: Ints) -> Places:
        """Some of them."""
        return Places(gathered(self.columns, rows), self.hashes[rows])


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows of some places. Those of place p are `starts[p]` to `starts[p] + counts[p]`."""

    starts: Ints
    counts: Ints
    of: Ints  # the place of each row
    places: pa.RecordBatch  # key, __bucket, __n of each row
    hashes: Hashes
    rows: pa.RecordBatch


class RowBuffer:
    """The rows of one side of a join."""

    def __init__(self, buckets: KeyedTable, rows: KeyedTable) -> None:
        self._buckets, self._rows = buckets, rows
        self.names = rows.spec.keys.names
        self.values = rows.spec.values.names

    def add(self, keys: Keys, buckets: Ints, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Places]:
        """Keep rows. Returns the place of each (key, bucket, number), and the buckets that there were not before."""
        places, groups = distinct_places(keys, buckets)
        found, values = self._buckets.get_many(places.columns, places.hashes)
        before = np.where(found, nulls_filled(values.column("__rows")), 0)
        numbers = before[groups.of] + groups.rank
        counts = pa.RecordBatch.from_arrays([pa.array(before + groups.count)], ["__rows"])
        self._buckets.put_many(places.columns, counts, places.hashes)
        each = with_columns(keys.columns, {BUCKET: buckets, NUMBER: numbers})
        self._rows.put_many(each, rows.select(self.values), keys.hashes)
        return each, places.take(np.flatnonzero(~found))

    def counts(self, places: Places) -> Ints:
        """How many rows each bucket was given."""
        found, values = self._buckets.get_many(places.columns, places.hashes)
        return np.where(found, nulls_filled(values.column("__rows")), 0)

    def fetch(self, places: Places, counts: Ints | None = None) -> Stored:
        """All rows of some places; `counts` if the caller has asked for them."""
        counts = self.counts(places) if counts is None else counts
        of = np.repeat(np.arange(len(places)), counts)
        starts = np.cumsum(counts) - counts
        numbers = np.arange(len(of)) - starts[of]
        each = with_columns(gathered(places.columns, of), {NUMBER: numbers})
        hashes = places.hashes[of]
        found, rows = self._rows.get_many(each, hashes)
        if not found.all():  # holes
            there = np.flatnonzero(found)
            of, each, hashes, rows = of[there], gathered(each, there), hashes[there], gathered(rows, there)
            counts = np.bincount(of, minlength=len(places))
            starts = np.cumsum(counts) - counts
        return Stored(starts, counts, of, each, hashes, rows)

    def get(self, places: pa.RecordBatch) -> tuple[Bools, pa.RecordBatch]:
        """Single rows by their places, and which of them are still there."""
        return self._rows.get_many(places)

    def take_out(self, places: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Remove single rows."""
        self._rows.delete_many(places, hashes)

    def pop(self, places: Places, counts: Ints | None = None) -> Stored:
        """`fetch`, and remove these buckets: cheaper than one after the other."""
        counts = self.counts(places) if counts is None else counts
        stored = self.fetch(places, counts)
        self._rows.delete_many(stored.places, stored.hashes)
        self._buckets.delete_many(places.columns, places.hashes)
        return stored

    def drop(self, places: Places, counts: Ints | None = None) -> None:
        """Remove whole buckets."""
        counts = self.counts(places) if counts is None else counts
        of = np.repeat(np.arange(len(places)), counts)
        numbers = np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
        each = with_columns(gathered(places.columns, of), {NUMBER: numbers})
        self._rows.delete_many(each, places.hashes[of])
        self._buckets.delete_many(places.columns, places.hashes)


def distinct_places(keys: Keys, buckets: Ints) -> tuple[Places, Groups]:
    """The places of rows, each once, and which rows are of which."""
    groups = group_pairs(keys.codes, buckets)
    first = groups.first
    columns = with_columns(gathered(keys.columns, first), {BUCKET: buckets[first]})
    return Places(columns, keys.hashes[first]), groups


def pairs(rows: Ints, places: Ints, stored: Stored, limit: int = PAIRS_MAX) -> Iterator[tuple[Ints, Ints]]:
    """Each row with each stored row of its place, in pieces of about `limit`: numbers of rows, numbers of stored rows.

    Args:
        rows, places: a row and a place it looks at, each pair once.
    """
    each = stored.counts[places]
    some = np.flatnonzero(each)
    rows, places, each = rows[some], places[some], each[some]
    ends = np.cumsum(each)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
        count = each[start:stop]
        ours = np.repeat(rows[start:stop], count)
        within = np.arange(len(ours)) - np.repeat(np.cumsum(count) - count, count)
        yield ours, np.repeat(stored.starts[places[start:stop]], count) + within
        start = stop


def with_columns(batch: pa.RecordBatch, columns: dict[str, Ints]) -> pa.RecordBatch:
    """The batch with columns of numbers added."""
    arrays = [*batch.columns, *(fixed_array(INT64, np.ascontiguousarray(values, np.int64), None) for values in columns.values())]
    return pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, *columns])
