"""The join of rows that lie in the same window. Results are sent when the window closes, of whatever kind they are.

Rows are kept by key and *slice*: what lies between two neighbouring starts or ends of windows shares all its windows (a tumbling
window is one slice). When a window closes, its slices are put together, side by side, and those that no later window needs are
dropped. So a row is kept once, however many windows it lies in.

1. The event time of a result is the last moment of its window, as with every window; `window_start` and `window_end` say which.
2. A row is late if the last of its windows has closed.
3. Rows with a null in their key match nothing. They are kept only where rows without a match are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.joining import Join, Joined
from penstock.operators.operator import MAIN, TIME_COLUMN, Origin, Out, as_times, times_of
from penstock.operators.rowbuffer import BUCKET, Ints, Keys, Places, RowBuffer, Stored, pairs, with_columns
from penstock.operators.sliding import distinct
from penstock.state.columns import gathered
from penstock.state.keygroups import groups_of
from penstock.windows import Sliding, Tumbling, closing

WINDOW_COLUMN = "__window"
ROWS_MAX = 65_536
WINDOWS_MAX = 4_096


class WindowJoin(Join):
    """Rows of two streams with equal keys in the same window.

    Input:   rows of both sides with event time, in any order.
    State:   per side the rows of slices that an open window needs.
    Timers:  event time, per key at the close of the next window with anything in it; a window may have several.
    Output:  main: results; late, late_right: the rows whose last window had closed.
    """

    def __init__(
        self,
        name: str,
        joined: Joined,
        how: str,
        shape: Tumbling | Sliding,
        bounds: Sequence[str],
        states: Mapping[str, Any],
        *,
        max_parallelism: int,
    ) -> None:
        super().__init__(name, joined, how, states, max_parallelism=max_parallelism)
        self._shape, self._bounds = shape, bounds
        self._buffers = [RowBuffer(states[f"{side}_buckets"], states[f"{side}_rows"]) for side in ("left", "right")]

    # -- windows and their slices

    def _slice(self, times: Ints) -> Ints:
        return self._shape.slice_of(times) if isinstance(self._shape, Sliding) else self._shape.start_of(times)

    def _slices(self, starts: Ints) -> Ints:
        """The slices of windows, a row of them per window."""
        return self._shape.slices_of(starts) if isinstance(self._shape, Sliding) else starts[:, None]

    def _end(self, starts: Ints) -> Ints:
        return starts + self._shape.size if isinstance(self._shape, Sliding) else self._shape.end_of(starts)

    def _closes(self, slices: Ints) -> Ints:
        """When the last window with a slice in it closes."""
        if isinstance(self._shape, Sliding):
            slices = self._shape.last_start_of(slices)
        return closing(self._end(slices), 0)

    def _next_window(self, slices: Ints, floors: Ints) -> Ints:
        """The start of the first window with a slice in it that has not closed."""
        if isinstance(self._shape, Sliding):
            return self._shape.first_end_after(slices, floors) - self._shape.size
        return slices

    # -- rows

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Set late rows aside, and keep the others."""
        keys = self._keys(input, batch)
        slices = self._slice(times_of(batch))
        late = self._closes(slices) <= self._floors(keys)
        if late.any():
            yield from self._set_late_aside(input, batch, late)
        wanted = ~late if self._sent_alone[input] else ~late & keys.whole
        rows = self._sides[input].rows(batch)
        if not wanted.all():
            at = np.flatnonzero(wanted)
            keys, slices, rows = keys.take(at), slices[at], gathered(rows, at)
        if len(keys):
            _, fresh = self._buffers[input].add(keys, slices, rows)
            starts = fresh.columns.column(BUCKET).to_numpy()
            floors = self._timers.floor_of(groups_of(fresh.hashes, self._max_parallelism))
            self._await(fresh.columns, self._next_window(starts, floors))

    def _await(self, keys: pa.RecordBatch, starts: Ints) -> None:
        """Wait for windows of these keys to close."""
        names = list(self._joined.keys)
        self._timers.add(closing(self._end(starts), 0), with_columns(keys.select(names), {WINDOW_COLUMN: starts}))

    # -- time

    def advance(self, time: int) -> Iterator[Out]:
        """Put together the windows that have closed."""
        # One end at a time: a window that closes sets the timer of the next, which may have closed as well.
        while (end := self._timers.next_due) is not None and end <= time:
            due = [batch.select([*self._joined.keys, WINDOW_COLUMN]) for batch in self._timers.due(end)]
            if not due:
                continue
            windows = distinct(due)
            for start in range(0, windows.num_rows, WINDOWS_MAX):
                yield from self._close(windows.slice(start, WINDOWS_MAX))
        self._timers.advance(time)

    def _close(self, windows: pa.RecordBatch) -> Iterator[Out]:
        """Windows of different keys that end at the same time."""
        keys = Keys(windows.select(list(self._joined.keys)), codes=np.arange(windows.num_rows))
        starts = windows.column(WINDOW_COLUMN).to_numpy()
        slices = self._slices(starts)
        width = slices.shape[1]
        owners = np.repeat(np.arange(len(starts)), width)
        each = keys.take(owners)
        places = Places(with_columns(each.columns, {BUCKET: slices.ravel()}), each.hashes)
        counts = [buffer.counts(places) for buffer in self._buffers]
        sizes = [np.add.reduceat(count, np.arange(0, len(owners), width)) for count in counts]
        # Rows that cannot be in the result need not be read.
        idle = (sizes[0] == 0) | (sizes[1] == 0) if self._how in ("inner", "semi") else np.zeros(len(starts), np.bool_)
        # Some windows at a time, so that not all their rows are in memory at once.
        for first, last in stretches(np.where(idle, 0, sizes[0] + sizes[1]), ROWS_MAX):
            part = np.arange(first * width, last * width)
            some = [np.where(idle[owners[part]], 0, count[part]) for count in counts]
            yield from self._join(keys.take(np.arange(first, last)), starts[first:last], places.take(part), some, width)
        self._forget(keys, starts, places, counts, slices, owners)

    def _join(self, keys: Keys, starts: Ints, places: Places, counts: list[Ints], width: int) -> Iterator[Out]:
        left, right = (
            of_windows(buffer.fetch(places, count), width, len(starts)) for buffer, count in zip(self._buffers, counts)
        )
        ends, whole = self._end(starts), keys.whole
        meets = (left.counts > 0) & (right.counts > 0) & whole
        if self._how in ("inner", "left", "right", "full"):
            rows = np.flatnonzero(meets[left.of])
            for ours, theirs in pairs(rows, left.of[rows], right):
                of = left.of[ours]
                both = gathered(left.rows, ours), gathered(right.rows, theirs)
                yield MAIN, self._joined.rows(gathered(keys.columns, of), *both, self._hidden(starts[of], ends[of]))
        for side, stored in enumerate((left, right)):
            if self._sent_alone[side] or (side == 0 and self._how == "semi"):
                chosen = np.flatnonzero(meets[stored.of] if self._how == "semi" else ~meets[stored.of])
                of, rows = stored.of[chosen], gathered(stored.rows, chosen)
                yield MAIN, self._alone(side, gathered(keys.columns, of), rows, self._hidden(starts[of], ends[of]))

    def _hidden(self, starts: Ints, ends: Ints) -> dict[str, pa.Array]:
        """Which window results are of, and their event time."""
        start, end = self._bounds
        return {start: as_times(starts), end: as_times(ends), TIME_COLUMN: as_times(ends - 1)}

    def _forget(self, keys: Keys, starts: Ints, places: Places, counts: list[Ints], slices: Ints, owners: Ints) -> None:
        """Drop slices before the next window of their key. Where any are left, the next window has something in it."""
        following = starts + self._shape.every if isinstance(self._shape, Sliding) else self._end(starts)
        over = slices.ravel() < following[owners]
        more = np.zeros(len(starts), np.bool_)
        for buffer, count in zip(self._buffers, counts):
            done = np.flatnonzero(over & (count > 0))
            buffer.drop(places.take(done), count[done])
            more[owners[~over & (count > 0)]] = True
        at = np.flatnonzero(more)
        self._await(gathered(keys.columns, at), following[at])


def of_windows(stored: Stored, width: int, windows: int) -> Stored:
    """Rows by window, where they were by slice: those of a window stand side by side."""
    of = stored.of // width
    counts = np.bincount(of, minlength=windows)
    return Stored(np.cumsum(counts) - counts, counts, of, stored.places, stored.hashes, stored.rows)


def stretches(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Neighbours whose sizes add up to about `limit`, as (first, last + 1); one that is larger stands alone."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
        yield start, stop
        start = stop
