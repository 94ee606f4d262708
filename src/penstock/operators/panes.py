"""Windows whose results are sent more than once, or whose rows can be withdrawn: the general aggregate.

A **pane** is what one firing of a window sends. Whatever the shape, the trigger and the way of sending, per key and window there
is one row of state:

    end                 where the window ends
    new, live           rows since the last firing; rows that are in it, those withdrawn taken off
    index, timely       how many panes there were; whether one was sent since the watermark passed the end
    sent, sent_…        whether a row of it stands in the result now, with which end, and what it said of its pane
    timer               the event time at which it is looked at next
    alarm               the time of day at which its trigger wants to be asked again (BIG: not)
    __trigger.*         its trigger's own numbers (`triggering`)
    __sent.*            what was sent last, to be withdrawn byte for byte; only with emit="retract"
    accumulators

1. A window **closes** when the watermark has passed its last moment and the lateness. What was not sent by then is sent in a last
   pane, so every row is in some pane or in `late`, whatever the trigger.
2. Rows are given to a window up to the row that makes its trigger fire, then it fires, then come the next: so panes do not depend
   on how rows are cut into batches. Where a newer row replaces the earlier one ("update", "retract") firings that follow each
   other without a change of time are sent as one.
3. A pane is sent only if rows came since the last, but for the one on time of an update stream, which says that it is on time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.exact import exactly
from penstock.operators.aggregate import ROWS_COLUMN, WINDOW_COLUMN, KeyedAggregate
from penstock.operators.groups import Groups, group_rows
from penstock.operators.operator import CHANGE_COLUMN, LATE, MAIN, PANE_COLUMN, TIME_COLUMN, Origin, Out, as_times, keep, times_of
from penstock.operators.triggering import BIG, compile_trigger
from penstock.state.columns import SPAN_FEW, gathered, nulls_filled
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE, TimerTable
from penstock.triggers import Trigger
from penstock.windows import Running, Shape, closing

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

END_COLUMN, PAIR = "__end", "__pair"
NUMBERS = ("end", "new", "live", "index", "timely", "sent", "sent_end", "sent_pane", "timer", "alarm")
EARLY, ON_TIME, TOO_LATE = 0, 1, 2


@dataclass(frozen=True)
class Rules:
    """What the user said: where, until when, when and how. `hidden`: the hidden columns of the result."""

    shape: Shape
    lateness: int
    trigger: Trigger
    emit: str
    retracts: bool  # whether rows of the input can be withdrawn
    hidden: tuple[str, ...]


class Panes:
    """The panes of some pairs of key and window while they are worked on. Arrays have an entry per pair."""

    def __init__(self, keys: pa.RecordBatch, starts: Ints, found: Bools, numbers: dict[str, Ints], trigger: Ints) -> None:
        self.keys, self.starts, self.found, self.numbers, self.trigger = keys, starts, found, numbers, trigger
        self.values = pa.RecordBatch.from_arrays([], names=[])  # accumulators
        self.filled = found.copy()  # whether there are any
        self.before = pa.RecordBatch.from_arrays([], names=[])  # what was sent last
        self.passed = np.zeros(len(starts), np.bool_)  # by the watermark

    def __getattr__(self, name: str) -> Ints:
        if name in NUMBERS:
            return self.numbers[name]
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self.starts)

    def pick(self, mask: Bools) -> Panes:
        """Those where the mask is set."""
        rows = np.flatnonzero(mask)
        taken = pa.array(rows)
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        picked = Panes(self.keys.take(taken), self.starts[rows], self.found[rows], numbers, self.trigger[:, rows])
        picked.values, picked.filled, picked.passed = take(self.values, taken), self.filled[rows], self.passed[rows]
        picked.before = take(self.before, taken)
        return picked


class PaneAggregate(KeyedAggregate):
    """Aggregates per key and window, sent whenever a trigger says so.

    Input:   rows with event time (or none, if the window does not go by it); rows that say they are withdrawn.
    State:   `panes`, as above.
    Timers:  `timers`: at the last moment of each window, then when it closes. `alarms`: time of day, for triggers.
    Output:  main: key, window_start, window_end, results. late: the rows all of whose windows had closed.
    """

    def __init__(self, name: str, output: pa.Schema, rules: Rules, **shared: Any) -> None:
        super().__init__(name, **shared)
        self._rules, self._shape, self._lateness = rules, rules.shape, rules.lateness
        self._panes: KeyedTable = self.states["panes"]
        self._timers: TimerTable = self.states["timers"]
        self._alarms: TimerTable | None = self.states.get("alarms")
        self._keys = self._panes.spec.keys.names
        self._columns = self._panes.spec.values.names
        self._kept = [f.name for f in self._accumulators.fields]
        self._sent_before = [name for name in self._columns if name.startswith("__sent.")]
        self._machine = compile_trigger(rules.trigger)
        self._output = output
        self._forever = isinstance(rules.shape, Running)
        self._once = rules.emit == "append"
        self._merged = rules.emit in ("update", "retract", "complete")  # firings in a row may be sent as one
        self._by_clock = rules.shape.clock == "processing"
        self.clocked = self._by_clock or self._alarms is not None
        # The time of day never goes back, even if this machine's clock is behind that of another which took the snapshot.
        clocks = [*([self._alarms] if self._alarms is not None else []), *([self._timers] if self._by_clock else [])]
        self.now = max([self.now, *(clock.floor_max for clock in clocks)])
        assert self._machine.width == len([n for n in self._panes.spec.values.names if n.startswith("__trigger.")])

    # -- rows

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Give each row to its windows; set those aside whose windows have all closed."""
        rows, starts, ends = self._shape.assign(self._times(batch))
        numbers = np.arange(batch.num_rows) if rows is None else rows
        windowed = with_windows(batch if rows is None else gathered(batch, rows), starts, ends)
        late = self._closed(windowed, ends)
        good = np.ones(batch.num_rows, np.bool_)
        if late.any():
            good[:] = False
            good[numbers[~late]] = True
            yield from self._set_aside(keep(batch, ~good))
        yield from self._refuse(batch, good, origin)
        yield from self._work(keep(windowed, ~late & good[numbers]))

    def _refuse(self, batch: pa.RecordBatch, good: Bools, origin: Origin | None) -> Iterator[Out]:
        """Rows that fail do not count, in none of their windows: they are no longer good."""
        bad = self._accumulators.failing(batch, self._names)
        if bad is not None and (bad & good).any():
            yield from self._letters(batch, np.flatnonzero(bad & good), origin)
            good &= ~bad

    def _times(self, batch: pa.RecordBatch) -> Ints:
        if not self._shape.timed:
            return np.zeros(batch.num_rows, np.int64)
        if self._by_clock:
            return np.full(batch.num_rows, self.now, np.int64)
        return times_of(batch)

    def _set_aside(self, rows: pa.RecordBatch) -> Iterator[Out]:
        self.counters["late"] += rows.num_rows
        yield LATE, rows

    def _closed(self, windowed: pa.RecordBatch, ends: Ints) -> Bools:
        """Whether the window of each row takes no more rows."""
        closes = closing(ends, self._lateness)
        if self._forever or not len(closes) or closes.min() > self._timers.floor_max:
            return np.zeros(len(closes), np.bool_)
        closed: Bools = closes <= self._floors(canonical_keys(windowed, self._names))
        return closed

    def _floors(self, keys: pa.RecordBatch) -> Ints:
        """How far time is for each key."""
        if self._timers.floor_min == self._timers.floor_max:  # as almost always: only a rescale makes them differ
            return np.full(keys.num_rows, self._timers.floor_max)
        return self._timers.floor_of(groups_of(hash_keys(keys.select(self._names)), self._max_parallelism))

    def _work(self, windowed: pa.RecordBatch) -> Iterator[Out]:
        """Fold rows into their windows and fire where the trigger says so."""
        if not windowed.num_rows:
            return
        groups = group_rows(windowed, self._keys)
        first = gathered(windowed, groups.first)
        panes = self._load(canonical_keys(first, self._keys), first.column(END_COLUMN).to_numpy())
        fresh = ~panes.found
        taken = np.zeros(len(panes), np.int64)
        size, fired = self._sizes(windowed, groups), False
        while (left := size - taken).any():
            count, fires = self._next(panes, left)
            chosen = (groups.rank >= taken[groups.of]) & (groups.rank < (taken + count)[groups.of])
            self._fold_in(panes, keep(windowed, chosen), groups.of[chosen], count)
            taken += count
            ready = (count > 0) & self._ready(panes, self.now)
            fired |= bool(ready.any())
            yield from self._fire(panes, ready, self.now, fires)
        self._await(panes, fresh)
        self._keep(panes)
        yield from self._everything(fired)

    def _next(self, panes: Panes, left: Ints) -> tuple[Ints, Ints]:
        """How many of the rows that are left each pane gets now, up to the one that makes it fire; and how often that is."""
        once = np.ones(len(panes), np.int64)
        if self._once:
            return left, once
        needs = np.maximum(self._machine.needs(panes.trigger, self.now, panes.passed), 1)
        count = np.minimum(left, needs)
        if not self._merged:
            return count, once
        period = np.maximum(self._machine.period(panes.trigger, self.now, panes.passed), 0)
        more = np.where((left > needs) & (period > 0), (left - count) // np.maximum(period, 1), 0)
        return count + more * period, once + more

    def _fold_in(self, panes: Panes, rows: pa.RecordBatch, pairs: Ints, count: Ints) -> None:
        """Bring panes up to date with rows; `pairs` says whose each is, `count` how many each gets."""
        if rows.num_rows:
            partial = self._folded(rows.append_column(PAIR, pa.array(pairs)))
            at = partial.column(PAIR).to_numpy()
            there = panes.filled[at]
            # Null where there is nothing yet.
            old = gathered(panes.values, at) if there.all() else panes.values.take(pa.array(at, mask=~there))
            merged, wrong = self._keeping.combine(gathered(panes.keys, at), old, there, partial.select(self._kept))
            panes.live[at] += partial.column(ROWS_COLUMN).to_numpy()
            if self._rules.retracts:
                merged = self._checked(panes, at, merged, wrong)
            panes.values = replaced(panes.values, at, merged)
            panes.filled[at] = True
        panes.new[:] += count
        self._machine.add(panes.trigger, count, self.now, panes.passed)

    def _sizes(self, windowed: pa.RecordBatch, groups: Groups) -> Ints:
        """How many rows each group has."""
        return groups.count

    def _folded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """One row of accumulators per pair."""
        return self._accumulators.partial(rows, [PAIR])[0]

    def _checked(self, panes: Panes, at: Ints, merged: pa.RecordBatch, wrong: Bools) -> pa.RecordBatch:
        """Rows that were withdrawn but never came are counted, and leave no trace. `wrong`: what is known of it already."""
        wrong = wrong | (panes.live[at] < 0) | self._accumulators.check(merged)
        if not wrong.any():
            return merged
        self.counters["unmatched"] += int(wrong.sum())
        panes.live[at] = np.maximum(panes.live[at], 0)
        return self._accumulators.clamp(merged)

    # -- time

    def advance(self, time: int) -> Iterator[Out]:
        """The watermark moved."""
        if not self._by_clock:
            yield from self._move(time)

    def on_time(self, now: int) -> Iterator[Out]:
        """The clock moved: ask the triggers that wanted to be asked, then close windows that go by the clock."""
        if self._alarms is not None:
            fired = False
            for due in map(once_each, self._alarms.due(now)):
                panes = self._load(due.select(self._keys))
                # A pane that fired meanwhile has another alarm, or none.
                panes = panes.pick(panes.found & (panes.alarm == due.column(DUE).to_numpy()))
                panes.alarm[:] = BIG
                ready = self._ready(panes, now)
                fired |= bool((ready & (panes.new > 0)).any())
                yield from self._fire(panes, ready, now)
                self._await(panes, np.zeros(len(panes), np.bool_), now)
                self._keep(panes)
            self._alarms.advance(now)
            yield from self._everything(fired)
        if self._by_clock:
            yield from self._move(now - 1)

    @property
    def wake_at(self) -> int | None:
        """The next alarm, or the end of the next window."""
        alarm = self._alarms.next_due if self._alarms is not None else None
        close = self._timers.next_due if self._by_clock else None
        return min((at for at in (alarm, None if close is None else close + 1) if at is not None), default=None)

    def _move(self, time: int) -> Iterator[Out]:
        """Fire windows whose end has passed; close those that take no more rows."""
        for due in self._timers.due(time):
            yield from self._passed(due, time)
        self._timers.advance(time)

    def _passed(self, due: pa.RecordBatch, time: int) -> Iterator[Out]:
        panes = self._load(due.select(self._keys))
        assert panes.found.all(), "an open window has a timer and a row of state"
        yield from self._finish(panes, due.column(DUE).to_numpy(), time)

    def _finish(self, panes: Panes, due: Ints, time: int) -> Iterator[Out]:
        """What happens to panes that time has passed the end of, or the close."""
        panes.passed[:] = True
        closes = closing(panes.end, self._lateness) <= time
        if not self._once:
            on_time = due < closing(panes.end, self._lateness) if self._lateness else np.ones(len(panes), np.bool_)
            yield from self._fire(panes, self._ready(panes, self.now), self.now, last=closes, on_time=on_time)
        rest = closes & (panes.new > 0)
        yield from self._send(panes, rest, last=closes)
        still = panes.pick(~closes)
        self._set_timers(still, np.arange(len(still)), closing(still.end, self._lateness))
        self._save(still)
        self._forget(panes.pick(closes))

    def end(self) -> Iterator[Out]:
        """No more rows: a window that never closes sends what it has not sent."""
        if not self._forever:
            return
        fired = False
        for batch in list(self._panes.scan()):
            panes = self._load(batch.select(self._keys))
            fired |= bool((panes.new > 0).any())
            yield from self._send(panes, panes.new > 0)
            self._save(panes)
        yield from self._everything(fired)

    # -- firing

    def _ready(self, panes: Panes, now: int) -> Bools:
        if self._once:
            return np.zeros(len(panes), np.bool_)
        ready: Bools = self._machine.needs(panes.trigger, now, panes.passed) == 0
        return ready

    def _fire(
        self,
        panes: Panes,
        ready: Bools,
        now: int,
        fires: Ints | None = None,
        *,
        last: Bools | None = None,
        on_time: Bools | None = None,
    ) -> Iterator[Out]:
        """Send what is new where the trigger fires."""
        if not ready.any():
            return
        wanted = panes.new > 0
        if on_time is not None and self._rules.emit == "update":
            wanted |= on_time & (panes.index > 0)
        yield from self._send(panes, ready & wanted, fires, last=last)
        self._machine.fired(panes.trigger, now, panes.passed, ready)

    def _send(self, panes: Panes, mask: Bools, fires: Ints | None = None, *, last: Bools | None = None) -> Iterator[Out]:
        """Send the results of some panes, and note that this was done."""
        if not mask.any():
            return
        at = np.flatnonzero(mask)
        panes.index[at] += 1 if fires is None else fires[at]
        # What late rows or the clock fire is late, even if it is the first since the watermark passed. `last`: time fires.
        on_time = (panes.timely[at] == 0) & (last is not None)
        timing = np.where(~panes.passed[at], EARLY, np.where(on_time, ON_TIME, TOO_LATE))
        panes.timely[at] |= panes.passed[at]
        final = np.zeros(len(at), np.bool_) if last is None else last[at]
        index = panes.index[at] - 1
        info = (index << 4) | (timing << 2) | ((index == 0).astype(np.int64) << 1) | final
        gone = panes.live[at] == 0 if self._rules.retracts else np.zeros(len(at), np.bool_)
        results = self._keeping.finish(gathered(panes.keys, at), gathered(panes.values, at))
        out = []
        sent = panes.sent[at] == 1
        if self._rules.emit == "retract" and sent.any():
            out.append(self._withdrawn(panes, at[sent]))
        there = np.flatnonzero(~gone)
        out.append(self._sent_rows(panes, at[there], panes.end[at[there]], take_all(results, there), info[there], 1))
        if self._rules.emit in ("update", "complete") and (gone & sent).any():
            lost = np.flatnonzero(gone & sent)
            out.append(self._sent_rows(panes, at[lost], panes.sent_end[at[lost]], take_all(results, lost), info[lost], -1))
        yield MAIN, pa.concat_batches(out)
        panes.sent[at], panes.sent_end[at], panes.sent_pane[at], panes.new[at] = ~gone, panes.end[at], info, 0
        if self._rules.emit == "retract":
            panes.before = replaced(panes.before, at, pa.RecordBatch.from_arrays(results, names=panes.before.schema.names))
        if self._rules.emit == "delta":
            self._empty(panes, at)

    def _empty(self, panes: Panes, at: Ints) -> None:
        """What comes next is added to nothing."""
        filled = at[panes.filled[at]]
        self._keeping.forget(gathered(panes.keys, filled), gathered(panes.values, filled))
        panes.filled[at] = False

    def _withdrawn(self, panes: Panes, at: Ints) -> pa.RecordBatch:
        """What was sent last, to be taken back."""
        return self._sent_rows(panes, at, panes.sent_end[at], take_all(panes.before.columns, at), panes.sent_pane[at], -1)

    def _sent_rows(
        self, panes: Panes, at: Ints, ends: Ints, results: Sequence[pa.Array], info: Ints, change: int
    ) -> pa.RecordBatch:
        keys = gathered(panes.keys, at)
        shown = [keys.column(f.name).cast(f.type) for f in self._by if not f.name.startswith("__")]
        bounds = [] if self._forever else [as_times(panes.starts[at]), as_times(ends)]
        hidden = {TIME_COLUMN: as_times(ends - 1), PANE_COLUMN: pa.array(info)}
        hidden[CHANGE_COLUMN] = pa.array(np.full(len(at), change, np.int8))
        arrays = [*shown, *bounds, *results, *(hidden[name] for name in self._rules.hidden)]
        fields = [*self._output, *(pa.field(n, hidden[n].type, nullable=False) for n in self._rules.hidden)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _everything(self, fired: bool) -> Iterator[Out]:
        """With emit="complete", the whole result after something fired. Keys with rows that are not sent yet are left as they were."""
        if not fired or self._rules.emit != "complete":
            return
        for batch in self._panes.scan():
            panes = self._load(batch.select(self._keys))
            at = np.flatnonzero((panes.sent == 1) & (panes.new == 0))
            results = self._keeping.finish(gathered(panes.keys, at), gathered(panes.values, at))
            yield MAIN, self._sent_rows(panes, at, panes.end[at], results, np.zeros(len(at), np.int64), 1)

    # -- state

    def _load(self, keys: pa.RecordBatch, ends: Ints | None = None) -> Panes:
        """Panes as the state has them; fresh ones, with these ends, where it has none."""
        found, values = self._panes.get_many(keys)
        columns = dict(zip(self._columns, values.columns, strict=True))
        numbers = {name: filled_numbers(columns[f"__pane.{name}"], BIG if name == "alarm" else 0) for name in NUMBERS}
        if ends is not None:
            numbers["end"] = np.where(found, numbers["end"], ends)
        elif END_COLUMN in self._keys:
            numbers["end"] = keys.column(END_COLUMN).to_numpy().copy()
        trigger = self._machine.fresh(keys.num_rows)
        for row in range(self._machine.width):
            trigger[row] = np.where(found, filled_numbers(columns[f"__trigger.{row}"], 0), trigger[row])
        panes = Panes(keys, keys.column(WINDOW_COLUMN).to_numpy(), found, numbers, trigger)
        panes.values, panes.before = values.select(self._kept), values.select(self._sent_before)
        panes.filled = found & ((panes.new > 0) if self._rules.emit == "delta" else True)
        if not self._forever:
            panes.passed = panes.end - 1 <= self._floors(keys)
        return panes

    def _await(self, panes: Panes, fresh: Bools, now: int | None = None) -> None:
        """Set the timers that panes want: fresh ones for their end, all of them for their trigger."""
        if fresh.any() and not self._forever:
            at = np.flatnonzero(fresh)
            closes = closing(panes.end[at], self._lateness)
            due = closes if self._once else np.where(panes.passed[at], closes, panes.end[at] - 1)
            self._set_timers(panes, at, due)
        if self._alarms is not None:
            due = self._machine.due(panes.trigger, panes.passed)
            at = np.flatnonzero((due < panes.alarm) & (due > (self.now if now is None else now)))
            panes.alarm[at] = due[at]
            self._alarms.add(due[at], gathered(panes.keys, at))

    def _set_timers(self, panes: Panes, at: Ints, due: Ints) -> None:
        """Look at these panes when event time is there."""
        panes.timer[at] = due
        self._timers.add(due, gathered(panes.keys, at))

    def _keep(self, panes: Panes) -> None:
        """Save panes. Of a window that never closes, what holds no row and has said so is forgotten; others wait for their close."""
        gone = (panes.live == 0) & (panes.new == 0) & (self._rules.retracts and self._forever)
        self._save(panes.pick(~gone) if gone.any() else panes)
        self._forget(panes.pick(gone))

    def _save(self, panes: Panes) -> None:
        if not len(panes):
            return
        columns = {f"__pane.{name}": pa.array(values) for name, values in panes.numbers.items()}
        columns |= {f"__trigger.{row}": pa.array(panes.trigger[row]) for row in range(self._machine.width)}
        columns |= dict(zip(panes.before.schema.names, panes.before.columns))
        columns |= dict(zip(panes.values.schema.names, panes.values.columns))
        schema = self._panes.spec.values
        self._panes.put_many(
            panes.keys, pa.RecordBatch.from_arrays([exactly(columns[f.name], f.type) for f in schema], names=schema.names)
        )

    def _forget(self, panes: Panes) -> None:
        if len(panes):
            self._empty(panes, np.arange(len(panes)))
            self._panes.delete_many(panes.keys)


# --- columns
# ----------------------------------------------------------------------------------------------------------------------------------


def once_each(due: pa.RecordBatch) -> pa.RecordBatch:
    """Timers that are due, each once: one that was set, moved forward and set again is there twice."""
    groups = group_rows(due, due.schema.names)
    return due if len(groups.first) == due.num_rows else gathered(due, groups.first)


def with_windows(batch: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
    """The batch with `__window` and `__end` of each row."""
    for name, values in ((WINDOW_COLUMN, starts), (END_COLUMN, ends)):
        batch = batch.append_column(pa.field(name, pa.int64(), nullable=False), pa.array(values))
    return batch


def filled_numbers(column: pa.Array, missing: int) -> Ints:
    """A column of numbers that can be written to, nulls filled."""
    return np.array(nulls_filled(column, missing), np.int64)


def take(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """Some rows of a batch that may have no columns."""
    return batch.take(rows) if batch.num_columns else batch


def take_all(arrays: Sequence[pa.Array], rows: Ints) -> list[pa.Array]:
    """Some rows of several columns."""
    taken = pa.array(rows)
    return [array.take(taken) for array in arrays]


def replaced(batch: pa.RecordBatch, at: Ints, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the rows at these places replaced."""
    if not batch.num_columns or not len(at):
        return batch
    if len(at) == batch.num_rows <= SPAN_FEW and at.tolist() == list(range(len(at))):  # all of them
        arrays = [exactly(new, kind) for new, kind in zip(rows.columns, batch.schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    order = np.arange(batch.num_rows)
    order[at] = batch.num_rows + np.arange(len(at))
    taken = pa.array(order)
    arrays = [
        pa.concat_arrays([old, exactly(new, old.type)]).take(taken) for old, new in zip(batch.columns, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
