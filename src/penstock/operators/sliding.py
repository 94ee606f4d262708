"""Aggregates over windows that overlap: rows are folded into slices once, and slices into windows when these close.

Between two neighbouring starts or ends of windows nothing happens, so all rows of such a *slice* share their windows. What a row
costs does not depend on how many windows it lies in; what a window costs is the number of its slices per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import WINDOW_COLUMN, Ints, WindowAggregate
from penstock.operators.groups import group_rows
from penstock.operators.operator import MAIN, Out, keep
from penstock.windows import Sliding, Tumbling, closing


class SlidingAggregate(WindowAggregate):
    """One row per key and window that overlaps others, once nothing can change it.

    Input:   rows with event time, or partial rows whose `__window` is a slice; in any order.
    State:   one row of accumulators per key and slice that an open window needs.
    Timers:  event time, per key at the close of the next window with anything in it. Each slice sets one for its first window, each
    window that closes sets one for the next; so a window may have several, which are due at the same moment.
    Output:  main: key, window_start, window_end, results. late: the rows whose last window had closed.
    """

    def __init__(self, name: str, output: pa.Schema, sliding: Sliding, lateness: int, **shared: Any) -> None:
        super().__init__(name, output, Tumbling(sliding.slice, sliding.offset), lateness, **shared)
        self._sliding = sliding

    def _closing(self, starts: Ints) -> Ints:
        last = starts - np.mod(starts - self._sliding.offset, self._sliding.every)  # the last window with this slice in it
        return closing(last + self._sliding.size, self._lateness)

    def _await(self, fresh: pa.RecordBatch) -> None:
        slices = fresh.column(WINDOW_COLUMN).to_numpy()
        # The floor is about closing, which is later than the end by the lateness.
        floors = self._floors(fresh)
        opened = floors > np.iinfo(np.int64).min + self._lateness
        ends = self._sliding.first_end_after(slices, np.where(opened, floors - self._lateness, floors))
        self._set(fresh, ends)

    def _set(self, keys: pa.RecordBatch, ends: Ints) -> None:
        """Wait for windows with these ends."""
        starts = pa.array(ends - self._sliding.size)
        arrays = [*(keys.column(name) for name in self._names), starts]
        self._timers.add(closing(ends, self._lateness), pa.RecordBatch.from_arrays(arrays, names=self._keys))

    def advance(self, time: int) -> Iterator[Out]:
        """Put together the windows that have closed, and drop the slices that no later window needs."""
        # One end at a time: a window that closes sets the timer of the next, which may have closed as well.
        while (end := self._timers.next_due) is not None and end <= time:
            keys = [due.select(self._keys) for due in self._timers.due(end)]
            if keys:
                yield from self._close(distinct(keys))
        self._timers.advance(time)

    def _close(self, windows: pa.RecordBatch) -> Iterator[Out]:
        sliding, starts = self._sliding, windows.column(WINDOW_COLUMN).to_numpy()
        owners, slices, values = self._slices(windows)
        merged = self._accumulators.merge(values.append_column("window", pa.array(owners)), ["window"])
        which = merged.column("window").to_numpy()
        columns = [*windows.take(pa.array(which)).columns, *(merged.column(f.name) for f in self._accumulators.fields)]
        names = [*self._keys, *(f.name for f in self._accumulators.fields)]
        yield MAIN, self._rows(pa.RecordBatch.from_arrays(columns, names=names), starts[which], starts[which] + sliding.size)
        # Slices before the next window of their key are over. Where any are left, the next window has something in it.
        following = starts + sliding.every
        over = slices < following[owners]
        self._table.delete_many(self._slice_keys(windows, owners[over], slices[over]))
        some = np.unique(owners[~over])
        self._set(windows.take(pa.array(some)), following[some] + sliding.size)

    def _slices(self, windows: pa.RecordBatch) -> tuple[Ints, Ints, pa.RecordBatch]:
        """The slices of windows: whose, where they start, and their accumulators. Those of a window stand in order of time."""
        starts = windows.column(WINDOW_COLUMN).to_numpy()
        wanted = self._sliding.slices_of(starts)  # a row per window
        # Mostly all keys close together: then most of the table is wanted, and to go through it beats to look things up in it.
        if self._table.rows_estimate <= 4 * wanted.size and (starts == starts[0]).all():
            return self._scanned(windows, int(starts[0]))
        owners, slices = np.repeat(np.arange(len(starts)), wanted.shape[1]), wanted.ravel()
        found, values = self._table.get_many(self._slice_keys(windows, owners, slices))
        return owners[found], slices[found], keep(values, found)

    def _scanned(self, windows: pa.RecordBatch, start: int) -> tuple[Ints, Ints, pa.RecordBatch]:
        """The same for windows that all start here."""
        fields = [f.name for f in self._accumulators.fields]
        rows = pa.Table.from_batches(list(self._table.scan())).combine_chunks().to_batches()[0]
        slices = rows.column(WINDOW_COLUMN).to_numpy()
        within = (slices >= start) & (slices < start + self._sliding.size)
        rows, slices = keep(rows, within), slices[within]
        # Keys of the table that are not among the windows have sent theirs: in a task that was ahead, before it was rescaled.
        both = pa.concat_batches([windows.select(self._names), rows.select(self._names)])
        groups = group_rows(both, self._names)
        owner = np.where(groups.first < windows.num_rows, groups.first, -1)[groups.of[windows.num_rows :]]
        order = np.lexsort((slices, owner))
        order = order[owner[order] >= 0]
        return owner[order], slices[order], rows.select(fields).take(pa.array(order))

    def _slice_keys(self, windows: pa.RecordBatch, owners: Ints, slices: Ints) -> pa.RecordBatch:
        keys = windows.select(self._names).take(pa.array(owners))
        return pa.RecordBatch.from_arrays([*keys.columns, pa.array(slices)], names=self._keys)


def distinct(keys: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Each row once."""
    names = keys[0].schema.names
    grouped = pa.Table.from_batches(keys).group_by(names, use_threads=False).aggregate([])
    return grouped.combine_chunks().to_batches()[0].select(names)
