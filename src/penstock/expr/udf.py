"""User-defined scalar functions: a Python function that can be called with expressions.

By value, the function is called once per row with Python values; the return annotation says its type. By
column (a parameter is annotated `pa.Array`), it is called once per batch with Arrow arrays, and `returns=`
says the type.

1. A null for a parameter that is not annotated `T | None` makes the result null without a call, as in SQL's
   own functions. A null inside a list, map or record for which the annotation has none makes the row bad.
2. A row for which the function raises, or returns what does not fit its type, is a bad row; the others are
   unaffected. By column the function owns the whole batch, so where it raises every row is tried by itself.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import RAISED, Fix, PlanError, RowError
from penstock.expr.nodes import Udf
from penstock.expr.promote import Typed
from penstock.expr.rowwise import Evaluated, masked, with_errors
from penstock.functions import instance_maker, plain_value
from penstock.schema import far_error, far_rows, to_array, to_field, to_type, to_values
from penstock.tracebacks import told

__all__ = ["HINTS", "call_udf", "has_records", "udf_node"]

HINTS = Fix("udf.hints", "Define the classes they mention at the top level of a module")


def udf_node(function: Callable[..., Any], returns: Any = None) -> Callable[..., Udf]:
    """A builder of nodes for `function`: its annotations are read once, here."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise PlanError(f"cannot read the annotations of {name}: {error}", fix=HINTS) from error
    names = [parameter.name for parameter in inspect.signature(function).parameters.values()]
    by_column = any(isinstance(hints.get(one), type) and issubclass(hints[one], pa.Array) for one in names)
    parameters = tuple(None if by_column or one not in hints else to_field(one, hints[one]) for one in names)
    makers = tuple(
        instance_maker(hints[one]) if field is not None and pa.types.is_nested(field.type) else None
        for one, field in zip(names, parameters)
    )
    output = _returns(name, hints.get("return"), returns, by_column)

    def build(*args: Any) -> Udf:
        if len(args) != len(names):
            raise PlanError(f"{name}() takes {len(names)} expressions ({', '.join(names)}), and found {len(args)}")
        return Udf(name, function, args, parameters, output, by_column, makers)

    return build


def _returns(name: str, hint: Any, returns: Any, by_column: bool) -> pa.Field:
    if returns is not None:
        return to_field(name, returns) if not isinstance(returns, str | pa.DataType) else pa.field(name, to_type(returns))
    if by_column:
        raise PlanError(
            f"cannot tell what the arrays of {name} hold", fix=Fix("udf.arrays", 'Say it. Write: @pen.udf(returns="string")')
        )
    if hint is None:
        raise PlanError(
            f"cannot tell what {name} returns",
            fix=Fix("udf.returns", "Annotate it, -> str, or say it. Write: @pen.udf(returns=str)"),
        )
    return to_field(name, hint)


def call_udf(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    """The kernel of a `Udf` node."""
    node: Udf = typed.options[0]
    return _by_column(node, args, rows) if node.by_column else _by_value(node, args, rows)


def _by_value(node: Udf, args: list[Any], rows: int) -> Evaluated:
    try:
        columns = [to_values(arg) if isinstance(arg, pa.Array) else [arg.as_py()] * rows for arg in args]
    except (OverflowError, ValueError):
        return _without_far_rows(node, args, rows)
    strict = [index for index, field in enumerate(node.parameters) if field is not None and not field.nullable]
    values: list[Any] = [None] * rows
    bad = [False] * rows
    skipped = [False] * rows
    first: BaseException | None = None
    records = any(node.makers)
    instances = has_records(node.returns.type)
    for index in range(rows):
        row = [column[index] for column in columns]
        if any(row[position] is None for position in strict):
            skipped[index] = True
            continue
        try:
            made = [v if m is None or v is None else m(v) for v, m in zip(row, node.makers)] if records else row
            found = node.function(*made)
            values[index] = plain_value(found) if instances else found
        except RAISED as error:  # Whatever a user's function raises is an error of its row.
            bad[index], first = True, first or error
    return _fitted(node, values, bad, skipped, first)


def _without_far_rows(node: Udf, args: list[Any], rows: int) -> Evaluated:
    """Some rows have a time that Python does not have: they are bad, and the others are computed without them."""
    far = {row for arg in args if isinstance(arg, pa.Array) for row in far_rows(arg)}
    bad = pa.array([row in far for row in range(rows)])
    rest = pc.indices_nonzero(pc.invert(bad))
    found = _by_value(node, [arg.take(rest) if isinstance(arg, pa.Array) else arg for arg in args], len(rest))
    places = pc.if_else(bad, pa.scalar(None, pa.int64()), pa.array(np.cumsum(~np.asarray(bad)) - 1, pa.int64()))
    spread = Evaluated(
        found.values.take(places),
        None if found.errors is None else pc.fill_null(found.errors.take(places), False),
        found.reason,
    )
    return with_errors(spread, [Evaluated(None, bad, str(far_error(f"{node.name}()")))])


def has_records(kind: pa.DataType) -> bool:
    """Whether a function may return instances for it: there are records in it."""
    inner = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_struct(kind) or any(map(has_records, [kind.item_type] if pa.types.is_map(kind) else inner))


def _fitted(node: Udf, values: list[Any], bad: list[bool], skipped: list[bool], first: BaseException | None) -> Evaluated:
    """The returned values as an array; those that do not fit are found one by one, only if there are any."""
    loose = node.returns.with_nullable(True)
    called = [value for value, out in zip(values, map(any, zip(bad, skipped, strict=True)), strict=True) if not out]
    try:
        to_array(called, node.returns)
        found = to_array(values, loose)
    except RowError:
        for index, value in enumerate(values):
            if bad[index] or skipped[index]:
                continue
            try:
                to_array([value], node.returns)
            except RowError as error:
                values[index], bad[index], first = None, True, first or error
        found = to_array(values, loose)
    return masked(found, pa.array(bad, pa.bool_()), _reason(node, first))


def _by_column(node: Udf, args: list[Any], rows: int) -> Evaluated:
    arrays = [arg if isinstance(arg, pa.Array) else pa.repeat(arg, rows) for arg in args]
    try:
        return Evaluated(_call_arrays(node, arrays, rows))
    except RAISED as error:
        if rows <= 1:
            return Evaluated(
                pa.nulls(rows, node.returns.type),
                pa.array([True] * rows, pa.bool_()),
                _reason(node, error),
            )
    found = [_by_column(node, [array.slice(index, 1) for array in arrays], 1) for index in range(rows)]
    bad = pa.array([one.errors is not None for one in found], pa.bool_())
    reason = next((one.reason for one in found if one.reason), "")
    return masked(pa.concat_arrays([one.values for one in found]), bad, reason)


def _reason(node: Udf, error: BaseException | None) -> str:
    return "" if error is None else told(error, node.function, before=f"{node.name}() failed: ")


def _call_arrays(node: Udf, arrays: list[pa.Array], rows: int) -> pa.Array:
    found = node.function(*arrays)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array):
        raise RowError(f"expected an Arrow array, and found {type(found).__name__}")
    if len(found) != rows:
        raise RowError(f"expected {rows} values, one per row, and found {len(found)}")
    return found if found.type == node.returns.type else found.cast(node.returns.type)
