"""Aggregates over windows that overlap: rows are folded into slices once, and slices into windows when these close.

Between two neighbouring starts or ends of windows nothing happens, so all rows of such a *slice* share their windows. What a row
costs does not depend on how many windows it lies in; what a window costs is the number of its slices per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregate import WINDOW_COLUMN, Bools, Ints, WindowAggregate
from penstock.operators.operator import MAIN, Out, keep
from penstock.operators.slicecache import SliceCache
from penstock.state.columns import key_list
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
        self._cache: SliceCache | None = None

    def _fold(self, rows: pa.RecordBatch, keys: Sequence[str]) -> tuple[pa.RecordBatch, Bools]:
        if self._cache is not None and pc.min(rows.column(WINDOW_COLUMN)).as_py() < self._cache.upto:
            self._cache = None
        return super()._fold(rows, keys)

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
        owners, slices, values = self._slices_of(windows)
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

    def _slices_of(self, windows: pa.RecordBatch) -> tuple[Ints, Ints, pa.RecordBatch]:
        """The slices of windows: whose, where they start, and their accumulators. Those of a window stand in order of time."""
        starts = windows.column(WINDOW_COLUMN).to_numpy()
        wanted = self._sliding.slices_of(starts)  # a row per window
        start, end = int(starts[0]), int(starts[0]) + self._sliding.size
        keys = windows.select(self._names)
        # Mostly all keys close together, one window after the other. A task that was ahead before a rescale may have sent what
        # others have not: then the slices of all keys do not belong to the same windows.
        together = self._timers.floor_min == self._timers.floor_max and (starts == start).all()
        if not together or self._table.rows_estimate > 4 * wanted.size:
            self._cache = None
            return self._looked_up(windows, wanted)
        cache = self._cache
        if cache is None or cache.worn or cache.upto <= start:
            cache = self._cache = SliceCache(start)
            cache.add(*self._scanned(start, end), end)
        else:
            cache.drop(start)
            new = np.broadcast_to(
                np.arange(cache.upto, end, self._sliding.slice), (len(starts), (end - cache.upto) // self._sliding.slice)
            )
            owners, slices, values = self._looked_up(windows, new)
            cache.add(keys.take(pa.array(owners)), slices, values, end)
        return cache.of(keys)

    def _looked_up(self, windows: pa.RecordBatch, wanted: Ints) -> tuple[Ints, Ints, pa.RecordBatch]:
        owners, slices = np.repeat(np.arange(windows.num_rows), wanted.shape[1]), wanted.ravel()
        found, values = self._table.get_many(self._slice_keys(windows, owners, slices))
        return owners[found], slices[found], keep(values, found)

    def _scanned(self, start: int, end: int) -> tuple[pa.RecordBatch, Ints, pa.RecordBatch]:
        """Keys, starts and accumulators of all slices in between, in order of time."""
        rows = pa.Table.from_batches(list(self._table.scan())).combine_chunks().to_batches()[0]
        slices = rows.column(WINDOW_COLUMN).to_numpy()
        within = np.flatnonzero((slices >= start) & (slices < end))
        within = within[np.argsort(slices[within], kind="stable")]
        rows = rows.take(pa.array(within))
        return rows.select(self._names), slices[within], rows.select([f.name for f in self._accumulators.fields])

    def _slice_keys(self, windows: pa.RecordBatch, owners: Ints, slices: Ints) -> pa.RecordBatch:
        keys = windows.select(self._names).take(pa.array(owners))
        return pa.RecordBatch.from_arrays([*keys.columns, pa.array(slices)], names=self._keys)


def distinct(keys: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Each row once."""
    if len(keys) == 1 and len(set(key_list(keys[0]))) == keys[0].num_rows:  # as almost always
        return keys[0]
    names = keys[0].schema.names
    grouped = pa.Table.from_batches(keys).group_by(names, use_threads=False).aggregate([])
    return grouped.combine_chunks().to_batches()[0].select(names)
