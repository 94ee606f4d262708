"""The values of keys that have many: in tables of their own, so that a batch touches only those that it brings.

Three tables per aggregate (and two per list of a process function, without `counts`), whose keys begin with those of the step:

    sizes    key          -> how many chunks, entries in the last chunk, entries in all, entries that count
    chunks   key, number  -> a list of entries, in the order they came
    counts   key, value   -> how often it is there (or nothing: then it is a set)

1. An entry of `counts` stands in one chunk. If its count falls to 0 both stay, so that it does not come to stand in two.
2. Where more than half of the entries do not count, the chunks are written anew without them.
3. A key that is not in `sizes` has no values here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expr.listed import CHUNK, CHUNKS, COUNTS, SIZE_FIELDS, SIZES, Apart, Listed
from penstock.expr.segments import list_array
from penstock.operators.rowbuffer import Bools, Hashes, Ints
from penstock.state.columns import gathered, nulls_filled
from penstock.state.keygroups import hash_keys
from penstock.state.table import KeyedTable

CHUNK_MIN = 256
"""A chunk of fewer entries is added to, which means to write it anew."""
IDLE_MIN = 256
"""So few entries that do not count are not worth writing chunks anew."""


class ValueStore:
    """The values of one aggregate or state, by key; whatever is given to be changed has each key once."""

    def __init__(self, name: str, listed: Listed, states: Mapping[str, Any]) -> None:
        self.listed = listed
        self._sizes: KeyedTable = states[f"{name}-{SIZES}"]
        self._chunks: KeyedTable = states[f"{name}-{CHUNKS}"]
        self._counts: KeyedTable | None = states.get(f"{name}-{COUNTS}")
        self._names = self._sizes.spec.keys.names
        self._route = self._sizes.spec.route_columns or len(self._names)

    # -- taking in

    def take_in(self, keys: pa.RecordBatch, lists: pa.ListArray) -> Bools:
        """Add the entries of lists. Says of which keys more was taken back than was there; what is missing is left out."""
        hashes, apart = self._hashes(keys), self.listed.taken_apart(lists)
        sizes, wrong = self._load(keys, hashes), np.zeros(keys.num_rows, np.bool_)
        fresh: Ints | None = None
        if self._counts is not None:
            fresh, wrong = self._count(keys, hashes, apart, sizes)
        if fresh is None or len(fresh) == len(apart.items):
            self._append(keys, hashes, apart.items, apart.owners, sizes)
        elif len(fresh):
            self._append(keys, hashes, gathered(apart.items, fresh), apart.owners[fresh], sizes)
        if not self.listed.counted:
            sizes[3] = sizes[2]
        self._save(keys, hashes, sizes)
        idle = np.flatnonzero(sizes[2] > 2 * sizes[3] + IDLE_MIN)
        if len(idle):
            self._rewrite(gathered(keys, idle))
        return wrong

    def _count(self, keys: pa.RecordBatch, hashes: Hashes, apart: Apart, sizes: Ints) -> tuple[Ints, Bools]:
        """Count entries; says which are new, and of which keys one fell below 0."""
        assert self._counts is not None
        values, routing = self._value_keys(keys, apart), hashes[apart.owners]
        found, before = self._counts.get_many(values, routing)
        fresh = np.flatnonzero(~found)
        wrong = np.zeros(keys.num_rows, np.bool_)
        if apart.counts is None:
            if len(fresh):
                new = values if len(fresh) == len(found) else gathered(values, fresh)
                self._counts.put_many(new, _rows_without_columns(len(fresh)), routing[fresh])
            return fresh, wrong
        old = np.where(found, nulls_filled(before.column(0)), 0)
        total = old + apart.counts
        wrong[apart.owners[total < 0]] = True
        total = np.maximum(total, 0)
        changed = np.flatnonzero(found | (total > 0))
        fresh = np.flatnonzero(~found & (total > 0))
        if len(changed):
            some = values if len(changed) == len(total) else gathered(values, changed)
            rows = pa.RecordBatch.from_arrays([pa.array(total[changed])], schema=self._counts.spec.values)
            self._counts.put_many(some, rows, routing[changed])
        np.add.at(sizes[3], apart.owners, (total > 0).astype(np.int64) - (old > 0))
        return fresh, wrong

    def _append(self, keys: pa.RecordBatch, hashes: Hashes, items: pa.Array, owners: Ints, sizes: Ints) -> None:
        """Put entries behind those that are there; `owners` ascend."""
        chunks, last, held, _ = sizes
        new = np.bincount(owners, minlength=keys.num_rows)
        touched = np.flatnonzero(new)
        open_ = touched[(chunks[touched] > 0) & (last[touched] < CHUNK_MIN)]
        held += new
        if len(open_):
            chunks[open_] -= 1  # it takes the place of the last one
            _, rows = self._chunks.get_many(self._chunk_keys(keys, open_, chunks[open_]), hashes[open_])
            lists = rows.column(0)
            whose = np.concatenate([np.repeat(open_, lists.value_lengths().fill_null(0).to_numpy()), owners])
            order = np.argsort(whose, kind="stable")
            items, new = gathered(pa.concat_arrays([lists.flatten(), items]), order), np.bincount(whose, minlength=len(new))
        offsets = np.concatenate([[0], np.cumsum(new[touched])])
        lists = list_array(items, offsets, self._chunks.spec.values.field(0).type)
        rows = pa.RecordBatch.from_arrays([lists], schema=self._chunks.spec.values)
        self._chunks.put_many(self._chunk_keys(keys, touched, chunks[touched]), rows, hashes[touched])
        chunks[touched] += 1
        last[touched] = new[touched]

    def _rewrite(self, keys: pa.RecordBatch) -> None:
        """Forget entries that do not count."""
        assert self._counts is not None
        hashes = self._hashes(keys)
        apart = self._all(keys, hashes)
        assert apart.counts is not None, "only what is counted can be taken back"
        idle, left = np.flatnonzero(apart.counts == 0), np.flatnonzero(apart.counts)
        values = self._value_keys(keys, Apart(gathered(apart.items, idle), apart.owners[idle], None))
        self._counts.delete_many(values, hashes[apart.owners[idle]])
        self._drop_chunks(keys, hashes, self._load(keys, hashes)[0])
        sizes = np.zeros((len(SIZE_FIELDS), keys.num_rows), np.int64)
        if len(left):
            self._append(keys, hashes, gathered(apart.items, left), apart.owners[left], sizes)
        sizes[3] = sizes[2]
        self._save(keys, hashes, sizes)

    # -- reading

    def results(self, keys: pa.RecordBatch) -> pa.Array:
        """The result of each key."""
        if self.listed.sized:
            return pa.array(self.sizes(keys))
        return self.listed.finish([self.lists(keys)])

    def sizes(self, keys: pa.RecordBatch) -> Ints:
        """How many values of each key count; the values themselves are not looked at."""
        found: Ints = self._load(keys, self._hashes(keys))[3]
        return found

    def lists(self, keys: pa.RecordBatch) -> pa.ListArray:
        """All values of each key, as the accumulator that it would have in one row."""
        apart = self._all(keys, self._hashes(keys))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(apart.owners, minlength=keys.num_rows))])
        return self.listed.put_together(apart.items, apart.counts, offsets)

    def _all(self, keys: pa.RecordBatch, hashes: Hashes) -> Apart:
        apart = self._entries(keys, hashes)
        if not self.listed.counted or self._counts is None:
            return apart
        found, counts = self._counts.get_many(self._value_keys(keys, apart), hashes[apart.owners])
        assert found.all(), "each entry of a chunk has a count"
        return Apart(apart.items, apart.owners, counts.column(0).to_numpy())

    def _entries(self, keys: pa.RecordBatch, hashes: Hashes) -> Apart:
        """All entries, without their counts."""
        owners, each = self._every_chunk(keys, self._load(keys, hashes)[0])
        found, rows = self._chunks.get_many(each, hashes[owners])
        assert found.all(), "each chunk of a key is there"
        lists = rows.column(0)
        return Apart(lists.flatten(), np.repeat(owners, lists.value_lengths().fill_null(0).to_numpy()), None)

    # -- forgetting

    def drop(self, keys: pa.RecordBatch) -> None:
        """Forget all values of keys."""
        hashes = self._hashes(keys)
        if self._counts is not None:
            apart = self._entries(keys, hashes)
            self._counts.delete_many(self._value_keys(keys, apart), hashes[apart.owners])
        self._drop_chunks(keys, hashes, self._load(keys, hashes)[0])
        self._sizes.delete_many(keys, hashes)

    def _drop_chunks(self, keys: pa.RecordBatch, hashes: Hashes, chunks: Ints) -> None:
        owners, each = self._every_chunk(keys, chunks)
        self._chunks.delete_many(each, hashes[owners])

    # -- keys

    def _hashes(self, keys: pa.RecordBatch) -> Hashes:
        return hash_keys(keys.select(list(range(self._route))))

    def _load(self, keys: pa.RecordBatch, hashes: Hashes) -> Ints:
        """The sizes of keys: a row per column of the table; 0 where there is nothing."""
        _, rows = self._sizes.get_many(keys, hashes)
        return np.array([nulls_filled(column) for column in rows.columns])

    def _save(self, keys: pa.RecordBatch, hashes: Hashes, sizes: Ints) -> None:
        rows = pa.RecordBatch.from_arrays([pa.array(each) for each in sizes], schema=self._sizes.spec.values)
        self._sizes.put_many(keys, rows, hashes)

    def _every_chunk(self, keys: pa.RecordBatch, chunks: Ints) -> tuple[Ints, pa.RecordBatch]:
        """All chunks of keys: whose, and their keys."""
        owners = np.repeat(np.arange(keys.num_rows), chunks)
        numbers = np.arange(len(owners)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        return owners, self._chunk_keys(keys, owners, numbers)

    def _chunk_keys(self, keys: pa.RecordBatch, owners: Ints, numbers: Ints) -> pa.RecordBatch:
        columns = gathered(keys, owners).columns
        return pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], names=[*self._names, CHUNK])

    def _value_keys(self, keys: pa.RecordBatch, apart: Apart) -> pa.RecordBatch:
        columns = gathered(keys, apart.owners).columns
        names = [*self._names, *(field.name for field in self.listed.identity)]
        return pa.RecordBatch.from_arrays([*columns, *self.listed.identities(apart.items)], names=names)


def _rows_without_columns(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))
