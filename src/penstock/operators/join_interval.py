"""The join of rows whose times lie within bounds of each other: lower <= right's time - left's time <= upper.

Both sides are kept by key and bucket, a bucket being as long as the bounds are apart: a row looks at two buckets of the other side
at most.

1. Matches are sent as the later of both rows arrives; their event time is the later of both. "semi" sends a left row at its first
   match.
2. A left row can have no more matches once nothing at or before its time + upper can come; a right row, at or before its time -
   lower. Rows without a match are sent then, with that moment as event time (or their own time, if that is later). So results are
   never late for the step behind, unless the row that made them was beyond its bound.
3. A row at or before the watermark is **late**: an answer it had to be in may have been sent. Both sides have such rows.
4. Rows with a null in their key match nothing; they are sent at once, where rows without a match are sent.

Timers hold the key, the side, a bucket, and a number: that of a row that may have to be sent without a match, or -1 for a bucket
that nobody can look at any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.joining import Join, Joined, numbers
from penstock.operators.operator import MAIN, TIME_COLUMN, Origin, Out, as_times, keep, times_of
from penstock.operators.rowbuffer import (
    BUCKET,
    NUMBER,
    Bools,
    Ints,
    Keys,
    Places,
    RowBuffer,
    Stored,
    distinct_places,
    pairs,
    with_columns,
)
from penstock.state.columns import batch_of, gathered
from penstock.state.keygroups import hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE

SIDE = "__side"
WHOLE_BUCKET = -1


class IntervalJoin(Join):
    """Rows of two streams with equal keys and times within bounds of each other.

    Input:   rows of both sides with event time, in any order.
    State:   per side the rows that may still have a match, and which of those that are sent without one had one.
    Timers:  event time: when a row can have no more match; when a bucket is over.
    Output:  main: results; late, late_right: the rows at or before the watermark.
    """

    def __init__(
        self, name: str, joined: Joined, how: str, lower: int, upper: int, states: Mapping[str, Any], *, max_parallelism: int
    ) -> None:
        super().__init__(name, joined, how, states, max_parallelism=max_parallelism)
        self._width = max(1, upper - lower)
        self._buffers = [RowBuffer(states[f"{side}_buckets"], states[f"{side}_rows"]) for side in ("left", "right")]
        self._matched: list[KeyedTable | None] = [states.get(f"{side}_matched") for side in ("left", "right")]
        self._bounds = ((lower, upper), (-upper, -lower))  # of the other side's time minus this side's
        self._once = how in ("semi", "anti")  # a left row is done with at its first match

    # -- rows

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Match rows with those kept of the other side, and keep them."""
        keys, times = self._keys(input, batch), times_of(batch)
        floors = self._floors(keys)
        late = times <= floors
        if late.any():
            yield from self._set_late_aside(input, batch, late)
        whole = keys.whole
        rows = self._sides[input].rows(batch)
        if self._sent_alone[input] and not whole.all():
            yield from self._send_alone(input, keys, rows, np.flatnonzero(~whole & ~late), times)
        if not (whole & ~late).all():
            at = np.flatnonzero(whole & ~late)
            keys, times, floors, rows = keys.take(at), times[at], floors[at], gathered(rows, at)
        if not len(keys):
            return
        matched = np.zeros(len(keys), np.bool_)
        yield from self._match(input, keys, times, rows, matched)
        yield from self._keep(input, keys, times, rows, matched, floors)

    def _match(self, side: int, keys: Keys, times: Ints, rows: pa.RecordBatch, matched: Bools) -> Iterator[Out]:
        """Send the matches of rows with those kept of the other side; note in `matched` which rows had any."""
        other = 1 - side
        low, high = (times + bound for bound in self._bounds[side])
        first, last = low // self._width, high // self._width
        twice = np.flatnonzero(last > first)
        assert (last - first <= 1).all(), "a row looks at two buckets at most"
        looking = np.concatenate([np.arange(len(keys)), twice])
        places, groups = distinct_places(keys.take(looking), np.concatenate([first, last[twice]]))
        stored = self._buffers[other].fetch(places)
        there = numbers(stored.rows)
        done = np.zeros(len(there), np.bool_)  # kept rows that had their match
        for ours, theirs in pairs(looking, groups.of, stored):
            time = there[theirs]
            within = (time >= low[ours]) & (time <= high[ours])
            ours, theirs, time = ours[within], theirs[within], np.maximum(times[ours[within]], time[within])
            if len(ours):
                yield from self._pairs(side, keys, rows, stored, ours, theirs, time, matched, done)
                matched[ours] = True
                done[theirs] = True
        self._note(other, stored, np.flatnonzero(done))

    def _pairs(
        self,
        side: int,
        keys: Keys,
        rows: pa.RecordBatch,
        stored: Stored,
        ours: Ints,
        theirs: Ints,
        time: Ints,
        matched: Bools,
        done: Bools,
    ) -> Iterator[Out]:
        """Send some pairs; of "semi", the left rows that have their first match."""
        if self._how == "anti":
            return
        if self._how == "semi":
            left, had = (ours, matched) if side == 0 else (theirs, done)
            # The first match of a row that was kept is by the row that came first; of one that comes, the earliest in time.
            order = np.lexsort((time, ours)) if side == 0 else np.lexsort((ours, theirs))
            left, time, ours = left[order], time[order], ours[order]
            fresh = np.r_[True, left[1:] != left[:-1]] & ~had[left]
            left, time, ours = left[fresh], time[fresh], ours[fresh]
            yield (
                MAIN,
                self._alone(0, gathered(keys.columns, ours), gathered((rows if side == 0 else stored.rows), left), hidden(time)),
            )
            return
        new, old = gathered(rows, ours), gathered(stored.rows, theirs)
        both = (new, old) if side == 0 else (old, new)
        yield MAIN, self._joined.rows(gathered(keys.columns, ours), *both, hidden(time))

    def _note(self, side: int, stored: Stored, done: Ints) -> None:
        """Kept rows had a match: those that would be sent without one are not any more."""
        if side == 0 and self._once:
            self._buffers[0].take_out(gathered(stored.places, done), stored.hashes[done])
        table = self._matched[side]
        if table is not None and len(done):
            opened = done[stored.rows.column("__open").to_numpy(zero_copy_only=False)[done]]
            places = gathered(stored.places, opened)
            table.put_many(places, batch_of(pa.schema([]), [], len(opened)), stored.hashes[opened])

    def _keep(self, side: int, keys: Keys, times: Ints, rows: pa.RecordBatch, matched: Bools, floors: Ints) -> Iterator[Out]:
        """Keep rows that may still have a match."""
        until = times + self._bounds[side][1]
        hopeful = until > floors
        if self._sent_alone[side] and not hopeful.all():
            yield from self._send_alone(side, keys, rows, np.flatnonzero(~hopeful & ~matched), times)
        wanted = hopeful & ~matched if side == 0 and self._once else hopeful
        if not wanted.any():
            return
        if not wanted.all():
            at = np.flatnonzero(wanted)
            keys, times, until, rows, matched = keys.take(at), times[at], until[at], gathered(rows, at), matched[at]
        if self._matched[side] is not None:
            rows = rows.append_column("__open", pa.array(~matched))
        buckets = times // self._width
        each, fresh = self._buffers[side].add(keys, buckets, rows)
        self._await_buckets(side, fresh)
        if self._sent_alone[side]:
            at = np.flatnonzero(~matched)
            self._await(side, gathered(each, at), until[at], keys.hashes[at])

    def _await_buckets(self, side: int, places: Places) -> None:
        """Look at buckets when nobody can look at them any more: later than at each of their rows."""
        over = (places.columns.column(BUCKET).to_numpy() + 1) * self._width + self._bounds[side][1]
        whole = with_columns(places.columns, {NUMBER: np.full(len(places), WHOLE_BUCKET)})
        self._await(side, whole, over, places.hashes)

    def _await(self, side: int, places: pa.RecordBatch, due: Ints, hashes: np.ndarray[Any, Any]) -> None:
        names = [*self._joined.keys, SIDE, BUCKET, NUMBER]
        self._timers.add(due, with_columns(places, {SIDE: np.full(len(due), side)}).select(names), hashes)

    def _send_alone(self, side: int, keys: Keys, rows: pa.RecordBatch, at: Ints, times: Ints) -> Iterator[Out]:
        """Send rows that have just come and can have no match."""
        taken = pa.array(at)
        yield MAIN, self._alone(side, keys.columns.take(taken), rows.take(taken), hidden(times[at]))

    # -- time

    def advance(self, time: int) -> Iterator[Out]:
        """Send rows that can have no match any more, and forget buckets."""
        for due in self._timers.due(time):
            sides, whole = due.column(SIDE).to_numpy(), due.column(NUMBER).to_numpy() == WHOLE_BUCKET
            for side in (0, 1):
                # Single rows first: a bucket is due after all of its rows.
                yield from self._unmatched(side, keep(due, (sides == side) & ~whole))
                columns = keep(due, (sides == side) & whole).select([*self._joined.keys, BUCKET])
                self._buffers[side].drop(Places(columns, hash_keys(columns.select(self._joined.keys))))
        self._timers.advance(time)

    def _unmatched(self, side: int, due: pa.RecordBatch) -> Iterator[Out]:
        places = due.select(self._buffers[side].names)
        table = self._matched[side]
        if table is not None:
            had, _ = table.get_many(places)
            table.delete_many(keep(places, had))
            due, places = keep(due, ~had), keep(places, ~had)
        found, rows = self._buffers[side].get(places)
        if not found.all():  # had a match and was taken out
            due, places, rows = keep(due, found), keep(places, found), keep(rows, found)
        when = np.maximum(due.column(DUE).to_numpy(), numbers(rows))
        yield MAIN, self._alone(side, places, rows, hidden(when))


def hidden(times: Ints) -> dict[str, pa.Array]:
    """The hidden columns of results."""
    return {TIME_COLUMN: as_times(times)}
