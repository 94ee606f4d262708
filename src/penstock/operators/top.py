"""The greatest rows by one expression or several, with their rank: no more of them are kept than are sent.

Rows are kept in the order of their rank, numbered from 0. New rows and those kept are sorted together and the best stay.

1. Greater is better, or smaller if `ascending`; null comes last either way. Where the first expression is equal the second decides,
   and so on. Of equal rows the one with the earlier event time is better, then the one that came first.
2. Over windows the rows are sent when the window closes. Otherwise a row is sent for each rank that changed hands; it replaces the
   one with the same key and rank. Ranks never go away, since rows do not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expr import Evaluator, Expr
from penstock.expr.ordering import ordinals
from penstock.operators.groups import ranks
from penstock.operators.operator import (
    LATE,
    MAIN,
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
from penstock.operators.project import failing, reasons
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
    with_columns,
)
from penstock.state.columns import gathered
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.timers import TimerTable
from penstock.windows import Sliding, Tumbling, closing

WINDOW_COLUMN = "__window"


@dataclass(frozen=True)
class Rules:
    """What the user said, and the columns it takes."""

    by: tuple[pa.Field, ...]  # the key
    kept: tuple[str, ...]
    count: int
    order: tuple[tuple[str, Expr, bool], ...]  # each by the name of its column in state, and whether smaller is better
    output: pa.Schema


class Top(Operator):
    """The greatest rows of each key so far.

    Input:   rows.
    State:   per key its best rows, numbered by rank.
    Output:  a row for each rank that changed hands; it replaces the earlier one.
    """

    def __init__(self, name: str, rules: Rules, errors: Errors, states: Mapping[str, Any], *, max_parallelism: int) -> None:
        super().__init__(name)
        self._rules, self._errors, self.states, self._max_parallelism = rules, errors, states, max_parallelism
        self._names = [f.name for f in rules.by]
        self._order = [(name, Evaluator(expr)) for name, expr, _ in rules.order]
        self._buffer = RowBuffer(states["buckets"], states["rows"])

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Sort new rows in."""
        batch, rows = yield from self._ordered(batch, origin)
        keys = Keys(canonical_keys(batch, self._names))
        if not len(keys):
            return
        places, stored, best = self._sort_in(keys, np.zeros(len(keys), np.int64), rows)
        # A row that was kept and has the same rank was sent already.
        yield MAIN, self._rows(places, best.pick(~((best.rows < stored.rows.num_rows) & (best.rank == best.old_rank))))

    def _ordered(
        self, batch: pa.RecordBatch, origin: Origin | None
    ) -> Generator[Out, None, tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Evaluate what to order by; returns the rows that could be, as they came and as they are kept."""
        results = {name: evaluate(batch) for name, evaluate in self._order}
        bad = failing(list(results.values()), batch.num_rows)
        if bad is not None:
            where = np.flatnonzero(bad)
            yield from self._errors.letters(batch, where, reasons(list(results.values()), where), origin)
        columns = {f"row.{name}": batch.column(name) for name in self._rules.kept}
        columns |= {name: result.values for name, result in results.items()}
        timed = TIME_COLUMN in batch.schema.names
        zeros = pa.array(np.zeros(batch.num_rows, np.int64))
        columns["__time"] = batch.column(TIME_COLUMN).view(pa.int64()) if timed else zeros
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return (batch, rows) if bad is None else (keep(batch, ~bad), keep(rows, ~bad))

    def _sort_in(self, keys: Keys, buckets: Ints, rows: pa.RecordBatch) -> tuple[Places, Stored, Best]:
        """Keep the best of new rows and those kept; says which they are."""
        places, groups = distinct_places(keys, buckets)
        stored = self._buffer.fetch(places)
        every = pa.concat_batches([stored.rows, rows.select(stored.rows.schema.names)])
        of = np.concatenate([stored.of, groups.of])
        order = self._sorted(of, every)
        rank = np.empty(len(order), np.int64)
        rank[order] = ranks(of[order])
        old_rank = np.concatenate([stored.places.column(NUMBER).to_numpy(), np.full(rows.num_rows, -1)])
        chosen = order[rank[order] < self._rules.count]
        best = Best(chosen, of[chosen], rank[chosen], old_rank[chosen], gathered(every, chosen))
        if (best.rows >= stored.rows.num_rows).any():
            # Only places where something changed are written.
            touched = np.unique(best.of[best.rows >= stored.rows.num_rows])
            part = best.pick(np.isin(best.of, touched))
            self._buffer.drop(places.take(touched))
            columns = gathered(places.columns, part.of)
            whose = Keys(columns.select(self._names), places.hashes[part.of], part.of)
            self._buffer.add(whose, columns.column(BUCKET).to_numpy(), part.values)
        return places, stored, best

    def _sorted(self, of: Ints, rows: pa.RecordBatch) -> Ints:
        by: list[Any] = [of]  # from what decides first to what decides last
        for name, _, ascending in self._rules.order:
            values = rows.column(name)
            numbers = ordinals(values)
            numbers = numbers if ascending else ~numbers  # like minus, without the one number that has none
            missing = values.is_null().to_numpy(zero_copy_only=False)
            by += [missing, np.where(missing, 0, numbers)]
        return np.lexsort((np.arange(len(of)), rows.column("__time").to_numpy(), *reversed(by)))

    def _rows(self, places: Places, best: Best) -> pa.RecordBatch:
        """Rows of the result."""
        keys = gathered(places.columns, best.of)
        found = {f.name: keys.column(f.name).cast(f.type) for f in self._rules.by}
        found |= {name: best.values.column(f"row.{name}") for name in self._rules.kept}
        found["rank"] = pa.array(best.rank + 1)
        fields = [f for f in self._rules.output if f.name in found]
        return pa.RecordBatch.from_arrays([found[f.name] for f in fields], schema=pa.schema(fields))


class WindowTop(Top):
    """The greatest rows of each key and window, when it closes.

    Input:   rows with event time, in any order.
    State:   per key and open window its best rows, numbered by rank.
    Timers:  event time, at the last moment of each key's open windows.
    Output:  main: the rows with their rank; late: the rows all of whose windows had closed.
    """

    def __init__(self, name: str, rules: Rules, shape: Tumbling | Sliding, *args: Any, **shared: Any) -> None:
        super().__init__(name, rules, *args, **shared)
        self._shape = shape
        self._timers: TimerTable = self.states["timers"]

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Sort new rows into their windows."""
        keys = Keys(canonical_keys(batch, self._names))
        times = times_of(batch)
        of, starts, ends = self._shape.assign(times)
        of = np.arange(len(times)) if of is None else of
        floors = self._timers.floor_of(groups_of(keys.hashes, self._max_parallelism))
        alive = closing(ends, 0) > floors[of]
        late: Bools = np.bincount(of[alive], minlength=len(times)) == 0
        if late.any():
            self.counters["late"] += int(late.sum())
            yield LATE, keep(batch, late)
        on_time = np.flatnonzero(~late)
        kept = gathered(batch, on_time).append_column("__row", pa.array(on_time))
        good, rows = yield from self._ordered(kept, origin)
        place = np.full(len(times), -1, np.int64)
        place[good.column("__row").to_numpy()] = np.arange(good.num_rows)
        wanted = np.flatnonzero(alive & (place[of] >= 0))
        if len(wanted):
            each = of[wanted]
            places, stored, _ = self._sort_in(keys.take(each), starts[wanted], gathered(rows, place[each]))
            fresh = places.take(np.flatnonzero(stored.counts == 0))
            self._await(fresh)

    def _await(self, fresh: Places) -> None:
        """Wait for windows not seen before to close."""
        starts = fresh.columns.column(BUCKET).to_numpy()
        keys = with_columns(fresh.columns.select(self._names), {WINDOW_COLUMN: starts})
        self._timers.add(closing(self._ends(starts), 0), keys, fresh.hashes)

    def _ends(self, starts: Ints) -> Ints:
        return starts + self._shape.size if isinstance(self._shape, Sliding) else self._shape.end_of(starts)

    def advance(self, time: int) -> Iterator[Out]:
        """Send the best of windows that have closed."""
        for due in self._timers.due(time):
            starts = due.column(WINDOW_COLUMN).to_numpy()
            columns = with_columns(due.select(self._names), {BUCKET: starts})
            places = Places(columns, hash_keys(columns.select(self._names)))
            stored = self._buffer.pop(places)
            rank = stored.places.column(NUMBER).to_numpy()
            rows = self._rows(places, Best(np.arange(len(rank)), stored.of, rank, rank, stored.rows))
            times = as_times((self._ends(starts) - 1)[stored.of])
            yield MAIN, rows.append_column(pa.field(TIME_COLUMN, TIME_TYPE, nullable=False), times)
        self._timers.advance(time)


@dataclass(frozen=True, slots=True)
class Best:
    """The best rows of some places: which of all they are, whose, their rank and the one they had (-1: they are new)."""

    rows: Ints
    of: Ints
    rank: Ints
    old_rank: Ints
    values: pa.RecordBatch

    def pick(self, mask: Bools) -> Best:
        """Those where the mask is set."""
        at = np.flatnonzero(mask)
        return Best(self.rows[at], self.of[at], self.rank[at], self.old_rank[at], gathered(self.values, at))
