"""Sessions: windows that grow with their rows and become one where they meet.

Besides the panes (`panes.py`; found by key and the session's start) the state has, per key, the starts and ends of its open
sessions. New rows and open sessions of a key are merged as intervals; panes of sessions that became one are merged as well.

1. A session whose result had been sent and that became part of another with another start is taken back: deleted from an update
   stream, withdrawn from a retract stream. What it became is then sent at once, so nothing is missing in between.
2. A row that is late by itself belongs to a session if it meets one that is open: so the rows of its key are taken one by one, in
   order. So are the rows of keys for which the order matters in another way: they belong to a session that was sent or has ended,
   or rows alone can fire the trigger.
3. A session that grows does not move its timer. When that is due and the session has not ended, it is set anew. Only a session
   that had ended and does so again, later than the watermark, has a timer that would be too late: it gets an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import WINDOW_COLUMN
from penstock.operators.groups import Groups, group_rows
from penstock.operators.operator import MAIN, Origin, Out, keep
from penstock.operators.panes import (
    END_COLUMN,
    NUMBERS,
    Bools,
    Ints,
    PaneAggregate,
    Panes,
    Rules,
    once_each,
    replaced,
    with_windows,
)
from penstock.operators.triggering import BIG
from penstock.state.columns import gathered, nulls_filled
from penstock.state.keygroups import canonical_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE
from penstock.triggers import AfterCount, AfterWatermark, Trigger
from penstock.windows import Session, closing


class SessionAggregate(PaneAggregate):
    """Aggregates per key and session.

    Input, output: as `PaneAggregate`.
    State:   `panes`, by key and start; `sessions`: per key the starts and ends of those that are open, in order.
    """

    def __init__(self, name: str, output: pa.Schema, rules: Rules, **shared: Any) -> None:
        super().__init__(name, output, rules, **shared)
        self._sessions: KeyedTable = self.states["sessions"]
        self._by_rows = not self._once and fires_by_rows(rules.trigger)

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Merge rows into sessions: all at once where their order does not matter."""
        bad = self._accumulators.failing(batch, self._names)
        if bad is not None and bad.any():
            yield from self._letters(batch, np.flatnonzero(bad), origin)
            batch = keep(batch, ~bad)
        _, starts, ends = self._shape.assign(self._times(batch))
        rows = with_windows(batch, starts, ends)
        turns = self._turns(rows, self._closed(batch, ends))
        for number in range(int(turns.max()) + 1 if len(turns) else 0):
            yield from self._merge(keep(rows, turns == number))

    def _turns(self, rows: pa.RecordBatch, alone_late: Bools) -> Ints:
        """When each row is taken: all at once, but for keys for which the order of their rows matters."""
        if self._once and not alone_late.any():  # as almost always
            return np.zeros(len(alone_late), np.int64)
        groups = group_rows(rows, self._names)
        if self._by_rows:
            return groups.rank
        ordered = np.bincount(groups.of[alone_late], minlength=len(groups.first)) > 0
        several = groups.count > 1
        if not self._once and several.any():
            ordered |= self._touch_sent(rows, groups)
        return np.where((ordered & several)[groups.of], groups.rank, 0)

    def _touch_sent(self, rows: pa.RecordBatch, groups: Groups) -> Bools:
        """Whether some session that the rows of a key become part of has been sent, or has ended."""
        keys = canonical_keys(gathered(rows, groups.first), self._names)
        owners, starts, ends = self._open(keys)
        known, owner = len(owners), np.concatenate([owners, groups.of])
        merged, _, end = Session.merge(
            owner,
            np.concatenate([starts, rows.column(WINDOW_COLUMN).to_numpy()]),
            np.concatenate([ends, rows.column(END_COLUMN).to_numpy()]),
        )
        _, values = self._panes.get_many(self._pane_keys(keys, owners, starts))
        sent = np.array(values.column("__pane.index").fill_null(0)) > 0
        touchy = np.bincount(merged[:known][sent], minlength=len(end)) > 0
        touchy[merged] |= end[merged] - 1 <= self._floors(keys)[owner]
        touched = merged[known:][touchy[merged[known:]]]
        key_of = np.empty(len(end), np.int64)
        key_of[merged] = owner
        found: Bools = np.bincount(key_of[touched], minlength=keys.num_rows) > 0
        return found

    def _merge(self, rows: pa.RecordBatch) -> Iterator[Out]:
        groups = group_rows(rows, self._names)
        keys = canonical_keys(gathered(rows, groups.first), self._names)
        owners, starts, ends = self._open(keys)
        known = len(owners)
        merged, begin, end = Session.merge(
            np.concatenate([owners, groups.of]),
            np.concatenate([starts, rows.column(WINDOW_COLUMN).to_numpy()]),
            np.concatenate([ends, rows.column(END_COLUMN).to_numpy()]),
        )
        owner = np.empty(len(begin), np.int64)
        owner[merged] = np.concatenate([owners, groups.of])
        late = (closing(end, self._lateness) <= self._floors(keys)[owner])[merged[known:]]
        if late.any():  # it met no open session, so the others are none the worse for it
            yield from self._set_aside(keep(rows, late).drop_columns([WINDOW_COLUMN, END_COLUMN]))
            if not late.all():
                yield from self._merge(keep(rows, ~late))
            return
        touched, place = np.unique(merged[known:], return_inverse=True)
        old, into = self._old(keys, owners, starts, merged[:known], touched)
        panes = self._joined(old, into, self._pane_keys(keys, owner[touched], begin[touched]), end[touched])
        gone = (old.starts != panes.starts[into]) & (old.sent == 1) & self._merged  # a delta is never taken back
        yield from self._take_back(old, np.flatnonzero(gone))
        taken_back = np.bincount(into[gone], minlength=len(panes)) > 0
        count = np.bincount(place.reshape(-1), minlength=len(touched))
        self._fold_in(panes, rows, place.reshape(-1), count)
        ready = self._ready(panes, self.now)
        yield from self._fire(panes, ready, self.now)
        yield from self._send(panes, taken_back & ~ready)
        self._await(panes, (panes.timer == 0) | self._outgrown(panes))
        self._save(panes)
        lengths = np.bincount(owner, minlength=keys.num_rows)
        self._remember(keys, lengths, begin, end)

    def _outgrown(self, panes: Panes) -> Bools:
        """Sessions that had ended, wait to be closed, and now end again."""
        return ~panes.passed & (panes.timer >= panes.end) & (not self._once)

    def _old(self, keys: pa.RecordBatch, owners: Ints, starts: Ints, groups: Ints, touched: Ints) -> tuple[Panes, Ints]:
        """The panes of the sessions that became part of a touched one, and which of these."""
        place = np.searchsorted(touched, groups)
        part = np.isin(groups, touched)
        old = self._load(self._pane_keys(keys, owners[part], starts[part]))
        assert old.found.all(), "an open session has panes"
        return old, place[part]

    def _joined(self, old: Panes, into: Ints, keys: pa.RecordBatch, ends: Ints) -> Panes:
        """The panes of sessions, put together from those of the sessions they are made of. The old ones are no more."""
        begin = keys.column(WINDOW_COLUMN).to_numpy()
        stays = old.starts == begin[into]
        numbers = {name: np.zeros(len(begin), np.int64) for name in NUMBERS}
        numbers["end"], numbers["alarm"] = ends.copy(), np.full(len(begin), BIG)
        passed = ends - 1 <= self._floors(keys)
        for name in ("new", "live"):
            np.add.at(numbers[name], into, old.numbers[name])
        np.maximum.at(numbers["index"], into, old.index)
        np.maximum.at(numbers["timely"], into[passed[into]], old.timely[passed[into]])
        for name in ("sent", "sent_end", "sent_pane", "timer", "alarm"):
            numbers[name][into[stays]] = old.numbers[name][stays]
        trigger = self._machine.merge(old.trigger, into, len(begin), passed) if len(into) else self._machine.fresh(len(begin))
        new = Panes(keys, begin, np.zeros(len(begin), np.bool_), numbers, trigger)
        new.passed = passed
        if len(old) == len(new) and (stays & old.filled).all() and into.tolist() == list(range(len(new))):
            # Nothing but their ends changed, as of most: what they hold stays where it is.
            new.values, new.filled, new.before = old.values, old.filled.copy(), old.before
            return new
        new.values, new.filled = self._merge_values(old, into, new, stays)
        new.before = nulls(old.before.schema, len(begin))
        new.before = replaced(new.before, into[stays], old.before.filter(pa.array(stays)))
        if not stays.all():
            self._panes.delete_many(keep(old.keys, ~stays))
        return new

    def _merge_values(self, old: Panes, into: Ints, new: Panes, stays: Bools) -> tuple[pa.RecordBatch, Bools]:
        fields = pa.schema(self._accumulators.fields)
        values, filled = nulls(fields, len(new)), np.zeros(len(new), np.bool_)
        filled[into[old.filled]] = True
        # Of most sessions nothing changed but their end: what they hold stays where it is.
        alone = stays & (np.bincount(into[old.filled], minlength=len(new))[into] == 1) & old.filled
        values = replaced(values, into[alone], old.values.filter(pa.array(alone)))
        moving = np.flatnonzero(old.filled & ~alone)
        if not len(moving):
            return values, filled
        keys, rows = gathered(old.keys, moving), gathered(old.values, moving)
        parts = self._keeping.fill(keys, rows)
        self._keeping.forget(keys, rows)
        old.values = replaced(old.values, moving, parts)  # what is taken back is still to be read
        merged = self._accumulators.merge(parts.append_column("pair", pa.array(into[moving])), ["pair"])
        at = merged.column("pair").to_numpy()
        settled = self._keeping.settle(gathered(new.keys, at), merged.select(fields.names))
        return replaced(values, at, settled), filled

    def _take_back(self, old: Panes, at: Ints) -> Iterator[Out]:
        """Results of sessions that are no more."""
        if not len(at):
            return
        if self._rules.emit == "retract":
            yield MAIN, self._withdrawn(old, at)
        elif self._rules.emit == "update":
            results = self._keeping.finish(gathered(old.keys, at), gathered(old.values, at))
            yield MAIN, self._sent_rows(old, at, old.sent_end[at], results, old.sent_pane[at], -1)

    # -- time

    def _passed(self, due: pa.RecordBatch, time: int) -> Iterator[Out]:
        due = once_each(due)
        panes = self._load(due.select(self._keys))
        at = due.column(DUE).to_numpy()
        valid = panes.found & (panes.timer == at)  # others are of sessions that became part of one with another start
        panes, at = panes.pick(valid), at[valid]
        grown = panes.end - 1 > time
        later = panes.pick(grown)
        self._set_timers(later, np.arange(len(later)), later.end - 1)
        self._save(later)
        yield from self._finish(panes.pick(~grown), at[~grown], time)

    def _forget(self, panes: Panes) -> None:
        super()._forget(panes)
        if not len(panes):
            return
        groups = group_rows(panes.keys, self._names)
        keys = gathered(panes.keys.select(self._names), groups.first)
        owners, starts, ends = self._open(keys)
        codes = np.unique(np.concatenate([starts, panes.starts]), return_inverse=True)[1].reshape(-1)
        wide = len(codes) + 1
        gone = np.isin(owners * wide + codes[: len(starts)], groups.of * wide + codes[len(starts) :])
        left = ~gone
        self._remember(keys, np.bincount(owners[left], minlength=keys.num_rows), starts[left], ends[left])

    # -- the sessions of a key

    def _open(self, keys: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
        """The open sessions of keys: whose, start and end; in the order of keys."""
        found, values = self._sessions.get_many(keys)
        one = np.flatnonzero(found)
        starts, ends = (nulls_filled(values.column(name))[one] for name in ("__start", "__end"))
        more = values.column("__more_starts")
        if more.null_count == len(more):
            return one, starts, ends
        owners = np.concatenate([one, np.repeat(np.arange(len(more)), more.value_lengths().fill_null(0).to_numpy())])
        order = np.argsort(owners, kind="stable")
        starts = np.concatenate([starts, more.flatten().to_numpy()])
        ends = np.concatenate([ends, values.column("__more_ends").flatten().to_numpy()])
        return owners[order], starts[order], ends[order]

    def _remember(self, keys: pa.RecordBatch, lengths: Ints, starts: Ints, ends: Ints) -> None:
        """The open sessions of keys from now on; those of a key stand together, in the order of keys."""
        kinds = self._sessions.spec.values.types
        if len(starts) == len(lengths) and (lengths == 1).all():  # one each, as almost always
            columns = [pa.array(starts), pa.array(ends), pa.nulls(len(starts), kinds[2]), pa.nulls(len(starts), kinds[3])]
            self._sessions.put_many(keys, pa.RecordBatch.from_arrays(columns, names=self._sessions.spec.values.names))
            return
        some = np.flatnonzero(lengths)
        if len(some) < len(lengths):
            self._sessions.delete_many(keys.filter(pa.array(lengths == 0)))
        first = (np.cumsum(lengths) - lengths)[some]
        rest = np.ones(len(starts), np.bool_)
        rest[first] = False
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths[some] - 1)]), pa.int32())
        single = pa.array(lengths[some] == 1)
        lists = [pa.ListArray.from_arrays(offsets, pa.array(values[rest]), mask=single) for values in (starts, ends)]
        columns = [pa.array(starts[first]), pa.array(ends[first]), *lists]
        names = self._sessions.spec.values.names
        self._sessions.put_many(gathered(keys, some), pa.RecordBatch.from_arrays(columns, names=names))

    def _pane_keys(self, keys: pa.RecordBatch, owners: Ints, starts: Ints) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*gathered(keys, owners).columns, pa.array(starts)], names=self._keys)


def nulls(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """So many rows of nothing."""
    return pa.RecordBatch.from_arrays([pa.nulls(count, f.type) for f in schema], names=schema.names)


def fires_by_rows(trigger: Trigger) -> bool:
    """Whether rows alone can make it fire before the watermark."""
    if isinstance(trigger, AfterWatermark):
        return trigger.early is not None and fires_by_rows(trigger.early)
    return isinstance(trigger, AfterCount) or any(map(fires_by_rows, trigger.parts))
