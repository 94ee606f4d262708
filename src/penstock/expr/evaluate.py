"""Evaluation: the value of an expression for every row of a batch, and the rows that have none.

`compile(expr, schema)` resolves types once and returns a function from batches to results. Spark evaluates
row by row and so never computes what it does not need; Arrow computes whole arrays. To mean the same, errors
count only where the value is needed:

1. `a and b`: errors of b do not count where a is false; `a or b`: not where a is true.
2. A branch of `when` counts only in the rows that take it, a condition only in the rows that get to it.
3. `coalesce` looks at its next argument only where those before are null.
4. Of arithmetic, comparisons and `[]` the right side counts only where the left one is not null, of divisions the left side only
   where the right one is not. `between` looks at its upper bound only where the value is not below the lower one.

So `when(col("n") != 0, 10 / col("n"))` has no bad rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.expr.casts import cast
from penstock.expr.encoded import once_per_value, per_row, true_rows
from penstock.expr.kernels import KERNELS, broadcast
from penstock.expr.nodes import Column, Node, columns_of
from penstock.expr.promote import Typed
from penstock.expr.resolve import resolve
from penstock.expr.rowwise import Evaluated, either, with_errors
from penstock.expr.udf import call_udf

__all__ = ["Evaluated", "Evaluator", "compile", "evaluate", "node_of"]

_LEFT_FIRST = {
    *("add", "subtract", "multiply", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("get", "element_at", "try_element_at"),
}
_RIGHT_FIRST = {"divide", "div", "modulo"}

Compiled = Callable[[pa.RecordBatch], Evaluated]


def evaluate(expr: Any, batch: pa.RecordBatch) -> Evaluated:
    """The value of `expr` for each row of `batch`.

    >>> from penstock.expr import col
    >>> evaluate(col("n") + 1, pa.record_batch({"n": [1, 2]})).values.to_pylist()
    [2, 3]
    """
    return compile(expr, batch.schema)(batch)


class Evaluator:
    """`evaluate` for a stream of batches: compiled for the schema they have, and again when that changes.

    >>> from penstock.expr import col
    >>> double = Evaluator(col("n") * 2)
    >>> [double(pa.record_batch({"n": n})).values.to_pylist() for n in ([1, 2], [1.5])]
    [[2, 4], [3.0]]
    """

    def __init__(self, expr: Any) -> None:
        self._expr = expr
        self._schema: pa.Schema | None = None
        self._run: Compiled | None = None
        self._encoded: tuple[str, Callable[[pa.Array], Evaluated]] | None = None

    def __call__(self, batch: pa.RecordBatch) -> Evaluated:
        """The value for each row."""
        run = self._compile(batch.schema)
        column, found = self._once_per_value(batch)
        return run(batch) if found is None else per_row(column, found)

    def where_true(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | Evaluated:
        """Of a condition: the rows for which it is true, where they can be had without its value for each; otherwise those values."""
        run = self._compile(batch.schema)
        column, found = self._once_per_value(batch)
        if found is None:
            return run(batch)
        return true_rows(column, found) if found.errors is None else per_row(column, found)

    def _once_per_value(self, batch: pa.RecordBatch) -> tuple[pa.Array, Evaluated | None]:
        if self._encoded is None:
            return None, None
        name, of_values = self._encoded
        column = batch.column(name)
        return column, once_per_value(column, of_values)

    def _compile(self, schema: pa.Schema) -> Compiled:
        if self._run is None or not schema.equals(self._schema):
            self._schema, self._run = schema, compile(self._expr, schema)
            self._encoded = _of_values(self._expr, schema)
        return self._run


def _of_values(expr: Any, schema: pa.Schema) -> tuple[str, Callable[[pa.Array], Evaluated]] | None:
    """For an expression of one column that is a dictionary: that column, and what evaluates its values."""
    names = columns_of(node_of(expr))
    if len(names) != 1 or isinstance(node_of(expr), Column):
        return None
    (name,) = names
    if name not in schema.names or not pa.types.is_dictionary(schema.field(name).type):
        return None
    field = schema.field(name)
    plain = pa.schema([field.with_type(field.type.value_type)])
    run = compile(expr, plain)
    return name, lambda values: run(pa.RecordBatch.from_arrays([values], schema=plain))


def compile(expr: Any, schema: pa.Schema) -> Compiled:
    """`evaluate` for many batches of one schema: types are resolved, and mistakes found, once.

    Args:
        expr: an `Expr` or a node.
    """
    typed = resolve(node_of(expr), schema)
    if typed.function == "column":
        name = typed.options[0]
        return lambda batch: Evaluated(batch.column(name))

    def run(batch: pa.RecordBatch) -> Evaluated:
        found = _run(typed, batch)
        values = broadcast(found.values, batch.num_rows)
        if found.errors is None or not found.errors.true_count:
            return found if values is found.values and found.errors is None else Evaluated(values)
        return Evaluated(pc.if_else(found.errors, pa.scalar(None, values.type), values), found.errors, found.reason)

    return run


def node_of(expr: Any) -> Node:
    """The node of an `Expr`, or the node itself."""
    node = expr if isinstance(expr, Node) else getattr(expr, "node", None)
    if not isinstance(node, Node):
        raise PlanError(f"expected an expression, and found {expr!r}", fix=Fix("expr.expected", _instead(expr)))
    return node


def _instead(value: Any) -> str:
    """The expression that is likely meant: users come here with `where=`, a condition."""
    if isinstance(value, bool):
        return f"Write: pen.lit({value})"
    if isinstance(value, str) and value.isidentifier():
        return f'Write: col("{value}")'
    return 'Compare a column, for example. Write: col("price") > 10'


def _run(typed: Typed, batch: pa.RecordBatch) -> Evaluated:
    match typed.function:
        case "column":
            return Evaluated(batch.column(typed.options[0]))
        case "literal":
            return Evaluated(typed.scalar)
        case "cast":
            return _cast(typed, batch)
        case "and" | "or":
            return _logic(typed, batch)
        case "case":
            return _case(typed, batch)
        case "coalesce":
            return _coalesce(typed, batch)
        case "udf":
            return _call(typed, batch, call_udf)
    return _call(typed, batch, KERNELS[typed.function])


def _call(typed: Typed, batch: pa.RecordBatch, kernel: Callable[[Typed, list[Any], int], Evaluated]) -> Evaluated:
    inputs = [_run(arg, batch) for arg in typed.args]
    values = [found.values for found in inputs]
    if values and all(isinstance(value, pa.Scalar) for value in values):
        values[0] = broadcast(values[0], batch.num_rows)
    result = kernel(typed, values, batch.num_rows)
    if all(found.errors is None for found in inputs):  # as almost always
        return result
    return with_errors(result, _needed(typed, inputs, batch.num_rows))


def _needed(typed: Typed, inputs: list[Evaluated], rows: int) -> list[Evaluated]:
    """The inputs of a function with those of their errors that count."""
    if typed.function not in (*_LEFT_FIRST, *_RIGHT_FIRST, "between"):
        return inputs
    if any(map(_is_null, typed.args)):
        return []
    first, *rest = inputs[::-1] if typed.function in _RIGHT_FIRST else inputs
    known = pc.is_valid(broadcast(first.values, rows))
    rest = [_where(found, known) for found in rest]
    if typed.function == "between":
        low, high = rest
        below = pc.less(broadcast(first.values, rows), broadcast(inputs[1].values, rows))
        rest = [low, _where(high, pc.invert(pc.fill_null(below, False)))]
    return [first, *rest]


def _where(found: Evaluated, counts: pa.Array) -> Evaluated:
    """The value without the errors of the other rows."""
    return found if found.errors is None else Evaluated(found.values, pc.and_(found.errors, counts), found.reason)


def _is_null(typed: Typed) -> bool:
    """Whether it was written as null, at which nothing else is looked at."""
    return (typed.is_literal and typed.options[0] is None) or (typed.function == "cast" and _is_null(typed.args[0]))


def _cast(typed: Typed, batch: pa.RecordBatch) -> Evaluated:
    found = _run(typed.args[0], batch)
    result = cast(broadcast(found.values, batch.num_rows), typed.type, attempt=typed.options[0])
    return with_errors(result, [found])


def _logic(typed: Typed, batch: pa.RecordBatch) -> Evaluated:
    left, right = (_run(arg, batch) for arg in typed.args)
    rows = batch.num_rows
    first, second = broadcast(left.values, rows), broadcast(right.values, rows)
    combine = pc.and_kleene if typed.function == "and" else pc.or_kleene
    errors, reason = left.errors, left.reason
    if right.errors is not None:
        decided = pc.equal(first, pa.scalar(typed.function == "or"))
        errors = either(errors, pc.and_(right.errors, pc.invert(pc.fill_null(decided, False))))
        reason = reason or right.reason
    return Evaluated(combine(first, second), errors, reason)


def _case(typed: Typed, batch: pa.RecordBatch) -> Evaluated:
    rows, count = batch.num_rows, typed.options[0]
    tests, values = typed.args[:count], typed.args[count:]
    open_rows = pa.repeat(pa.scalar(True), rows)
    chosen, errors, reason = [], None, None
    for test, value in zip(tests, values[:-1], strict=True):
        condition = _run(test, batch)
        taken = pc.and_(open_rows, pc.fill_null(broadcast(condition.values, rows), False))
        errors, reason = _count(errors, reason, condition, open_rows)
        result = _run(value, batch)
        errors, reason = _count(errors, reason, result, taken)
        chosen.append((taken, result.values))
        open_rows = pc.and_not(open_rows, taken)
    last = _run(values[-1], batch)
    errors, reason = _count(errors, reason, last, open_rows)
    found = broadcast(last.values, rows)
    for taken, branch in reversed(chosen):
        found = pc.if_else(taken, branch, found)
    return Evaluated(found, errors, reason)


def _coalesce(typed: Typed, batch: pa.RecordBatch) -> Evaluated:
    rows = batch.num_rows
    open_rows = pa.repeat(pa.scalar(True), rows)
    values, errors, reason = [], None, None
    for arg in typed.args:
        result = _run(arg, batch)
        errors, reason = _count(errors, reason, result, open_rows)
        value = broadcast(result.values, rows)
        open_rows = pc.and_(open_rows, pc.is_null(value))
        values.append(value)
    return Evaluated(pc.coalesce(*values), errors, reason)


def _count(errors: Any, reason: str | None, found: Evaluated, where: pa.Array) -> tuple[Any, str | None]:
    """Add the bad rows of `found` to `errors`, but only those in `where`."""
    if found.errors is None:
        return errors, reason
    return either(errors, pc.and_(found.errors, where)), reason or found.reason
