"""Accumulators whose lists may be long: short ones are columns of a key's row, long ones stand apart (`values`).

A list of up to `INLINE` entries is in the row, as any accumulator. When it would be longer, its entries move to a `ValueStore`, and
the row has null in its place, which is said nowhere else: an accumulator that is a list is never null by itself. Nothing moves back.
So a row of an older checkpoint, whose list may be of any length, is like any other: the list moves when it is next added to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr import Accumulators
from penstock.expr.listed import INLINE, put_at
from penstock.expr.segments import pairs
from penstock.operators.rowbuffer import Bools, Hashes, Ints
from penstock.operators.values import ValueStore
from penstock.state.columns import gathered
from penstock.state.table import KeyedTable


class Keeping:
    """How accumulators that belong to keys are combined, read and forgotten, wherever their lists are.

    Keys are those of the state, each once; `values` are their rows of accumulators.
    """

    def __init__(self, accumulators: Accumulators, states: Mapping[str, Any]) -> None:
        self._accumulators, self._near = accumulators, accumulators.without_lists()
        self._stores = {listed.fields[0].name: ValueStore(name, listed, states) for name, listed in accumulators.lists}

    def combine(
        self, keys: pa.RecordBatch, old: pa.RecordBatch, found: Bools, new: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Bools]:
        """Row i of `old`, if it was found, and of `new` as one; and the keys of which more was taken back than was there.

        Of lists in rows that is not known here: `Accumulators.check` sees it.
        """
        if not self._stores:
            return self._accumulators.combine(old, found, new), np.zeros(keys.num_rows, np.bool_)
        near, wrong = self._near.combine(old, found, new), np.zeros(keys.num_rows, np.bool_)
        arrays = {name: near.column(name) for name in near.schema.names}
        for name, store in self._stores.items():
            arrays[name], gone = _combined(store, keys, old.column(name), np.asarray(found, np.bool_), new.column(name))
            wrong |= gone
        schema = self._accumulators.schema
        return pa.RecordBatch.from_arrays([arrays[field.name] for field in schema], schema=schema), wrong

    def finish(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> list[pa.Array]:
        """The results."""
        if not self._stores:
            return self._accumulators.finish(values)
        results = []
        for step in self._accumulators.steps:
            columns = [values.column(name) for name in step.names]
            store = self._stores.get(step.names[0])
            away = None if store is None else _away(columns[0])
            found = step.columns.finish(columns)
            if store is not None and away is not None:
                found = put_at(found, away, store.results(gathered(keys, away)))
            results.append(found)
        return results

    def fill(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with all lists in them, however long."""
        for name, store in self._stores.items():
            column = values.column(name)
            away = _away(column)
            if away is not None:
                at = values.schema.get_field_index(name)
                whole = put_at(column, away, store.lists(gathered(keys, away)))
                values = values.set_column(at, values.schema.field(at), whole)
        return values

    def settle(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with all lists in them, as the state is to have them: long ones move apart. Keys have nothing there yet."""
        for name, store in self._stores.items():
            column = values.column(name)
            long = np.flatnonzero(_lengths(column) > INLINE)
            if len(long):
                store.take_in(gathered(keys, long), gathered(column, long))
                at = values.schema.get_field_index(name)
                values = values.set_column(at, values.schema.field(at), put_at(column, long, pa.nulls(len(long), column.type)))
        return values

    def forget(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Forget what stands apart of keys."""
        for name, store in self._stores.items():
            away = _away(values.column(name))
            if away is not None:
                store.drop(gathered(keys, away))


class KeepingTable:
    """A table of accumulators whose long lists stand apart, for whoever works on whole rows."""

    def __init__(self, table: KeyedTable, keeping: Keeping) -> None:
        self._table, self._keeping = table, keeping
        self.spec = table.spec

    @property
    def rows_estimate(self) -> int:
        """As of the table."""
        return self._table.rows_estimate

    def repeats(self, keys: pa.RecordBatch) -> Bools | None:
        """As of the table."""
        return self._table.repeats(keys)

    def get_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> tuple[Bools, pa.RecordBatch]:
        """As of the table, with all lists."""
        found, values = self._table.get_many(keys, hashes)
        if found.all():
            return found, self._keeping.fill(keys, values)
        at = np.flatnonzero(found)
        whole = self._keeping.fill(gathered(keys, at), gathered(values, at))
        place = np.cumsum(found) - 1
        return found, whole.take(pa.array(place, mask=~found)) if len(at) else values

    def delete_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """As of the table."""
        found, values = self._table.get_many(keys, hashes)
        at = pa.array(np.flatnonzero(found))
        self._keeping.forget(keys.take(at), values.take(at))
        self._table.delete_many(keys, hashes)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """As of the table, with all lists."""
        for batch in self._table.scan():
            values = self._keeping.fill(batch.select(self.spec.keys.names), batch.select(self.spec.values.names))
            names = [*self.spec.keys.names, *self.spec.values.names]
            yield pa.RecordBatch.from_arrays([*batch.select(self.spec.keys.names).columns, *values.columns], names=names)


def _combined(store: ValueStore, keys: pa.RecordBatch, before: pa.Array, found: Bools, now: pa.Array) -> tuple[pa.Array, Bools]:
    """The lists of rows, null for those that stand apart; and the keys of which more was taken back than was there."""
    wrong, here, new = np.zeros(len(found), np.bool_), _lengths(before), _lengths(now)
    apart = np.where(found, here, 0) + new > INLINE
    if before.null_count:
        apart |= found & before.is_null().to_numpy(zero_copy_only=False)
    if not apart.any():
        return store.listed.merge([pa.concat_arrays([before, now])], pairs(found))[0], wrong
    away, stays = np.flatnonzero(apart), np.flatnonzero(~apart)
    moving = np.flatnonzero(apart & found & (here > 0))
    if len(moving):
        store.take_in(gathered(keys, moving), gathered(before, moving))
    wrong[away] = store.take_in(gathered(keys, away), gathered(now, away))
    both = pa.concat_arrays([gathered(before, stays), gathered(now, stays)])
    merged = store.listed.merge([both], pairs(found[stays]))[0]
    place = np.cumsum(~apart) - 1
    return merged.take(pa.array(place, mask=apart)) if len(stays) else pa.nulls(len(found), now.type), wrong


def _lengths(lists: pa.Array) -> Ints:
    found: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _away(lists: pa.Array) -> Ints | None:
    """The rows whose list is not in them; None if there are none."""
    return np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False)) if lists.null_count else None
