"""Results with row errors, and the slow path that finds them.

A kernel computes a whole array at once. Where it fails (an overflow, a text that is no number), only some
rows are to blame, and the others must not suffer. So every kernel has two ways: a fast one that assumes no
row is bad, and, if that fails, `slowly`, which computes row by row in Python and marks the bad ones.

1. A bad row has null in `values` and True in `errors`. Other rows are what they would have been without it.
2. `errors` is None when no row is bad, which is nearly always; it never holds nulls.
3. A date or a timestamp outside of the years 0001 to 9999 is bad, whatever made it: Python has no object for it, Arrow's functions
   of the calendar wrap around somewhere beyond, and most of them are milliseconds that were taken for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "Evaluated",
    "either",
    "fit_decimal",
    "fit_integer",
    "masked",
    "slowly",
    "slowly_by_kernel",
    "with_errors",
    "within_calendar",
]


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


@dataclass(frozen=True)
class Evaluated:
    """The value of an expression for each row of a batch, which rows are bad, and why the first is."""

    values: Any  # pa.Array, or pa.Scalar while inside an expression: the same value for every row
    errors: pa.BooleanArray | None = None
    reason: str | None = None


def either(left: pa.Array | None, right: pa.Array | None) -> pa.Array | None:
    """The rows that are bad in one or the other."""
    if left is None or right is None:
        return right if left is None else left
    return pc.or_(left, right)


def masked(values: pa.Array, bad: pa.Array, reason: str) -> Evaluated:
    """`values` without the rows in `bad`, which may hold nulls (a null is never bad)."""
    if not bad.true_count:
        return Evaluated(values)
    bad = pc.fill_null(bad, False)
    return Evaluated(pc.if_else(bad, pa.scalar(None, values.type), values), bad, reason)


def with_errors(result: Evaluated, inputs: Sequence[Evaluated]) -> Evaluated:
    """`result`, bad also where an input was."""
    errors, reason = result.errors, result.reason
    for found in inputs:
        errors = either(found.errors, errors)
        reason = found.reason or reason
    return Evaluated(result.values, errors, reason)


def within_calendar(found: Evaluated) -> Evaluated:
    """`found`, bad where it is a date or a timestamp outside of the years 0001 to 9999."""
    kind = found.values.type
    if pa.types.is_date32(kind):
        numbers, day = found.values.view(pa.int32()), 1
    elif pa.types.is_date64(kind):
        numbers, day = found.values.view(pa.int64()), _A_DAY["ms"]
    elif pa.types.is_timestamp(kind) and kind.unit in _A_DAY:  # nanoseconds end in the year 2262
        numbers, day = found.values.view(pa.int64()), _A_DAY[kind.unit]
    else:
        return found
    first, last = _FIRST_DAY * day, (_LAST_DAY + 1) * day - 1
    bounds = pc.min_max(numbers)
    if not bounds["min"].is_valid or (bounds["min"].as_py() >= first and bounds["max"].as_py() <= last):
        return found
    beyond = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    return with_errors(
        masked(
            found.values, beyond, f"a {'timestamp' if pa.types.is_timestamp(kind) else 'date'} outside of the years 0001 to 9999"
        ),
        [found],
    )


def slowly(function: Callable[..., Any], args: Sequence[Any], found: pa.DataType, rows: int, reason: str) -> Evaluated:
    """Apply `function` to each row without nulls; a row for which it raises is bad."""
    columns = [arg.to_pylist() if isinstance(arg, pa.Array) else [arg.as_py()] * rows for arg in args]
    values: list[Any] = [None] * rows
    bad = [False] * rows
    for index, row in enumerate(zip(*columns, strict=True)):
        if any(value is None for value in row):
            continue
        try:
            values[index] = function(*row)
        except (ArithmeticError, ValueError):
            bad[index] = True
    errors = pa.array(bad, pa.bool_()) if any(bad) else None
    return Evaluated(pa.array(values, found), errors, reason if errors is not None else None)


def slowly_by_kernel(kernel: Callable[[pa.Array], pa.Array], array: pa.Array, found: pa.DataType, reason: str) -> Evaluated:
    """Apply an Arrow kernel to each row by itself; a row for which it raises is bad."""
    pieces, bad = [], []
    for index in range(len(array)):
        try:
            pieces.append(kernel(array.slice(index, 1)))
            bad.append(False)
        except pa.ArrowInvalid:
            pieces.append(pa.nulls(1, found))
            bad.append(True)
    values = pa.concat_arrays(pieces) if pieces else pa.nulls(0, found)
    return masked(values, pa.array(bad, pa.bool_()), reason)


def fit_integer(value: int, found: pa.DataType) -> int:
    """`value`, if it fits in the integer type; an OverflowError otherwise."""
    bound = 1 << (found.bit_width - 1)
    if not -bound <= value < bound:
        raise OverflowError(value)
    return value


def fit_decimal(value: Decimal, found: pa.DataType) -> Decimal:
    """`value` rounded half up to the scale of the decimal type; an OverflowError if it is too large."""
    if not value.is_finite():
        raise OverflowError(value)
    with localcontext(prec=200):
        rounded = value.quantize(Decimal(1).scaleb(-found.scale), rounding=ROUND_HALF_UP)
        if abs(rounded) >= Decimal(10) ** (found.precision - found.scale):
            raise OverflowError(value)
    return rounded
