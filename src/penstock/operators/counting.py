"""Windows by the number of rows: the first hundred of a key, the next hundred; or the last hundred, at every ten.

Row numbers of a key take the place of time: a window is over when its last row has come, and windows that overlap share slices as
windows of time do. The state does not say which windows there are, only rows by slice, so it does not matter which rule they were
cut by when a checkpoint was written: where slices are gone that an earlier rule did not need, a window begins with the first it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import WINDOW_COLUMN, Ints, KeyedAggregate
from penstock.operators.groups import group_rows
from penstock.operators.operator import MAIN, Origin, Out, keep
from penstock.state.columns import gathered
from penstock.state.keygroups import canonical_keys
from penstock.state.table import KeyedTable
from penstock.windows import CountSliding, CountTumbling


class CountAggregate(KeyedAggregate):
    """One row per key and window of so many rows.

    Input:   rows; those of a key are numbered as they come.
    State:   per key how many rows there were; one row of accumulators per key and slice that an open window needs.
    Output:  key, window_start and window_end (row numbers), results. At the end of the input also for windows side by side that are
    not full; of those that overlap, the last rows were sent already.
    """

    def __init__(self, name: str, output: pa.Schema, shape: CountTumbling | CountSliding, **shared: Any) -> None:
        super().__init__(name, **shared)
        self._output = output
        self._shape = shape if isinstance(shape, CountSliding) else CountSliding(shape.rows, shape.rows)
        self._leaves_rest = isinstance(shape, CountTumbling)
        self._keys = [*self._names, WINDOW_COLUMN]
        self._counts: KeyedTable = self.states["counts"]

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Number the rows, fold them into slices, and send the windows whose last row has come."""
        bad = self._accumulators.failing(batch, self._names)
        if bad is not None and bad.any():  # rows that fail are not counted
            yield from self._letters(batch, np.flatnonzero(bad), origin)
            batch = keep(batch, ~bad)
        if not batch.num_rows:
            return
        groups = group_rows(batch, self._names)
        keys = canonical_keys(gathered(batch, groups.first), self._names)
        found, counted = self._counts.get_many(keys)
        before = np.where(found, np.nan_to_num(counted.column(0).to_numpy(zero_copy_only=False)), 0).astype(np.int64)
        ordinals = before[groups.of] + groups.rank
        after = before + groups.count
        self._counts.put_many(keys, pa.RecordBatch.from_arrays([pa.array(after)], schema=self._counts.spec.values))
        slices = pa.array(self._shape.slice_of(ordinals))
        rows, _ = self._accumulators.partial(
            batch.append_column(pa.field(WINDOW_COLUMN, pa.int64(), nullable=False), slices), self._keys
        )
        self._fold(rows, self._keys)
        yield from self._full(keys, before, after)

    def _full(self, keys: pa.RecordBatch, before: Ints, after: Ints) -> Iterator[Out]:
        """Send the windows of each key whose last row is among those numbered from `before` to `after`."""
        every = self._shape.every
        count = after // every - before // every
        owners = np.repeat(np.arange(len(count)), count)
        if len(owners):
            step = np.arange(len(owners)) - np.repeat(np.cumsum(count) - count, count)
            ends = ((before // every + 1)[owners] + step) * every
            yield from self._send(keys, owners, ends, ends)

    def _send(self, keys: pa.RecordBatch, owners: Ints, ends: Ints, shown: Ints) -> Iterator[Out]:
        """Put windows together from their slices, and drop those that no later window needs. `shown`: the ends that they are sent with."""
        shape = self._shape
        slices = shape.slices_of(ends)
        which = np.repeat(np.arange(len(ends)), slices.shape[1])
        wanted = self._slice_keys(keys, owners[which], slices.ravel())
        found, values = self._table.get_many(wanted)
        there = np.flatnonzero(found)
        merged = self._accumulators.merge(gathered(values, there).append_column("window", pa.array(which[there])), ["window"])
        window = merged.column("window").to_numpy()
        whole = gathered(keys, owners[window])
        arrays = [*whole.columns, *(merged.column(f.name) for f in self._accumulators.fields)]
        names = [*self._names, *(f.name for f in self._accumulators.fields)]
        columns, results = self._result(pa.RecordBatch.from_arrays(arrays, names=names))
        first = np.full(len(ends), np.iinfo(np.int64).max)
        np.minimum.at(first, which[there], slices.ravel()[there])
        bounds = [pa.array(first[window]), pa.array(shown[window])]
        yield MAIN, pa.RecordBatch.from_arrays([*columns, *bounds, *results], schema=self._output)
        over = found & (slices.ravel() < (ends + shape.every - shape.rows)[which])
        self._table.delete_many(wanted.filter(pa.array(over)))

    def _slice_keys(self, keys: pa.RecordBatch, owners: Ints, slices: Ints) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*gathered(keys, owners).columns, pa.array(slices)], names=self._keys)

    def end(self) -> Iterator[Out]:
        """No more rows: send the windows side by side that were begun and are not full."""
        every = self._shape.every
        for batch in list(self._counts.scan()) if self._leaves_rest else ():
            after = batch.column("__count").to_numpy()
            begun = np.flatnonzero(after % every)
            if len(begun):
                ends = (after[begun] // every + 1) * every
                yield from self._send(batch.select(self._names), begun, ends, after[begun])
