"""Event time from a column: the clock of a source's splits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.operator import MAIN, TIME_COLUMN, Errors, Operator, Origin, Out


class AssignTime(Operator):
    """Give each row its event time, and say how far time is.

    Input:   rows of one split at a time, with a timestamp column.
    State:   `times`: per (source, split) the greatest time seen, less the delay and 1 µs. The task stores it with the split's
    position. Output:  the rows with `__time`; rows without a time are dead letters.
    """

    def __init__(self, name: str, column: str, delay: int, errors: Errors) -> None:
        super().__init__(name)
        self._column, self._delay, self._errors = column, delay, errors
        self.times: dict[tuple[str, str], int] = {}

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Copy the column; remember its maximum."""
        assert origin is not None, "event time is assigned where splits are known"
        times = batch.column(self._column).cast(pa.timestamp("us", tz="UTC"))
        if times.null_count:
            missing = np.asarray(times.is_null())
            yield from self._errors.letters(batch, np.flatnonzero(missing), f"the event time {self._column!r} is null", origin)
            batch, times = batch.filter(pa.array(~missing)), times.drop_null()
        if batch.num_rows:
            yield MAIN, batch.append_column(pa.field(TIME_COLUMN, times.type), times)
            reached = pc.max(times).cast(pa.int64()).as_py() - self._delay - 1
            split = (origin.source, origin.split)
            self.times[split] = max(reached, self.times.get(split, reached))
