"""Which type several values have in common, and how a value gets there.

The rules are Spark's under ANSI, with one addition for Python's literals.

1. Integers widen to the wider one; an integer with a float is a double; with a decimal, a decimal.
2. Text and numbers have nothing in common: that is an error of the plan, with a cast as the fix.
3. A literal bends to its neighbour. `col("n") + 1` keeps the type of n if 1 fits in it, and `col("at") >
   "2026-01-01"` reads the text as a time once, when the plan is made.
4. Arrow knows more types than Spark (unsigned, dictionaries, views, nanoseconds). `working_type` says which
   of the few types that functions compute with stands for each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.expr.moments import parse_date, parse_timestamp
from penstock.schema import type_name

__all__ = [
    "TIMESTAMP",
    "Typed",
    "coerce",
    "common_type",
    "decimal_result",
    "is_numeric",
    "to_decimal_type",
    "unify",
    "working",
    "working_type",
]

TIMESTAMP = pa.timestamp("us", tz="UTC")

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


@dataclass(frozen=True)
class Typed:
    """A node of which everything is known: the kernel to run, its type, and whether it may be null."""

    function: str
    type: pa.DataType
    nullable: bool
    args: tuple[Typed, ...]
    options: tuple[Any, ...]
    text: str

    @property
    def is_literal(self) -> bool:
        return self.function == "literal"

    @functools.cached_property
    def scalar(self) -> pa.Scalar:
        """Of a literal: its value, made once and not for each batch."""
        return pa.scalar(self.options[0], self.type)


def working_type(found: pa.DataType) -> pa.DataType:
    """The type that functions compute with for values of this one."""
    is_ = pa.types
    if is_.is_dictionary(found):
        return working_type(found.value_type)
    if is_.is_large_string(found) or is_.is_string_view(found):
        return pa.string()
    if is_.is_large_binary(found) or is_.is_fixed_size_binary(found) or is_.is_binary_view(found):
        return pa.binary()
    if is_.is_unsigned_integer(found):
        # 64 unsigned bits have no wider integer: a value beyond bigint is an error of its row.
        return {8: pa.int16(), 16: pa.int32()}.get(found.bit_width, pa.int64())
    if is_.is_float16(found):
        return pa.float32()
    if is_.is_timestamp(found):
        return TIMESTAMP if found.tz is not None else pa.timestamp("us")
    if is_.is_duration(found):
        return pa.duration("us")
    if is_.is_date(found):
        return pa.date32()
    if is_.is_decimal(found):
        precision = min(found.precision, 38)
        return pa.decimal128(precision, min(found.scale, precision))
    if is_.is_large_list(found) or is_.is_fixed_size_list(found):
        return pa.list_(found.value_field)
    return found


def working(typed: Typed) -> Typed:
    """The same value in its working type."""
    return coerce(typed, working_type(typed.type))


def is_numeric(found: pa.DataType) -> bool:
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None where there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right)
    if pa.types.is_date(left) and right == TIMESTAMP:
        return right
    if pa.types.is_date(right) and left == TIMESTAMP:
        return left
    return None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return left if left.bit_width >= right.bit_width else right
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    a, b = to_decimal_type(left), to_decimal_type(right)
    scale = max(a.scale, b.scale)
    return _bounded(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def to_decimal_type(found: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer type; a decimal is its own."""
    return found if pa.types.is_decimal(found) else pa.decimal128(_DIGITS[found], 0)


def decimal_result(function: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The decimal type of `left function right`, by Spark's rules: digits before the point come first."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    scale = max(s1, s2)
    match function:
        case "multiply":
            return _bounded(p1 + p2 + 1, s1 + s2)
        case "modulo":
            return _bounded(max(min(p1 - s1, p2 - s2) + scale, 1), scale)
        case _:
            return _bounded(max(p1 - s1, p2 - s2) + scale + 1, scale)


def _bounded(precision: int, scale: int) -> pa.DataType:
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.decimal128(38, max(38 - (precision - scale), min(scale, 6)))


def unify(args: Sequence[Typed]) -> pa.DataType | None:
    """The type that all of `args` share; literals bend to the others. None where there is none."""
    found: pa.DataType | None = None
    for arg in args:
        if not arg.is_literal:
            found = arg.type if found is None else common_type(found, arg.type)
            if found is None:
                return None
    for arg in args:
        if arg.is_literal:
            found = arg.type if found is None else _with_literal(found, arg)
            if found is None:
                return None
    return found


def _with_literal(found: pa.DataType, arg: Typed) -> pa.DataType | None:
    value = arg.options[0]
    if isinstance(value, int) and not isinstance(value, bool):
        if pa.types.is_integer(found):
            return found if -(2 ** (found.bit_width - 1)) <= value < 2 ** (found.bit_width - 1) else arg.type
        if pa.types.is_floating(found):
            return found
        if pa.types.is_decimal(found):
            return common_type(found, pa.decimal128(len(str(abs(value))), 0))
    if isinstance(value, str) and (pa.types.is_date(found) or pa.types.is_timestamp(found)):
        return found
    return common_type(found, arg.type)


def coerce(typed: Typed, target: pa.DataType) -> Typed:
    """`typed` as `target`. A literal is converted now; anything else by a cast when it runs."""
    if typed.type == target:
        return typed
    if typed.is_literal:
        return replace(typed, type=target, options=(_convert_literal(typed.options[0], target),))
    return Typed("cast", target, typed.nullable, (typed,), (False,), typed.text)


def _convert_literal(value: Any, target: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_floating(target):
        return float(value)
    if pa.types.is_decimal(target):
        return Decimal(value)
    if pa.types.is_timestamp(target):
        return _literal_timestamp(value, target)
    if pa.types.is_date(target) and isinstance(value, str):
        parsed = parse_date(value)
        if parsed is None:
            raise PlanError(f"{value!r} is not a date", fix=Fix("literal.date", "Write: '2026-01-31'"))
        return parsed
    return value


def _literal_timestamp(value: Any, target: pa.DataType) -> datetime:
    if isinstance(value, str):
        parsed = parse_timestamp(value)
        if parsed is None:
            raise PlanError(
                f"{value!r} is not a {type_name(target)}",
                fix=Fix("literal.timestamp", "Without a zone it is UTC. Write: '2026-01-31 12:00:00'"),
            )
        return parsed if target.tz is not None else parsed.replace(tzinfo=None)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time(), tzinfo=UTC if target.tz is not None else None)
    assert isinstance(value, datetime), f"a {type(value).__name__} was unified with a timestamp"
    return value
