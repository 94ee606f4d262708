"""Timers that users name: one per key and name, replaced and cleared exactly.

Two states for each clock: `TimerTable`, which knows what is due and cannot take anything back, and a table from (key, name) to when
that timer is due *now*. A timer that is due and that the table does not know at this time was replaced or cleared.

1. While a batch is worked on changes are kept in a dict and written when it is done, as values of states are.
2. The timers of a key fire in order of time, then of name; also those that are set while others fire and are due by then. So all
   that are due at one moment are taken together, those of a key in one piece.
3. A timer for a time that has passed fires as soon as time moves on. Where rows come in order of time (`ordered`), that is when
   the moment at which it was set is over: how far the watermark was does not matter.
4. When time is over (the input has ended) what is pending fires once. What is set then never does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import RowError
from penstock.processing.states import Scope
from penstock.state.columns import gathered
from penstock.state.keygroups import groups_of, hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE, TimerTable
from penstock.windows import TIME_MAX

TIMER = "__timer"
VALUES = ("due", "at", "time")
Pending = tuple[int, int, int | None]
"""When it is due, the time it was set for, and the event time of who set it."""
PIECE_ROWS = 65_536


class NamedTimers:
    """The timers of one clock."""

    def __init__(
        self, table: KeyedTable, timers: TimerTable, scope: Scope, max_parallelism: int, *, ordered: bool = False
    ) -> None:
        self._table, self._timers, self._scope, self._max_parallelism = table, timers, scope, max_parallelism
        self._ordered = ordered
        self._names = table.spec.keys.names[:-1]
        self._changed: dict[tuple[int, str], Pending | None] = {}
        self._floors: list[int] | None = None
        self._firing: list[tuple[int, int, str, int]] | None = None  # a heap of (due, set for, name, key), while some fire
        self._limit = 0
        self._over = False

    @property
    def next_due(self) -> int | None:
        """When to look again."""
        return self._timers.next_due

    def begin(self) -> None:
        """Other keys now."""
        self._changed, self._floors, self._firing = {}, None, None

    def set(self, name: str, at: int, time: int | None) -> None:
        """Have the current key woken."""
        due = min(at, TIME_MAX - 1)
        if self._ordered:
            due = max(due, self._scope.moment)
        if due <= self._timers.floor_max:
            due = max(due, self._floor() + 1)
        if self._over or due >= TIME_MAX:
            self._change(name, None)
            return
        self._change(name, (due, at, time))
        if self._firing is not None and due <= self._limit:
            heapq.heappush(self._firing, (due, at, name, self._scope.at))

    def clear(self, name: str) -> None:
        """Do not wake the current key."""
        self._change(name, None)

    def _change(self, name: str, pending: Pending | None) -> None:
        if not self._scope.keys.num_rows:
            raise RowError(f"timer {name!r} is by key, and there is none here: on_broadcast and on_batch have no current key")
        place = (self._scope.at, name)
        if place in self._changed:
            self._scope.journal.append((self._changed.__setitem__, place, self._changed[place]))
        else:
            self._scope.journal.append((self._changed.__delitem__, place))
        self._changed[place] = pending

    def _floor(self) -> int:
        if self._floors is None:
            groups = groups_of(hash_keys(self._scope.keys), self._max_parallelism)
            self._floors = self._timers.floor_of(groups).tolist()
        return self._floors[self._scope.at]

    def flush(self) -> None:
        """Write what changed."""
        if self._changed:
            self._write()
        self.begin()

    def _write(self) -> None:
        places = list(self._changed)
        keys = gathered(self._scope.keys, [at for at, _ in places])
        arrays = [*keys.columns, pa.array([name for _, name in places], pa.string())]
        rows = pa.RecordBatch.from_arrays(arrays, names=[*self._names, TIMER])
        pending = [value for value in self._changed.values() if value is not None]
        kept = rows
        if len(pending) < len(places):
            there = np.array([self._changed[place] is not None for place in places])
            self._table.delete_many(rows.filter(pa.array(~there)))
            kept = rows.filter(pa.array(there))
        if pending:
            columns = [pa.array(list(column), pa.int64()) for column in zip(*pending)]
            self._table.put_many(kept, pa.RecordBatch.from_arrays(columns, names=list(VALUES)))
            fresh = np.array([value[0] for value in pending], np.int64)
            self._timers.add(fresh, kept)

    # -- firing

    def due(self, time: int) -> Iterator[pa.RecordBatch]:
        """Take what is due, in pieces: (`__due`, key, `__timer`), in order of time. Then all up to `time` has fired."""
        self._over = time >= TIME_MAX
        for piece in self._timers.due(time):
            first, last = piece.column(DUE)[0].as_py(), piece.column(DUE)[-1].as_py()
            rest = list(self._timers.due(last))
            if not rest:
                yield piece
                continue
            whole = pa.concat_batches([piece, *rest])
            moment = whole.column(DUE).to_numpy() == last
            if first == last:
                yield from self._by_group(whole)
                continue
            # What these set may be due before that moment, so it waits its turn.
            later = whole.filter(pa.array(moment))
            self._timers.add(later.column(DUE).to_numpy(), later.drop_columns([DUE]))
            yield whole.filter(pa.array(~moment))
        self._timers.advance(time)

    def _by_group(self, moment: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Timers of one moment in pieces, those of a key in the same."""
        groups = groups_of(hash_keys(moment.select(self._names)), self._max_parallelism)
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        start = 0
        for stop in [*starts[1:].tolist(), len(order)]:
            if stop - start >= PIECE_ROWS or stop == len(order):
                yield gathered(moment, order[start:stop])
                start = stop

    def take(self, time: int) -> pa.RecordBatch | None:
        """Take what is due on the way to a later time: of that, `due` follows."""
        taken = list(self._timers.due(time))
        return pa.concat_batches(taken) if taken else None

    def fire(self, due: pa.RecordBatch | None, keys: np.ndarray[Any, Any], upto: int) -> None:
        """Make ready to fire these; `keys` are their numbers in the scope. Timers set meanwhile fire too if due by `upto`."""
        self._firing, self._limit = [], upto
        if due is None:
            return
        names = due.column(TIMER)
        found, values = self._table.get_many(due.select([*self._names, TIMER]))
        columns = [values.column(name).to_pylist() for name in VALUES]
        for at, name, there, when, pending in zip(
            keys.tolist(), names.to_pylist(), found.tolist(), due.column(DUE).to_pylist(), zip(*columns)
        ):
            if there and pending[0] == when and (at, name) not in self._changed:
                self._changed[at, name] = pending
                self._firing.append((when, pending[1], name, at))
        heapq.heapify(self._firing)

    def mark(self) -> tuple[Any, ...]:
        """What `back_to` takes."""
        return list(self._firing or ()), dict(self._changed)

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """As it was at this mark."""
        self._firing, self._changed = list(mark[0]), dict(mark[1])

    @property
    def next_firing(self) -> int | None:
        """When the next of those is due."""
        return self._firing[0][0] if self._firing else None

    def pop(self) -> tuple[int, str, Pending] | None:
        """The next that fires: key, name and what is known of it. None if it was replaced or cleared meanwhile."""
        assert self._firing, "nothing is left to fire"
        when, _, name, at = heapq.heappop(self._firing)
        pending = self._changed.get((at, name))
        if pending is None or pending[0] != when:
            return None
        self._changed[at, name] = None
        return at, name, pending
