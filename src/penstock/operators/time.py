"""Event time: where each row gets it, and how far it is in each split.

A watermark `t` of a split says: nothing more at or before `t`. Two rules make one:

1. Bounded (`delay`): the greatest time seen, less the delay and 1 µs. With a delay of 0, times never go back; equal ones may.
2. Punctuated: what a row says. It counts once the batch is processed, so rows behind it in the same batch meet the older time:
   that can only make them less late.

Either way it never goes back. A row without a time, or further ahead of the time of day than `max_ahead`, is a bad row and moves
nothing: one clock of a phone that runs a year fast would otherwise make everybody else late for a year.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.eventtime import duration_text
from penstock.expr import Evaluator, Expr
from penstock.functions import RowFunction
from penstock.operators.operator import MAIN, TIME_COLUMN, TIME_TYPE, Errors, Operator, Origin, Out
from penstock.state.columns import fixed_values, span
from penstock.tracebacks import told

LEAST, MOST = -(2**63) + 1, 2**63 - 2
"""The ends of time are not times: they mean "no row yet" and "ended"."""
TIME_FIELD = pa.field(TIME_COLUMN, TIME_TYPE)
YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999

Bad = dict[int, str]
"""Rows that cannot be used, and why."""


class AssignTime(Operator):
    """Give each row its event time, and say how far time is.

    Input:   rows of one split at a time.
    State:   `times`: per (source, split) the watermark. The task stores it with the split's position.
    Output:  the rows with `__time`; rows without a time, or too far ahead, are dead letters.
    """

    def __init__(
        self,
        name: str,
        at: Expr | RowFunction,
        errors: Errors,
        *,
        delay: int | None = None,
        punctuated: Expr | RowFunction | None = None,
        max_ahead: int | None = None,
    ) -> None:
        super().__init__(name)
        assert (delay is None) != (punctuated is None), "a watermark follows one rule"
        self._at, self._delay, self._errors, self._max_ahead = Moments(at), delay, errors, max_ahead
        self._marks = None if punctuated is None else Moments(punctuated)
        self.clocked = max_ahead is not None
        self.times: dict[tuple[str, str], int] = {}

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Add the time, and remember how far the split is."""
        assert origin is not None, "event time is assigned where splits are known"
        times, bad = self._at.of(batch)
        if times.null_count:
            for row in np.flatnonzero(np.asarray(times.is_null())):
                bad.setdefault(int(row), f"the event time {self._at.text!r} is null")
        self._refuse_beyond(times, bad)
        self._refuse_ahead(times, bad, f"the event time {self._at.text!r}")
        if bad:
            yield from self._letters(batch, bad, origin)
            batch, times = without(batch, bad), without(times, bad)
        reached = None
        if self._marks is not None:
            # Only now: a function is not shown what is no time.
            marks, bad = self._marks.of(batch)
            self._refuse_ahead(marks, bad, f"the punctuation by {self._marks.text!r}")
            if bad:
                yield from self._letters(batch, bad, origin)
                batch, times, marks = without(batch, bad), without(times, bad), without(marks, bad)
            reached = latest(marks)
        elif self._delay is not None and batch.num_rows:
            reached = latest(times)
            assert reached is not None, "every row left has a time"
            reached -= self._delay + 1
        if batch.num_rows:
            yield MAIN, batch.append_column(TIME_FIELD, times)
        if reached is not None:
            split = (origin.source, origin.split)
            self.times[split] = max(min(max(reached, LEAST), MOST), self.times.get(split, LEAST))

    def _refuse_beyond(self, times: pa.Array, bad: Bad) -> None:
        """A time that no calendar has would overflow whatever is computed with it."""
        bounds = _bounds(times)
        if bounds is None or (bounds[0] >= YEAR_1 and bounds[1] <= YEAR_9999):
            return
        micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy()
        for row in np.flatnonzero((micros < YEAR_1) | (micros > YEAR_9999)):
            bad.setdefault(int(row), f"the event time {self._at.text!r} is not between the years 1 and 9999")

    def _refuse_ahead(self, times: pa.Array, bad: Bad, what: str) -> None:
        if self._max_ahead is None:
            return
        bounds, limit = _bounds(times), min(self.now + self._max_ahead, MOST)
        if bounds is None or bounds[1] <= limit:
            return
        micros = times.cast(pa.int64())
        ahead = pc.fill_null(pc.greater(micros, limit), False)
        for row in np.flatnonzero(np.asarray(ahead)):
            by = micros[int(row)].as_py() - self.now
            bad.setdefault(
                int(row), f"{what} is {by // 1_000_000} s in the future, and max_ahead is {duration_text(self._max_ahead)}"
            )

    def _letters(self, batch: pa.RecordBatch, bad: Bad, origin: Origin) -> Iterator[Out]:
        rows = sorted(bad)
        yield from self._errors.letters(batch, rows, [bad[row] for row in rows], origin)


class Moments:
    """A time for each row of a batch, or none, by an expression or a function."""

    def __init__(self, what: Expr | RowFunction) -> None:
        self._what = Evaluator(what) if isinstance(what, Expr) else what
        self.text = what.text() if isinstance(what, Expr) else what.name

    def of(self, batch: pa.RecordBatch) -> tuple[pa.Array, Bad]:
        """The times, null where there is none, and the rows for which it failed."""
        if isinstance(self._what, RowFunction):
            applied = self._what.apply(batch)
            place = np.full(batch.num_rows, -1)
            place[applied.origin] = np.arange(len(applied.origin))
            times = applied.rows.column(0).take(pa.array(place, mask=place < 0))
            return times, {row: told(error, self._what.function) for row, error in applied.errors}
        found = self._what(batch)
        values = found.values
        if values.type != TIME_TYPE:
            # Finer than a microsecond is cut off; coarser must fit.
            values = as_micros(values)
        if found.errors is None:
            return values, {}
        return values, dict.fromkeys(np.flatnonzero(np.asarray(found.errors)).tolist(), found.reason or "the expression failed")


def as_micros(values: pa.Array) -> pa.Array:
    """Times of any unit. Finer than a microsecond is cut off; what does not fit is as far away as can be, which is refused later."""
    unit = values.type.unit
    if unit in ("us", "ns"):
        return values.cast(TIME_TYPE, safe=unit != "ns")
    factor = 1_000_000 if unit == "s" else 1_000
    numbers = pc.max_element_wise(pc.min_element_wise(values.cast(pa.int64()), MOST // factor), LEAST // factor)
    nulls = pc.if_else(values.is_valid(), numbers, pa.scalar(None, pa.int64()))  # min and max pass over nulls
    return pc.multiply(nulls, factor).cast(TIME_TYPE)


def latest(times: pa.Array) -> int | None:
    """The greatest of them."""
    bounds = _bounds(times)
    return None if bounds is None else bounds[1]


def _bounds(times: pa.Array) -> tuple[int, int] | None:
    """The least and the greatest, in microseconds; None if there is none."""
    if not times.null_count:
        return span(fixed_values(times)) if len(times) else None
    found = pc.min_max(times.view(pa.int64())).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def without(rows: pa.RecordBatch | pa.Array, bad: Bad) -> pa.RecordBatch | pa.Array:
    """All rows but these."""
    kept = np.ones(len(rows), dtype=bool)
    kept[list(bad)] = False
    return rows.filter(pa.array(kept))
