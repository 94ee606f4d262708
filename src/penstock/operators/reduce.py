"""A function of two rows, folded over the rows of each key, or of each key and window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import RAISED, RowError
from penstock.eventtime import Tumbling
from penstock.exact import exactly, exactly_batch
from penstock.folding import ReduceFunction
from penstock.operators.aggregate import WINDOW_COLUMN, with_window
from penstock.operators.operator import LATE, MAIN, TIME_COLUMN, TIME_TYPE, Errors, Operator, Origin, Out, as_times, keep
from penstock.schema import far_error, far_rows, to_array, to_rows, to_values
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import TimerTable
from penstock.tracebacks import told


class Reduce(Operator):
    """Fold rows of a key in the order they come.

    Input:   rows.
    State:   the folded row per key (and open window).
    Timers:  with windows: event time, at the last moment of each key's open windows.
    Output:  without windows the new row of each key the batch touched, which replaces the earlier one; with windows one row
    when the window closes, and `late`.
    """

    def __init__(
        self,
        name: str,
        by: Sequence[str],
        function: ReduceFunction,
        rows: pa.Schema,
        output: pa.Schema,
        errors: Errors,
        table: KeyedTable,
        *,
        shape: Tumbling | None = None,
        bounds: Sequence[str] = (),
        timers: TimerTable | None = None,
        max_parallelism: int,
    ) -> None:
        super().__init__(name)
        assert (shape is None) == (timers is None), "windows and timers come together"
        self._by, self._function, self._rows, self._output, self._errors = list(by), function, rows, output, errors
        self._table, self._shape, self._timers, self._max_parallelism = table, shape, timers, max_parallelism
        self._keys = [*by, WINDOW_COLUMN] if shape else list(by)
        self._bounds = bounds  # what the result calls start and end of a window
        self.states = {"rows": table} if timers is None else {"rows": table, "timers": timers}

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Fold the batch into the state."""
        if self._shape is not None and self._timers is not None:
            batch = with_window(batch, self._shape)
            groups = groups_of(hash_keys(canonical_keys(batch, self._by)), self._max_parallelism)
            late = self._ends(batch) <= self._timers.floor_of(groups)
            if late.any():
                self.counters["late"] += int(late.sum())
                yield LATE, keep(batch, late).drop_columns([WINDOW_COLUMN])
                batch = keep(batch, ~late)
        if not batch.num_rows:
            return
        keys = canonical_keys(batch, self._keys)
        found, values = self._table.get_many(keys, hash_keys(keys.select(self._by)))
        stored = values.schema.names
        values = values.rename_columns(self._rows.names)
        folded, fresh, bad = self._fold(batch, keys, found, values)
        try:
            rows = self._to_rows(folded.values())
        except RowError:  # it is known of no row which one did it, so they are folded again, one by one
            folded, fresh, bad = self._fold(batch, keys, found, values, checked=True)
            rows = self._to_rows(folded.values())
        yield from self._errors.letters(
            batch, [row for row, _ in bad], [told(e, self._function.function) for _, e in bad], origin
        )
        if not folded:
            return
        touched = keys.take(pa.array(list(folded), pa.int64()))
        self._table.put_many(touched, rows.rename_columns(stored), hash_keys(touched.select(self._by)))
        if self._timers is not None:
            new = keys.take(pa.array(fresh, pa.int64()))
            self._timers.add(self._ends(new), new, hash_keys(new.select(self._by)))
        else:
            yield MAIN, exactly_batch(rows, self._output)

    def _fold(
        self, batch: pa.RecordBatch, keys: pa.RecordBatch, found: Any, values: pa.RecordBatch, *, checked: bool = False
    ) -> tuple[dict[int, dict[str, Any]], list[int], list[tuple[int, BaseException]]]:
        """By the number of the first row of each key: its folded row; the numbers of keys not seen before; the rows that failed."""
        first: dict[Any, int] = {}
        folded: dict[int, dict[str, Any]] = {}
        fresh: list[int] = []
        bad: list[tuple[int, BaseException]] = []
        identities = [tuple(key.values()) for key in to_rows(keys)] if keys.num_columns else [()] * batch.num_rows
        rows, far = self._python_rows(batch)
        bad += [(row, far_error(name)) for row, name in far.items()]
        begins = {identities[number]: number for number in reversed(range(batch.num_rows)) if number not in far}
        seen = [number for number in begins.values() if found[number]]
        known = dict(zip(seen, self._from_rows(values.take(pa.array(seen, pa.int64())))))
        for number, (identity, row) in enumerate(zip(identities, rows)):
            if number in far:
                continue
            slot = first.setdefault(identity, number)
            old = folded.get(slot) or (known.get(number) if slot == number else None)
            try:
                new = row if old is None else self._function(old, row)
                if checked:
                    self._to_rows([new])
            except RAISED as error:
                bad.append((number, error))
                if old is None:
                    del first[identity]
                continue
            folded[slot] = new
            if old is None:
                fresh.append(slot)
        return folded, fresh, bad

    def _from_rows(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        names = self._rows.names
        return [dict(zip(names, row)) for row in zip(*(to_values(rows.column(name)) for name in names))]

    def _python_rows(self, batch: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, str]]:
        """The rows as dicts, and those that have a time that Python does not have, with its column; in their place is nothing."""
        try:
            return self._from_rows(batch), {}
        except (OverflowError, ValueError):
            far = {row: name for name in self._rows.names for row in far_rows(batch.column(name))}
        rest = [row for row in range(batch.num_rows) if row not in far]
        rows: list[dict[str, Any]] = [{}] * batch.num_rows
        for number, row in zip(rest, self._from_rows(batch.take(pa.array(rest, pa.int64())))):
            rows[number] = row
        return rows, far

    def _to_rows(self, folded: Iterable[dict[str, Any]]) -> pa.RecordBatch:
        """Folded rows as a batch; a `RowError` where one does not fit."""
        rows = list(folded)
        arrays = [to_array([row[field.name] for row in rows], field) for field in self._rows]
        return pa.RecordBatch.from_arrays(arrays, schema=self._rows)

    def _ends(self, keys: pa.RecordBatch) -> Any:
        assert self._shape is not None
        return self._shape.end_of(keys.column(WINDOW_COLUMN).to_numpy()) - 1

    def advance(self, time: int) -> Iterator[Out]:
        """Fire the windows that have ended."""
        if self._timers is None or self._shape is None:
            return
        for due in self._timers.due(time):
            keys = due.select(self._keys)
            hashes = hash_keys(keys.select(self._by))
            found, values = self._table.get_many(keys, hashes)
            assert found.all(), "an open window has a timer and a row of state"
            self._table.delete_many(keys, hashes)
            starts = keys.column(WINDOW_COLUMN).to_numpy()
            ends = self._shape.end_of(starts)
            columns = dict(zip(self._rows.names, values.columns))
            columns |= zip(self._bounds, (as_times(starts), as_times(ends)))
            arrays = [*(exactly(columns[f.name], f.type) for f in self._output), as_times(ends - 1)]
            yield MAIN, pa.RecordBatch.from_arrays(arrays, schema=self._output.append(pa.field(TIME_COLUMN, TIME_TYPE)))
        self._timers.advance(time)
