"""Each left row with the last right row at or before its time: a trade with the quote that was valid.

Rows of both sides wait until the watermark has passed their times. Then they are taken in the order of time: a right row becomes
the **version** of its key, a left row is sent with the version there is. So an answer is final when it is sent, and of the right
side's past only one version per key is kept.

1. Of right rows with equal keys and times the one that came last is the version. A right row at the very time of a left row is
   seen by it.
2. With a tolerance a version that is older than that is not seen, and is forgotten. Without one it is kept for ever.
3. The event time of a result is the left row's. A row at or before the watermark is late, on both sides.
4. Left rows with a null in their key have no version; they are sent at once, with how="left".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.groups import group_rows
from penstock.operators.join_interval import hidden
from penstock.operators.joining import Join, Joined, numbers
from penstock.operators.operator import MAIN, Origin, Out, keep, times_of
from penstock.operators.rowbuffer import BUCKET, Bools, Ints, Places, RowBuffer, Stored, with_columns
from penstock.state.columns import gathered
from penstock.state.keygroups import hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE

SIDE = "__side"
LEFT, RIGHT, VERSION = 0, 1, 2


class AsofJoin(Join):
    """Left rows with the version of their key.

    Input:   rows of both sides with event time, in any order.
    State:   per side the rows that the watermark has not passed, by key and time; `versions`: the last right row of each key.
    Timers:  event time: at the times of rows that wait; when a version is too old.
    Output:  main: results; late, late_right: the rows at or before the watermark.
    """

    def __init__(
        self, name: str, joined: Joined, how: str, tolerance: int | None, states: Mapping[str, Any], *, max_parallelism: int
    ) -> None:
        super().__init__(name, joined, how, states, max_parallelism=max_parallelism)
        self._tolerance = tolerance
        self._buffers = [RowBuffer(states[f"{side}_buckets"], states[f"{side}_rows"]) for side in ("left", "right")]
        self._versions: KeyedTable = states["versions"]

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Let rows wait for their time."""
        keys, times = self._keys(input, batch), times_of(batch)
        late = times <= self._floors(keys)
        if late.any():
            yield from self._set_late_aside(input, batch, late)
        rows, whole = self._sides[input].rows(batch), keys.whole
        if input == LEFT and self._how == "left" and not whole.all():
            at = np.flatnonzero(~whole & ~late)
            yield MAIN, self._alone(LEFT, gathered(keys.columns, at), gathered(rows, at), hidden(times[at]))
        if not (whole & ~late).all():
            at = np.flatnonzero(whole & ~late)
            keys, times, rows = keys.take(at), times[at], gathered(rows, at)
        if len(keys):
            _, fresh = self._buffers[input].add(keys, times, rows)
            self._await(input, fresh.columns, fresh.columns.column(BUCKET).to_numpy())

    def _await(self, side: int, places: pa.RecordBatch, due: Ints) -> None:
        names = [*self._joined.keys, SIDE, BUCKET]
        self._timers.add(due, with_columns(places, {SIDE: np.full(len(due), side)}).select(names))

    def advance(self, time: int) -> Iterator[Out]:
        """Take what is due in the order of time. What is due at one moment is taken together, though it may come in two batches."""
        waiting: pa.RecordBatch | None = None
        while True:
            for batch in self._timers.due(time):
                due = batch if waiting is None else pa.concat_batches([waiting, batch])
                when = due.column(DUE).to_numpy()
                waiting = keep(due, when == when.max())
                yield from self._take(keep(due, when < when.max()))
            if waiting is None:
                break
            # What is taken now may be a version that is too old already: then there is one more round.
            yield from self._take(waiting)
            waiting = None
        self._timers.advance(time)

    def _take(self, due: pa.RecordBatch) -> Iterator[Out]:
        sides = due.column(SIDE).to_numpy()
        left, right = (self._fetch(side, keep(due, sides == side)) for side in (LEFT, RIGHT))
        if left.rows.num_rows or right.rows.num_rows:
            yield from self._match(left, right)
        self._expire(keep(due, sides == VERSION))

    def _fetch(self, side: int, due: pa.RecordBatch) -> Stored:
        """Rows whose time has come; they wait no longer."""
        columns = due.select([*self._joined.keys, BUCKET])
        places = Places(columns, hash_keys(columns.select(list(self._joined.keys))))
        return self._buffers[side].pop(places)

    def _match(self, left: Stored, right: Stored) -> Iterator[Out]:
        names = list(self._joined.keys)
        groups = group_rows(pa.concat_batches([left.places.select(names), right.places.select(names)]), names)
        each = gathered(pa.concat_batches([left.places, right.places]).select(names), groups.first)
        found, kept = self._versions.get_many(each)
        there = np.flatnonzero(found)
        # Versions, new ones after the old: by key, then by time, then as they came. Left rows stand behind those of their time.
        versions = pa.concat_batches([gathered(kept, there), right.rows])
        keys = np.concatenate([there, groups.of[left.rows.num_rows :], groups.of[: left.rows.num_rows]])
        times = np.concatenate([numbers(versions), numbers(left.rows)])
        is_left = np.arange(len(keys)) >= versions.num_rows
        order = np.lexsort((np.arange(len(keys)), is_left, times, keys))
        last = np.maximum.accumulate(np.where(is_left[order], -1, np.arange(len(order))))
        seen = order[np.maximum(last, 0)]  # the version before each, in order; of another key perhaps
        seen = np.where((last >= 0) & (keys[seen] == keys[order]), seen, -1)
        mine = is_left[order]
        yield from self._send(left, order[mine] - versions.num_rows, seen[mine], versions)
        self._replace(each, keys, order, seen, versions, len(there))

    def _send(self, left: Stored, rows: Ints, seen: Ints, versions: pa.RecordBatch) -> Iterator[Out]:
        times = numbers(left.rows)[rows]
        found: Bools = seen >= 0
        if self._tolerance is not None:
            found &= times - numbers(versions)[np.maximum(seen, 0)] <= self._tolerance if versions.num_rows else False
        if self._how == "inner":
            rows, times, seen, found = rows[found], times[found], seen[found], found[found]
        taken = pa.array(rows)
        other = versions.take(pa.array(seen, mask=~found))
        yield MAIN, self._joined.rows(left.places.take(taken), left.rows.take(taken), other, hidden(times))

    def _replace(self, each: pa.RecordBatch, keys: Ints, order: Ints, seen: Ints, versions: pa.RecordBatch, old: int) -> None:
        """Remember the newest version of each key."""
        ends = np.flatnonzero(np.r_[keys[order][1:] != keys[order][:-1], True])
        newest = seen[ends]
        fresh = np.flatnonzero(newest >= old)
        names, rows = gathered(each, keys[order][ends][fresh]), gathered(versions, newest[fresh])
        self._versions.put_many(names, rows)
        if self._tolerance is not None:
            times = numbers(rows)
            self._await(VERSION, with_columns(names, {BUCKET: times}), times + self._tolerance)

    def _expire(self, due: pa.RecordBatch) -> None:
        """Forget versions that nobody can see any more, unless there are newer ones."""
        keys = due.select(list(self._joined.keys))
        found, rows = self._versions.get_many(keys)
        same = found & (np.array(rows.column("__time").fill_null(0)) == due.column(BUCKET).to_numpy())
        self._versions.delete_many(keep(keys, same))
