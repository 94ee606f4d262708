"""Aggregates over windows that overlap: rows are folded into slices once, and slices into windows when these close.

Between two neighbouring starts or ends of windows nothing happens, so all rows of such a *slice* share their windows. What a row
costs does not depend on how many windows it lies in; what a window costs is a few merges per key (`slicestacks`),
while windows close in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import WINDOW_COLUMN, Folded, Ints, WindowAggregate
from penstock.operators.operator import MAIN, Out, keep
from penstock.operators.slicestacks import Hashes, SliceStacks
from penstock.state.columns import gathered, key_list, span
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
        self._stacks: SliceStacks | None = None

    def _fold(self, rows: pa.RecordBatch, keys: Sequence[str]) -> Folded:
        if self._stacks is not None and span(rows.column(WINDOW_COLUMN).to_numpy())[0] < self._stacks.upto:
            self._stacks = None
        return super()._fold(rows, keys)

    def _closing(self, starts: Ints) -> Ints:
        return closing(self._sliding.last_start_of(starts) + self._sliding.size, self._lateness)

    def _await(self, fresh: pa.RecordBatch) -> None:
        slices = fresh.column(WINDOW_COLUMN).to_numpy()
        # The floor is about closing, which is later than the end by the lateness.
        floors = self._floors(fresh)
        opened = floors > np.iinfo(np.int64).min + self._lateness
        ends = self._sliding.first_end_after(slices, np.where(opened, floors - self._lateness, floors))
        self._set(fresh, ends)

    def _set(self, keys: pa.RecordBatch, ends: Ints, hashes: Hashes | None = None) -> None:
        """Wait for windows with these ends."""
        self._timers.add(closing(ends, self._lateness), self._slice_keys(keys, ends - self._sliding.size), hashes)

    def advance(self, time: int) -> Iterator[Out]:
        """Put together the windows that have closed, and drop the slices that no later window needs."""
        # One end at a time: a window that closes sets the timer of the next, which may have closed as well.
        while (end := self._timers.next_due) is not None and end <= time:
            due = [each.select(self._keys) for each in self._timers.due(end)]
            if due:
                yield from self._close(pa.concat_batches(due) if len(due) > 1 else due[0])
        self._timers.advance(time)

    def _close(self, windows: pa.RecordBatch) -> Iterator[Out]:
        """Close these windows, all with one end. One that stands there twice is one."""
        starts = windows.column(WINDOW_COLUMN).to_numpy()
        # Mostly all keys close together, one window after the other. A task that was ahead before a rescale may have sent what
        # others have not: then the slices of all keys do not belong to the same windows. And where most slices are those of
        # later windows, it would take too long to find the few by going through all.
        together = self._timers.floor_min == self._timers.floor_max and (starts == starts[0]).all()
        if together and self._table.rows_estimate <= 4 * len(starts) * self._sliding.size // self._sliding.slice:
            return self._close_together(windows.select(self._names), int(starts[0]))
        self._stacks = None
        return self._close_apart(distinct([windows]))

    def _close_together(self, keys: pa.RecordBatch, start: int) -> Iterator[Out]:
        """Close the window of all keys that have anything in it: these."""
        sliding, stacks = self._sliding, self._stacks
        end, following = start + sliding.size, start + sliding.every
        if stacks is None or stacks.worn or stacks.upto <= start:
            stacks = self._stacks = self._scanned(start, end)
        numbers = stacks.distinct(keys)
        rows, hashes = stacks.keys_of(numbers)
        for each in range(stacks.upto, end, sliding.slice):  # what this window has more than the one before
            found, values = self._table.get_many(self._slice_keys(rows, each), hashes)
            stacks.add(each, numbers[found], keep(values, found))
        stacks.upto = end
        whole = stacks.whole()
        assert np.array_equal(whole.numbers, numbers), "a key with a slice in a window has a timer at its end, and the reverse"
        columns, names = [*rows.columns, *whole.values.columns], [*self._names, *whole.values.schema.names]
        every = np.full(len(numbers), start)
        yield MAIN, self._sent(pa.RecordBatch.from_arrays(columns, names=names), every, every + sliding.size)
        # Slices before the next window are over. Where any are left, the next window has something in it.
        for each, gone in stacks.drop(following):
            if not np.array_equal(gone, numbers):
                numbers, (rows, hashes) = gone, stacks.keys_of(gone)
            self._table.delete_many(self._slice_keys(rows, each), hashes)
        left = stacks.numbers()
        if not np.array_equal(left, numbers):
            rows, hashes = stacks.keys_of(left)
        self._set(rows, np.full(len(left), following + sliding.size), hashes)

    def _close_apart(self, windows: pa.RecordBatch) -> Iterator[Out]:
        """Close these windows, each on its own."""
        sliding, starts = self._sliding, windows.column(WINDOW_COLUMN).to_numpy()
        wanted = sliding.slices_of(starts)  # a row per window
        owners, slices = np.repeat(np.arange(windows.num_rows), wanted.shape[1]), wanted.ravel()
        found, values = self._table.get_many(self._slice_keys(gathered(windows, owners), slices))
        owners, slices, values = owners[found], slices[found], keep(values, found)
        merged = self._accumulators.merge(values.append_column("window", pa.array(owners)), ["window"])
        which = merged.column("window").to_numpy()
        columns = [*gathered(windows, which).columns, *(merged.column(f.name) for f in self._accumulators.fields)]
        names = [*self._keys, *(f.name for f in self._accumulators.fields)]
        yield MAIN, self._sent(pa.RecordBatch.from_arrays(columns, names=names), starts[which], starts[which] + sliding.size)
        following = starts + sliding.every
        over = slices < following[owners]
        self._table.delete_many(self._slice_keys(gathered(windows, owners[over]), slices[over]))
        some = np.unique(owners[~over])
        self._set(gathered(windows, some), following[some] + sliding.size)

    def _scanned(self, start: int, end: int) -> SliceStacks:
        """All slices in between, from the table."""
        stacks = SliceStacks(self._accumulators, end)
        rows = pa.Table.from_batches(list(self._table.scan())).combine_chunks().to_batches()[0]
        slices = rows.column(WINDOW_COLUMN).to_numpy()
        within = np.flatnonzero((slices >= start) & (slices < end))
        within = within[np.argsort(slices[within], kind="stable")]
        rows, slices = gathered(rows, within), slices[within]
        numbers = stacks.number(rows.select(self._names))
        values = rows.select([f.name for f in self._accumulators.fields])
        edges = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), len(slices)]
        for first, last in itertools.pairwise(edges):
            stacks.add(int(slices[first]), numbers[first:last], values.slice(first, last - first))
        return stacks

    def _slice_keys(self, keys: pa.RecordBatch, slices: Ints | int) -> pa.RecordBatch:
        starts = np.full(keys.num_rows, slices) if isinstance(slices, int) else slices
        arrays = [*(keys.column(name) for name in self._names), pa.array(starts)]
        return pa.RecordBatch.from_arrays(arrays, names=self._keys)


def distinct(keys: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Each row once."""
    if len(keys) == 1 and len(set(key_list(keys[0]))) == keys[0].num_rows:  # as almost always
        return keys[0]
    names = keys[0].schema.names
    grouped = pa.Table.from_batches(keys).group_by(names, use_threads=False).aggregate([])
    return grouped.combine_chunks().to_batches()[0].select(names)
