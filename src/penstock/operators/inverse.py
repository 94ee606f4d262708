"""Windows that overlap, of an aggregate that can be undone: the next window is the last one, plus what enters, less what leaves.

So a window costs what changed since the last one, however many slices it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import WINDOW_COLUMN, Bools, Folded, Ints
from penstock.operators.operator import MAIN, Out
from penstock.operators.panes import replaced
from penstock.operators.sliding import SlidingAggregate, distinct
from penstock.state.columns import gathered
from penstock.state.table import KeyedTable


class InverseSliding(SlidingAggregate):
    """As `SlidingAggregate`, with fewer steps per window.

    State:   besides the slices, `totals`: per key the last window that closed, and its accumulators.
    1. Slices stay until they have left: one step longer than a window needs them.
    2. A row that comes to a slice of the last window after that has closed makes its total useless: the next window is put
       together from all its slices.
    3. Whether the next window has anything in it is not known before it closes. An empty one is not sent, and is the last.
    """

    @property
    def _totals(self) -> KeyedTable:
        totals: KeyedTable = self.states["totals"]
        return totals

    def _fold(self, rows: pa.RecordBatch, keys: Any) -> Folded:
        folded = super()._fold(rows, keys)
        owners = folded.keys.select(self._names)
        known, totals = self._totals.get_many(owners)
        if known.any():
            ends = totals.column("__start").fill_null(0).to_numpy() + self._sliding.size
            stale = known & (folded.keys.column(WINDOW_COLUMN).to_numpy() < ends)
            self._totals.delete_many(owners.filter(pa.array(stale)))
        return folded

    def _close(self, windows: pa.RecordBatch) -> Iterator[Out]:
        windows = distinct([windows])
        sliding, starts = self._sliding, windows.column(WINDOW_COLUMN).to_numpy()
        keys = windows.select(self._names)
        known, totals = self._totals.get_many(keys)
        known = known & (totals.column("__start").fill_null(0).to_numpy() == starts - sliding.every)
        old = totals.select([f.name for f in self._accumulators.fields])
        steps = sliding.slice * np.arange(sliding.every // sliding.slice)
        every = sliding.slice * np.arange(sliding.size // sliding.slice)
        leaving, left = self._slices(windows, np.flatnonzero(known), (starts - sliding.every)[:, None] + steps)
        entering, came = self._slices(windows, np.flatnonzero(known), (starts + sliding.size - sliding.every)[:, None] + steps)
        whole, some = self._slices(windows, np.flatnonzero(~known), starts[:, None] + every)
        total = replaced(old, came, self._accumulators.combine(gathered(old, came), np.ones(len(came), np.bool_), entering))
        total = replaced(total, left, self._accumulators.unmerge(gathered(total, left), leaving))
        total = replaced(total, some, whole)
        there = np.zeros(len(starts), np.bool_)
        there[some] = there[known] = True
        yield from self._settle(windows, total, there)
        gone = gathered(windows, np.repeat(np.arange(len(starts)), len(steps)))
        before = ((starts - sliding.every)[:, None] + steps).ravel()
        self._table.delete_many(pa.RecordBatch.from_arrays([*gone.columns[:-1], pa.array(before)], names=self._keys))

    def _settle(self, windows: pa.RecordBatch, total: pa.RecordBatch, there: Bools) -> Iterator[Out]:
        """Send the windows that are not empty, and go on with these."""
        starts = windows.column(WINDOW_COLUMN).to_numpy()
        names = [*self._keys, *total.schema.names]
        merged = pa.RecordBatch.from_arrays([*windows.columns, *total.columns], names=names)
        filled = there & np.asarray(self._accumulators.finish(total)[0].is_valid())
        self._totals.delete_many(windows.select(self._names).filter(pa.array(~filled)))
        if not filled.any():
            return
        at = pa.array(np.flatnonzero(filled))
        starts, windows = starts[filled], windows.take(at)
        yield MAIN, self._sent(merged.take(at), starts, starts + self._sliding.size)
        values = pa.RecordBatch.from_arrays([pa.array(starts), *total.take(at).columns], names=self._totals.spec.values.names)
        self._totals.put_many(windows.select(self._names), values)
        self._set(windows, starts + self._sliding.every + self._sliding.size)

    def _slices(self, windows: pa.RecordBatch, which: Ints, slices: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Slices of some windows, folded into one row each; and of which windows there are any."""
        owners = np.repeat(which, slices.shape[1])
        wanted = gathered(windows, owners)
        keys = pa.RecordBatch.from_arrays([*wanted.columns[:-1], pa.array(slices[which].ravel())], names=self._keys)
        found, values = self._table.get_many(keys)
        at = np.flatnonzero(found)
        merged = self._accumulators.merge(gathered(values, at).append_column("window", pa.array(owners[at])), ["window"])
        return merged.select([f.name for f in self._accumulators.fields]), merged.column("window").to_numpy()
