"""Python functions: of one row (map, flat_map, filter) and of one batch (map_batches)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from penstock.errors import Fix, RowError
from penstock.exact import exactly, settled
from penstock.functions import Applied, RowFunction
from penstock.operators.operator import MAIN, Errors, Operator, Origin, Out
from penstock.operators.project import with_deletes
from penstock.tracebacks import told


class RowMap(Operator):
    """Call a function for each row, up to `attempts` times. Rows whose function raises each time are dead letters.

    Input:   the columns the function reads. State: none.
    Output:  what it returns, with the hidden columns of the row it came from.
    """

    def __init__(self, name: str, function: RowFunction, errors: Errors, *, deletes: bool = False, attempts: int = 1) -> None:
        super().__init__(name)
        self._function, self._errors, self._deletes, self._attempts = function, errors, deletes, attempts

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Apply; a filter keeps the row itself, hidden columns and all."""
        applied = self._function.apply(batch, self._attempts)
        if applied.errors:
            rows = [row for row, _ in applied.errors]
            yield from self._errors.letters(batch, rows, [told(e, self._function.function) for _, e in applied.errors], origin)
        picked = pa.array(applied.origin)
        if self._function.kind == "filter":
            yield MAIN, self._marked(batch, applied) if self._deletes else batch.take(picked)
            return
        out = applied.rows
        same = self._function.kind == "map" and out.num_rows == batch.num_rows  # a row for each
        for name in batch.schema.names:
            if name.startswith("__"):
                column = batch.column(name) if same else batch.column(name).take(picked)
                out = out.append_column(batch.schema.field(name), column)
        yield MAIN, out

    def _marked(self, batch: pa.RecordBatch, applied: Applied) -> pa.RecordBatch:
        kept, bad = np.zeros(batch.num_rows, np.bool_), np.zeros(batch.num_rows, np.bool_)
        kept[applied.origin] = True
        bad[[row for row, _ in applied.errors]] = True
        return with_deletes(batch, kept, bad)


class BatchMap(Operator):
    """Call a function of an Arrow batch. With event time it must return as many rows as it got, in order."""

    def __init__(self, name: str, function: Callable[[pa.RecordBatch], pa.RecordBatch], output: pa.Schema) -> None:
        super().__init__(name)
        self._function, self._output = function, output

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Call it without the hidden columns and put them back."""
        hidden = [name for name in batch.schema.names if name.startswith("__")]
        out = self._function(settled(batch.drop_columns(hidden) if hidden else batch))
        if not isinstance(out, pa.RecordBatch) or out.schema.names != self._output.names:
            found = out.schema.names if isinstance(out, pa.RecordBatch) else type(out).__name__
            raise RowError(f"map_batches must return a RecordBatch with the columns {self._output.names}, and returned {found}")
        if hidden and out.num_rows != batch.num_rows:
            raise RowError(
                f"map_batches got {batch.num_rows} rows with event time and returned {out.num_rows}: whose time would they have?",
                fix=Fix("map_batches.rows", "Return as many rows, or use flat_map"),
            )
        arrays = [exactly(out.column(f.name), f.type) for f in self._output] + [batch.column(name) for name in hidden]
        yield (
            MAIN,
            pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*self._output, *(batch.schema.field(h) for h in hidden)])),
        )
