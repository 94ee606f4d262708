"""Expressions over columns: select, with_columns, filter and split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr import Evaluated, Evaluator, Expr
from penstock.operators.operator import CHANGE_COLUMN, MAIN, Errors, Operator, Origin, Out, keep
from penstock.state.columns import gathered
from penstock.tracebacks import joined


class Project(Operator):
    """Make each column of the output from an expression.

    Input:   any columns. State: none.
    Output:  one row per row, hidden columns passed on; rows whose expression fails are dead letters.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[str, Expr]],
        fields: Sequence[pa.Field],
        errors: Errors,
        *,
        deletes: bool = False,
    ) -> None:
        super().__init__(name)
        self._columns = [(name, Evaluator(expr)) for name, expr in columns]
        self._fields, self._errors, self._deletes = tuple(fields), errors, deletes
        self._seen: pa.Schema | None = None  # the last batch's schema, the types that were made of it, and the answers to both
        self._types: list[pa.DataType] = []
        self._hidden: list[int] = []
        self._output = pa.schema([])

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Evaluate; set failing rows aside."""
        results = [evaluate(batch) for _, evaluate in self._columns]
        bad = failing(results, batch.num_rows, batch if self._deletes else None)
        arrays = [result.values for result in results]
        hidden, schema = self._made(batch.schema, [array.type for array in arrays])
        arrays += [batch.column(index) for index in hidden]
        out = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if bad is not None:
            rows = np.flatnonzero(bad)
            yield from self._errors.letters(batch, rows, reasons(results, rows), origin)
            out = keep(out, ~bad)
        yield MAIN, out

    def _made(self, schema: pa.Schema, types: list[pa.DataType]) -> tuple[list[int], pa.Schema]:
        """The hidden columns of such rows, and the schema of what is made of them. The last answer mostly serves again."""
        if schema == self._seen and types == self._types:
            return self._hidden, self._output
        made = {name for name, _ in self._columns}
        self._seen, self._types = schema, types
        self._hidden = [i for i, name in enumerate(schema.names) if name.startswith("__") and name not in made]
        fields = [pa.field(f.name, type, f.nullable) for f, type in zip(self._fields, types)]
        self._output = pa.schema(fields + [schema.field(index) for index in self._hidden])
        return self._hidden, self._output


class Filter(Operator):
    """Keep the rows for which a condition is true (not false, not null), and of them the `columns` that are used further on.

    Of rows that replace earlier ones (`deletes`), one that is not kept deletes its predecessor instead.
    """

    def __init__(self, name: str, condition: Expr, errors: Errors, columns: Sequence[str], *, deletes: bool = False) -> None:
        super().__init__(name)
        self._condition, self._errors, self._deletes = Evaluator(condition), errors, deletes
        self._columns = frozenset(columns)
        self._seen: pa.Schema | None = None  # of the last batch, and which of its columns are passed on
        self._passed: list[int] = []

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Evaluate and filter."""
        # What only the condition reads is not worth copying. One column stays in any case, to count rows by.
        if batch.schema != self._seen:
            self._seen, names = batch.schema, batch.schema.names
            self._passed = [i for i, name in enumerate(names) if name in self._columns or name.startswith("__")] or [0]
        kept = batch.select(self._passed) if len(self._passed) < batch.num_columns else batch
        result = self._condition(batch) if self._deletes else self._condition.where_true(batch)
        if not isinstance(result, Evaluated):
            yield MAIN, gathered(kept, result)
            return
        bad = failing([result], batch.num_rows, batch if self._deletes else None)
        if bad is not None:
            rows = np.flatnonzero(bad)
            yield from self._errors.letters(batch, rows, reasons([result], rows), origin)
        if self._deletes:
            yield MAIN, with_deletes(batch, np.asarray(pc.fill_null(result.values, False)), bad)
        elif result.values.true_count == batch.num_rows:
            yield MAIN, kept
        else:
            yield MAIN, kept.filter(result.values, null_selection_behavior="drop")


class Union(Operator):
    """The rows of several streams, with the same hidden columns: a row that says nothing of being withdrawn is not."""

    def __init__(self, name: str, hidden: Sequence[pa.Field]) -> None:
        super().__init__(name)
        self._hidden = list(hidden)

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Add what is missing."""
        for field in self._hidden:
            if field.name == CHANGE_COLUMN and field.name not in batch.schema.names:
                batch = batch.append_column(field, pa.array(np.ones(batch.num_rows, np.int8)))
        yield MAIN, batch


class Split(Operator):
    """Send each row to the port of the first condition that is true, or to "rest"."""

    def __init__(self, name: str, conditions: Sequence[tuple[str, Expr]], errors: Errors) -> None:
        super().__init__(name)
        self._conditions, self._errors = [(tag, Evaluator(condition)) for tag, condition in conditions], errors

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Evaluate all, then deal the rows out."""
        results = [evaluate(batch) for _, evaluate in self._conditions]
        bad = failing(results, batch.num_rows)
        left = np.ones(batch.num_rows, dtype=bool)
        if bad is not None:
            rows = np.flatnonzero(bad)
            yield from self._errors.letters(batch, rows, reasons(results, rows), origin)
            left &= ~bad
        for (tag, _), result in zip(self._conditions, results):
            chosen = left & np.asarray(pc.fill_null(result.values, False))
            yield tag, keep(batch, chosen)
            left &= ~chosen
        yield "rest", keep(batch, left)


class AsRows(Operator):
    """Say in a column what a row is, instead of in a hidden one."""

    def __init__(self, name: str, op: str, added: str) -> None:
        super().__init__(name)
        self._op, self._added = op, added

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Name the changes."""
        words = pa.array([self._added] * batch.num_rows, pa.string())
        if CHANGE_COLUMN in batch.schema.names:
            words = pc.if_else(pc.less(batch.column(CHANGE_COLUMN), 0), "delete", words)
            batch = batch.drop_columns([CHANGE_COLUMN])
        yield MAIN, batch.append_column(pa.field(self._op, pa.string(), nullable=False), words)


def with_deletes(
    batch: pa.RecordBatch, kept: np.ndarray[Any, np.dtype[np.bool_]], bad: np.ndarray[Any, np.dtype[np.bool_]] | None = None
) -> pa.RecordBatch:
    """The rows, those that are not kept as deletes; bad ones are left out."""
    change = np.where(kept, 1, -1).astype(np.int8)
    if CHANGE_COLUMN in batch.schema.names:
        change = np.minimum(change, batch.column(CHANGE_COLUMN).to_numpy())
        batch = batch.drop_columns([CHANGE_COLUMN])
    out = batch.append_column(pa.field(CHANGE_COLUMN, pa.int8(), nullable=False), pa.array(change))
    return out if bad is None else keep(out, ~bad)


def failing(
    results: Sequence[Evaluated], rows: int, batch: pa.RecordBatch | None = None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Which rows failed in any of these results; None if none did.

    Given the batch of an update stream: of a row that deletes another only the key means something. It never fails; what failed in it
    is null.
    """
    masks = [np.asarray(result.errors) for result in results if result.errors is not None]
    if not masks:
        return None
    bad = np.zeros(rows, dtype=bool)
    for mask in masks:
        bad |= mask
    if batch is not None and CHANGE_COLUMN in batch.schema.names:
        bad &= batch.column(CHANGE_COLUMN).to_numpy() > 0
    return bad if bad.any() else None


def reasons(results: Sequence[Evaluated], rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    """Why each of these rows failed, in words: by its own failures, not those of others in the batch."""
    broken = [result for result in results if result.errors is not None]
    failed = [(np.asarray(result.errors), result.reason or "the expression failed") for result in broken]
    return [joined([why for mask, why in failed if mask[row]]) for row in rows]
