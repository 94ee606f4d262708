"""Aggregates per key: partial ones before the exchange, running ones, and one row per window.

All three work on accumulator columns (`expr.Accumulators`): rows are folded into one row per key, such rows merge with what the
state holds, and a result is read off them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr import Accumulators
from penstock.operators.keeping import Keeping, KeepingTable
from penstock.operators.operator import (
    LATE,
    MAIN,
    PASS,
    TIME_COLUMN,
    TIME_TYPE,
    Errors,
    Operator,
    Origin,
    Out,
    as_times,
    keep,
    times_of,
)
from penstock.operators.write import conform
from penstock.state.columns import gathered, span
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.runs import NEVER
from penstock.state.table import Changed, KeyedTable
from penstock.state.timers import TimerTable
from penstock.tracebacks import Told
from penstock.windows import Tumbling, closing

WINDOW_COLUMN, ROWS_COLUMN = "__window", "__rows"
WINDOW_FIELD = pa.field(WINDOW_COLUMN, pa.int64(), nullable=False)
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
JOINED_ROWS = 1_024
"""Whoever joins what was sent (see `runners.queues`) makes batches of this size at most."""
HELD_PER_TASK, HELD_MAX, HELD_ROWS_MIN = 4, 16, 8_192
"""Partial rows of so many reads, for each task that they are dealt to, are sent as one; if each of them had so many rows, which is under
load only. What a message costs hardly depends on its rows, and more tasks get more messages of fewer rows."""
TRIED_EVERY, TRIED_EVERY_LARGE = 16, 64
"""Where keys hardly repeat within a batch, one in so many is folded, to see whether they still do not; of large ones fewer. What few rows
say is no reason to let many large batches go unfolded."""
WORTH, WORTH_IN_PLACE = 0.75, 0.6
"""Folding is worth it if it leaves no more of the rows than this; less where who merges them needs no folding (`change_many`)."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What rows became when they met the state: one row per key that they touched."""

    rows: pa.RecordBatch  # the keys of all rows
    merged: Changed | pa.RecordBatch
    found: Bools  # which of the keys the state had

    @property
    def keys(self) -> pa.RecordBatch:
        """Each key once."""
        last = self.merged.rows if isinstance(self.merged, Changed) else None
        return self.rows if last is None else gathered(self.rows, last)

    @property
    def values(self) -> list[pa.Array]:
        """The columns of accumulators."""
        return self.merged.values if isinstance(self.merged, Changed) else self.merged.columns


class PartialAggregate(Operator):
    """Fold the rows of a batch into one row per key (and window), so that fewer cross the exchange. Where that leaves most of them, they
    are not folded: it would cost more than it saves.

    Where there are windows and reads are large, which is under load, the rows of several reads become one such batch. What a read makes
    late is late all the same: a row of a window that has ended is not put together with rows from before it did.

    Input:   rows. State: none: what it holds back leaves before the next barrier.
    Output:  keys, `__window` if there are windows, accumulators, and `__rows`, the number of rows in each. A key may have several.
    """

    def __init__(
        self,
        name: str,
        by: Sequence[str],
        shape: Tumbling | None,
        accumulators: Accumulators,
        errors: Errors,
        *,
        tasks: int = 1,
    ) -> None:
        super().__init__(name)
        self._held_max = min(HELD_PER_TASK * tasks, HELD_MAX)
        self._keys = [*by, WINDOW_COLUMN] if shape else list(by)
        self._shape, self._accumulators, self._errors = shape, accumulators, errors
        self._held: list[pa.RecordBatch] = []
        self._time = NEVER
        self._apart = 0  # how many batches from here are not folded
        self._worth = WORTH_IN_PLACE if accumulators.in_place is not None else WORTH

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Fold."""
        if self._shape:
            batch = with_window(batch, self._shape)
        rows, bad = self._folded(batch)
        if bad is not None and bad.any():
            rows_bad = np.flatnonzero(bad)
            yield from self._errors.letters(batch, rows_bad, failed(self._accumulators, rows_bad), origin)
        holds = self._shape is not None and origin is not None and batch.num_rows >= HELD_ROWS_MIN and not self._apart
        if self._held and not (holds and len(self._held) < self._held_max and self._open(rows)):
            yield from self.release()
        if holds:
            self._held.append(rows)
        else:
            yield MAIN, rows

    def _folded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bools | None]:
        """Partial rows."""
        if self._apart:
            self._apart -= 1
            return self._accumulators.partial(batch, self._keys, grouped=False)
        rows, bad = self._accumulators.partial(batch, self._keys)
        if rows.num_rows > self._worth * batch.num_rows:
            self._apart = (TRIED_EVERY if batch.num_rows < HELD_ROWS_MIN else TRIED_EVERY_LARGE) - 1
        return rows, bad

    def _open(self, rows: pa.RecordBatch) -> bool:
        """Whether none of these windows has ended."""
        assert self._shape is not None, "there are windows"
        starts = rows.column(WINDOW_COLUMN).to_numpy()
        return not len(starts) or bool(self._shape.end_of(starts.min()) > self._time)

    @property
    def holding(self) -> bool:
        """Whether there are partial rows that were not sent."""
        return bool(self._held)

    def release(self) -> Iterator[Out]:
        """Send them, one row per key (and window)."""
        held, self._held = self._held, []
        if held:
            yield MAIN, held[0] if len(held) == 1 else self._accumulators.merge(held, self._keys)
            yield PASS, held[0].slice(0, 0)

    def advance(self, time: int) -> Iterator[Out]:
        """Windows that end at this time take no more rows that come from now on."""
        self._time = time
        yield from ()


def failed(accumulators: Accumulators, rows: Sequence[int] | Ints) -> list[str]:
    """Why these rows of the batch that was accumulated just now were left out, as dead letters say it."""
    why = accumulators.reasons([int(row) for row in rows])
    found = [text if isinstance(text, Told) else Told(text) for text in why]
    return [Told(f"the input of an aggregate failed: {text}", text.frames, text.fix) for text in found]


class KeyedAggregate(Operator):
    """What the running and the windowed aggregate share: folding rows or partial rows into the state."""

    def __init__(
        self,
        name: str,
        by: Sequence[pa.Field],
        accumulators: Accumulators,
        errors: Errors,
        states: Mapping[str, Any],
        *,
        partial: bool,
        max_parallelism: int,
    ) -> None:
        super().__init__(name)
        self._by, self._accumulators, self._errors = list(by), accumulators, errors
        self._partial, self._max_parallelism = partial, max_parallelism
        self._names = [f.name for f in by]
        self.states = states
        self._keeping = Keeping(accumulators, states)

    @functools.cached_property
    def _rows(self) -> KeyedTable:
        """The state, without lists that are long."""
        table: KeyedTable = self.states["accumulators"]
        return table

    @functools.cached_property
    def _table(self) -> KeyedTable | KeepingTable:
        """The state, with all lists in it."""
        return KeepingTable(self._rows, self._keeping) if self._accumulators.lists else self._rows

    @functools.cached_property
    def _how(self) -> list[np.ufunc] | None:
        """How whole numbers are changed where they stand; None if there are other values."""
        self._names_kept = [field.name for field in self._accumulators.fields]
        return self._accumulators.in_place if self._rows.spec.values.names == self._names_kept else None

    def _fold(self, rows: pa.RecordBatch, keys: Sequence[str]) -> Folded:
        """Bring the state up to date with rows of accumulators."""
        state_keys = canonical_keys(rows, keys)
        changed = self._changed(rows, state_keys)
        if changed is not None:
            return Folded(state_keys, changed, changed.found)
        # Rows of a key meet first, so that old and new rows meet pairwise.
        repeats = self._rows.repeats(state_keys) if self._partial else None
        if repeats is not None:
            rows = self._accumulators.merge_some(rows, keys, repeats)
            state_keys = canonical_keys(rows, keys)
        found, old = self._rows.get_many(state_keys)
        merged, _ = self._keeping.combine(state_keys, old, found, rows)
        self._rows.put_many(state_keys, merged)
        return Folded(state_keys, merged, found)

    def _changed(self, rows: pa.RecordBatch, state_keys: pa.RecordBatch) -> Changed | None:
        """Whole numbers are changed where they stand, which is quicker."""
        how = self._how
        return None if how is None else self._rows.change_many(state_keys, [rows.column(name) for name in self._names_kept], how)

    def _accumulated(self, batch: pa.RecordBatch, keys: Sequence[str]) -> tuple[pa.RecordBatch, list[int]]:
        """Rows as accumulators, and the numbers of the rows that failed. Partial rows are accumulators already."""
        if self._partial:
            return batch, []
        rows, bad = self._accumulators.partial(batch, keys)
        return rows, [] if bad is None else np.flatnonzero(bad).tolist()

    def _letters(self, batch: pa.RecordBatch, bad: Sequence[int] | Ints, origin: Origin | None) -> Iterator[Out]:
        """Set aside rows that failed when the batch was accumulated just now."""
        if len(bad):
            yield from self._errors.letters(batch, bad, failed(self._accumulators, bad), origin)

    def _result(self, merged: pa.RecordBatch, kept: Sequence[str] = ()) -> tuple[list[pa.Array], list[pa.Array]]:
        """Key columns in the user's types, and result columns. `kept`: the columns of the state's key, if its long lists are not in
        these rows."""
        results = self._keeping.finish(merged.select(list(kept)), merged) if kept else self._accumulators.finish(merged)
        return self._key_columns(merged), results

    def _key_columns(self, keys: pa.RecordBatch) -> list[pa.Array]:
        """The key in the user's types."""
        return [conform(keys.column(f.name), f.type) for f in self._by if not f.name.startswith("__")]


class RunningAggregate(KeyedAggregate):
    """An updated row per key whenever rows of that key came.

    Input:   rows or partial rows, in any order.
    State:   one row of accumulators per key, for ever.
    Output:  the new result of each key the batch touched; it replaces the earlier one.
    """

    def __init__(self, name: str, output: pa.Schema, **shared: Any) -> None:
        super().__init__(name, **shared)
        self._output = output

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Fold, and send the results of the keys touched."""
        rows, bad = self._accumulated(batch, self._names)
        yield from self._letters(batch, bad, origin)
        if rows.num_rows:
            folded = self._fold(rows, self._names)
            merged = pa.RecordBatch.from_arrays(folded.values, schema=self._accumulators.schema)
            columns = [*self._key_columns(folded.keys), *self._keeping.finish(folded.keys, merged)]
            yield MAIN, pa.RecordBatch.from_arrays(columns, schema=self._output)


class WindowAggregate(KeyedAggregate):
    """One row per key and window, once nothing can change it: the watermark has passed its last moment and the lateness.

    Input:   rows with event time, or partial rows with `__window`; in any order.
    State:   one row of accumulators per key and open window.
    Timers:  event time, when each key's open windows close.
    Output:  main: key, window_start, window_end, results. late: the rows whose window had closed.
    """

    def __init__(self, name: str, output: pa.Schema, shape: Tumbling, lateness: int, **shared: Any) -> None:
        super().__init__(name, **shared)
        self._output, self._shape, self._lateness = output, shape, lateness
        self._keys = [*self._names, WINDOW_COLUMN]
        self._timers: TimerTable = self.states["timers"]

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Set late rows aside, fold the others, and wait for the ends of windows not seen before."""
        windowed = batch if self._partial else with_window(batch, self._shape)
        late = self._late(windowed)
        if late is not None:
            yield from self._set_aside(batch, late)
            windowed = keep(windowed, ~late)
        rows, bad = self._accumulated(windowed, self._keys)
        yield from self._letters(windowed, bad, origin)
        if rows.num_rows:
            folded = self._fold(rows, self._keys)
            if not folded.found.all():
                self._await(keep(folded.keys, ~folded.found))

    def _await(self, fresh: pa.RecordBatch) -> None:
        """Set timers for windows not seen before."""
        self._timers.add(self._closing(fresh.column(WINDOW_COLUMN).to_numpy()), fresh)

    def _closing(self, starts: Ints) -> Ints:
        """When a window, or whatever stands in `__window`, takes no more rows."""
        return closing(self._shape.end_of(starts), self._lateness)

    def _set_aside(self, batch: pa.RecordBatch, late: Bools) -> Iterator[Out]:
        rows = keep(batch, late)
        self.counters["late"] += pc.sum(rows.column(ROWS_COLUMN)).as_py() if self._partial else rows.num_rows
        if not self._partial:
            yield LATE, rows

    def _late(self, rows: pa.RecordBatch) -> Bools | None:
        """The rows whose window has closed; None if there are none."""
        ends = self._closing(rows.column(WINDOW_COLUMN).to_numpy())
        if not len(ends) or span(ends)[0] > self._timers.floor_max:  # as almost always: no need to know whose floor is where
            return None
        late: Bools = ends <= self._floors(rows)
        return late if late.any() else None

    def _floors(self, rows: pa.RecordBatch) -> Ints:
        """How far time is for the key of each row."""
        if self._timers.floor_min == self._timers.floor_max:  # as almost always: only a rescale makes them differ
            return np.full(rows.num_rows, self._timers.floor_max)
        return self._timers.floor_of(groups_of(hash_keys(canonical_keys(rows, self._names)), self._max_parallelism))

    def advance(self, time: int) -> Iterator[Out]:
        """Fire the windows that have closed."""
        for due in self._timers.due(time):
            keys = due.select(self._keys)
            found, values = self._rows.get_many(keys)
            assert found.all(), "an open window has a timer and a row of state"
            merged = pa.RecordBatch.from_arrays([*keys.columns, *values.columns], names=[*self._keys, *values.schema.names])
            starts = merged.column(WINDOW_COLUMN).to_numpy()
            results = self._sent(merged, starts, self._shape.end_of(starts), self._keys)
            self._table.delete_many(keys)
            yield MAIN, results
        self._timers.advance(time)

    def _sent(self, merged: pa.RecordBatch, starts: Ints, ends: Ints, kept: Sequence[str] = ()) -> pa.RecordBatch:
        """The results of windows; `merged` has their keys and accumulators. `kept` as in `_result`."""
        keys, results = self._result(merged, kept)
        times = [as_times(each) for each in (starts, ends, ends - 1)]
        columns = [*keys, *times[:2], *results, times[2]]
        return pa.RecordBatch.from_arrays(columns, schema=self._output.append(pa.field(TIME_COLUMN, TIME_TYPE, nullable=False)))


def with_window(batch: pa.RecordBatch, shape: Tumbling) -> pa.RecordBatch:
    """The batch with `__window`, the start of each row's window."""
    return batch.append_column(WINDOW_FIELD, pa.array(shape.start_of(times_of(batch))))
