"""What each function computes: Arrow kernels with the meaning of Spark's ANSI SQL.

A kernel gets the typed node, the values of its arguments (arrays, or scalars for literals; at least one is an
array) in the types that `resolve` promised, and the number of rows. It returns values and the rows that are
bad.

1. Null in, null out, except where SQL says otherwise (is null, coalesce, least, and/or).
2. Integers never wrap: the checked kernel runs first, and only if it raises are the bad rows looked for.
3. NaN equals NaN and is greater than any other number, as in Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.casts import round_decimal
from penstock.expr.moments import duration_us
from penstock.expr.promote import Typed
from penstock.expr.regex import java_pattern, named_group
from penstock.expr.rowwise import Evaluated, fit_decimal, fit_integer, masked, slowly, with_errors, within_calendar
from penstock.expr.time_formats import time_format

__all__ = ["KERNELS", "broadcast"]

Kernel = Callable[[Typed, list[Any], int], Evaluated]
_MARKS = ["\x1f\x1e" + "\x1d" * more for more in range(1000)]
"""Texts of which one does not occur in a batch, to stand for the places where another was split."""


def broadcast(value: Any, rows: int) -> pa.Array:
    """A scalar as an array of `rows` equal values; an array as it is."""
    if isinstance(value, pa.Array):
        return value
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _checked(name: str, python: Callable[[Any, Any], Any]) -> Kernel:
    """+ - * of integers, doubles, decimals, and of moments and durations, which are integers inside."""
    checked = getattr(pc, f"{name}_checked")

    def kernel(typed: Typed, args: list[Any], rows: int) -> Evaluated:
        if pa.types.is_decimal(typed.type):
            return _decimal(typed, args, rows, checked, python)
        target = pa.int64() if pa.types.is_temporal(typed.type) else typed.type
        numbers = [arg.cast(target) if pa.types.is_temporal(arg.type) else arg for arg in args]
        try:
            found = Evaluated(checked(*numbers))
        except pa.ArrowInvalid:
            found = slowly(
                lambda a, b: fit_integer(python(a, b), target),
                numbers,
                target,
                rows,
                f"overflow in {typed.text}",
            )
        return found if found.values.type == typed.type else Evaluated(found.values.cast(typed.type), found.errors, found.reason)

    return kernel


def _decimal(typed: Typed, args: list[Any], rows: int, checked: Any, python: Callable[[Any, Any], Any]) -> Evaluated:
    reason = f"overflow in {typed.text}"
    try:
        # 256 bits hold the exact result of nearly all operands; then it is rounded once.
        wide = [arg.cast(pa.decimal256(arg.type.precision, arg.type.scale)) for arg in args]
        return round_decimal(checked(*wide), typed.type, reason)
    except pa.ArrowInvalid:
        return slowly(lambda a, b: _exact_decimal(python, a, b, typed.type), args, typed.type, rows, reason)


def _exact_decimal(python: Callable[[Any, Any], Any], left: Decimal, right: Decimal, found: pa.DataType) -> Decimal:
    with localcontext(prec=200):
        return fit_decimal(python(left, right), found)


def _divide(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    if isinstance(args[1], pa.Scalar) and args[1].as_py():  # by a number that is not zero nothing fails
        return Evaluated(pc.divide(*args))
    return masked(
        pc.divide(*args),
        pc.and_(pc.is_valid(args[0]), pc.equal(args[1], 0.0)),
        f"division by zero in {typed.text}",
    )


def _div(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    try:
        return Evaluated(pc.divide_checked(*args))
    except pa.ArrowInvalid:

        def divide(left: int, right: int) -> int:
            whole = abs(left) // abs(right)
            return fit_integer(whole if (left < 0) == (right < 0) else -whole, pa.int64())

        return slowly(divide, args, typed.type, rows, f"division by zero or overflow in {typed.text}")


def _modulo(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    reason = f"division by zero in {typed.text}"
    if pa.types.is_decimal(typed.type):
        return slowly(lambda a, b: _exact_decimal(operator.mod, a, b, typed.type), args, typed.type, rows, reason)
    arrays = [broadcast(arg, rows) for arg in args]
    valid = pc.and_(pc.is_valid(arrays[0]), pc.is_valid(arrays[1]))
    # numpy's fmod has the sign of the dividend, like SQL's %. It knows neither nulls nor errors, so those
    # rows
    # compute something harmless first and are masked after.
    zero, one = (pa.scalar(value, pa.int8()).cast(typed.type) for value in (0, 1))
    by_zero = pc.fill_null(pc.equal(arrays[1], zero), False)
    divisor = pc.if_else(by_zero, one, pc.fill_null(arrays[1], one))
    dividend = pc.fill_null(arrays[0], one).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):  # the rest of an infinite number is NaN, in SQL too
        rest = pa.array(np.fmod(dividend, divisor.to_numpy(zero_copy_only=False)), typed.type)
    values = pc.if_else(valid, rest, pa.scalar(None, typed.type))
    return masked(values, pc.and_(valid, by_zero), reason)


def _negate(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    if not pa.types.is_integer(typed.type):
        return Evaluated(pc.negate(args[0]).cast(typed.type))
    try:
        return Evaluated(pc.negate_checked(args[0]))
    except pa.ArrowInvalid:
        return slowly(lambda v: fit_integer(-v, typed.type), args, typed.type, rows, f"overflow in {typed.text}")


def _has_nan(value: Any) -> bool:
    if not pa.types.is_floating(value.type):
        return False
    if isinstance(value, pa.Scalar):
        return bool(value.as_py() != value.as_py())  # which no other number is
    if not value.null_count:
        return bool(np.isnan(value.to_numpy()).any())
    return bool(pc.any(pc.is_nan(value)).as_py())


def _equal(left: Any, right: Any) -> Any:
    plain = pc.equal(left, right)
    if not (_has_nan(left) and _has_nan(right)):
        return plain
    return pc.or_(plain, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Any, right: Any) -> Any:
    plain = pc.less(left, right)
    if not _has_nan(right):
        return plain
    return pc.or_(plain, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _less_equal(left: Any, right: Any) -> Any:
    return pc.invert(_less(right, left)) if pa.types.is_floating(left.type) else pc.less_equal(left, right)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": _equal,
    "not_equal": lambda left, right: pc.invert(_equal(left, right)),
    "less": _less,
    "less_equal": _less_equal,
    "greater": lambda left, right: _less(right, left),
    "greater_equal": lambda left, right: _less_equal(right, left),
}


def _compare(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    if pa.types.is_null(args[0].type):
        return Evaluated(pa.nulls(rows, pa.bool_()))
    return Evaluated(_COMPARISONS[typed.function](*args))


def _between(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    value, low, high = args
    return Evaluated(pc.and_kleene(pc.invert(_less(value, low)), pc.invert(_less(high, value))))


def _same(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    """SQL's <=>: equal, or both null. Never null itself."""
    left, right = (broadcast(arg, rows) for arg in args)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    if pa.types.is_null(left.type):
        return Evaluated(both_null)
    return Evaluated(pc.or_(both_null, pc.fill_null(_equal(left, right), False)))


def _is_in(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    value = broadcast(args[0], rows)
    known = [arg for arg in args[1:] if arg.is_valid]
    if pa.types.is_floating(value.type):  # of which two are zero
        value, known = pc.add(value, 0.0).cast(value.type), [pc.add(arg, 0.0) for arg in known]
    found = pc.is_in(value, value_set=pa.array([arg.as_py() for arg in known], value.type))
    # "x in (1, null)" is unknown, not false, where x is not 1.
    unknown = pc.is_null(value) if len(known) == len(args) - 1 else pc.invert(found)
    return Evaluated(pc.if_else(unknown, pa.scalar(None, pa.bool_()), found))


def _extreme(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    beats = _COMPARISONS["less" if typed.function == "least" else "greater"]

    def better(best: Any, value: Any) -> Any:
        return pc.coalesce(pc.if_else(beats(value, best), value, best), best, value)

    return Evaluated(reduce(better, [broadcast(arg, rows) for arg in args]))


def _concat(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    return Evaluated(pc.binary_join_element_wise(*args, pa.scalar("")))


_LONGER = r"[\x{DF}\x{130}\x{149}\x{1F0}\x{390}\x{3A3}\x{3B0}\x{587}\x{1E96}-\x{1E9E}\x{1F50}-\x{1FFC}\x{FB00}-\x{FB17}]"
"""Letters of which one in the other case is several, as ß and SS, or depends on its place, as Σ."""
_UPPER = {ord(letter): letter.upper() for letter in map(chr, range(0xDF, 0xFB18)) if len(letter.upper()) > 1}


def _cased(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    values, lower = args[0], typed.function == "lower"
    longer = pc.fill_null(pc.match_substring_regex(values, _LONGER), False)
    if pc.any(longer).as_py():
        # Arrow knows newer letters than Python, so only what it does not do is done here, before it does the rest.
        prepared = [_lower_marks(text) if lower else text.translate(_UPPER) for text in values.filter(longer).to_pylist()]
        values = pc.replace_with_mask(values, longer, pa.array(prepared, pa.string()))
    return Evaluated((pc.utf8_lower if lower else pc.utf8_upper)(values))


def _lower_marks(text: str) -> str:
    """The letters in lower case that are two then, or that are another at the end of a word."""
    text = text.replace("\u0130", "i\u0307")
    lower = text.lower()  # now as long as the text
    return "".join(low if letter == "\u03a3" else letter for letter, low in zip(text, lower, strict=True))


def _replace(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    old, new = typed.options
    # Arrow never ends where there is nothing to replace; as in Spark, nothing is replaced then.
    return Evaluated(pc.replace_substring(args[0], old, new) if old else args[0])


def _extract(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    found = pc.struct_field(pc.extract_regex(args[0], named_group(*typed.options)), "found")
    # As in Spark: "" where the pattern is not found, null only for null.
    return Evaluated(pc.if_else(pc.is_valid(args[0]), pc.fill_null(found, ""), found))


def _split(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    separator, is_pattern = typed.options
    values = args[0]
    if is_pattern:
        # Arrow's own split by a pattern never ends where that matches nothing between two characters; replacing does.
        between = next(mark for mark in _MARKS if not pc.any(pc.match_substring(values, mark)).as_py())
        values, separator = pc.replace_substring_regex(values, java_pattern(separator), between), between
    return Evaluated(pc.split_pattern(values, separator).cast(typed.type))


def _truncate(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    step = duration_us(typed.options[0])
    micros = args[0].cast(pa.int64())
    floored = pa.array(pc.fill_null(micros, 0).to_numpy() // step * step)
    return Evaluated(pc.if_else(pc.is_valid(micros), floored, pa.scalar(None, pa.int64())).cast(typed.type))


def _struct(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    arrays = [broadcast(arg, rows) for arg in args]
    arrays = [a if a.type == field.type else a.cast(field.type) for a, field in zip(arrays, typed.type)]  # dictionaries
    return Evaluated(pa.StructArray.from_arrays(arrays, fields=list(typed.type)))


def _field(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    # struct_field also gives null where the struct itself is null, unlike StructArray.field.
    return Evaluated(pc.struct_field(args[0], typed.options[0]))


def _get(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    value, key = args
    if pa.types.is_map(value.type):
        return Evaluated(_looked_up(value, key))
    index = broadcast(key, rows)
    valid = pc.and_(pc.is_valid(value), pc.is_valid(index))
    number = pc.fill_null(index, 0).to_numpy()
    return _element(typed, value, valid, number, number < 0)


def _looked_up(maps: Any, key: Any) -> Any:
    """The last value of this key, the same for all rows, in each map. Arrow's own lookup does not know numbers with a point."""
    if isinstance(key, pa.Array):  # a literal that was written as a cast
        key = key[0] if len(key) else pa.scalar(None, key.type)
    offsets = maps.offsets.to_numpy()
    found = pc.fill_null(_equal(maps.keys, key), False)
    places = np.flatnonzero(np.asarray(found))
    places = places[(places >= offsets[0]) & (places < offsets[-1])]
    last = np.full(len(maps), -1)
    last[np.searchsorted(offsets, places, side="right") - 1] = places
    missing = (last < 0) | np.asarray(maps.is_null())
    return maps.items.take(pa.array(last, pa.int64(), mask=missing))


def _element_at(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    value, index = args[0], broadcast(args[1], rows)
    valid = pc.and_(pc.is_valid(value), pc.is_valid(index))
    number = pc.fill_null(index, 0).to_numpy()
    length = np.diff(value.offsets.to_numpy())
    found = _element(typed, value, valid, np.where(number < 0, number + length, number - 1), number == 0)
    if typed.function == "element_at":
        return found
    # Zero is an error also where any other number is only a try.
    return masked(found.values, pc.and_(valid, pa.array(number == 0)), f"element 0 in {typed.text}, which counts from 1")


def _element(typed: Typed, value: Any, valid: Any, position: Any, never: Any) -> Evaluated:
    """The elements at these positions, from 0; bad where `valid` and there is none, or `never` one."""
    starts = value.offsets.to_numpy()
    inside = (position >= 0) & (position < np.diff(starts)) & ~never
    bad = pc.and_(valid, pa.array(~inside))
    taken = pc.if_else(
        pc.and_(valid, pa.array(inside)),
        pa.array(starts[:-1] + position, pa.int64()),
        pa.scalar(None, pa.int64()),
    )
    return masked(value.values.take(taken), bad, f"no such element in {typed.text}")


def _floor(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    """Down to a unit of the calendar. Weeks begin on Mondays."""
    plain = args[0].cast(pa.timestamp("us"))
    return Evaluated(pc.floor_temporal(plain, unit=typed.options[0], week_starts_monday=True).cast(typed.type))


def _by_format(typed: Typed, args: list[Any], rows: int) -> Evaluated:
    found = time_format(typed.function, typed.options[0]).parse(args[0], f"a text that is not as {typed.text} says")
    if pa.types.is_date(typed.type):
        return Evaluated(
            pc.floor_temporal(found.values.cast(pa.timestamp("us")), unit="day").cast(typed.type), found.errors, found.reason
        )
    return Evaluated(found.values.cast(typed.type), found.errors, found.reason)


def _arrow(function: Callable[..., Any], *names: str) -> Kernel:
    """An Arrow kernel of one argument, with the node's options under these names, cast to the node's type."""

    def kernel(typed: Typed, args: list[Any], rows: int) -> Evaluated:
        return Evaluated(function(args[0], **dict(zip(names, typed.options, strict=True))).cast(typed.type))

    return kernel


def _of_times(kernel: Kernel) -> Kernel:
    """A kernel that takes or makes times: of which none is outside of the calendar, also not one that a source brought."""

    def checked(typed: Typed, args: list[Any], rows: int) -> Evaluated:
        inputs = [within_calendar(Evaluated(arg)) if isinstance(arg, pa.Array) else Evaluated(arg) for arg in args]
        return with_errors(within_calendar(kernel(typed, [found.values for found in inputs], rows)), inputs)

    return checked


KERNELS: dict[str, Kernel] = {
    "add": _of_times(_checked("add", operator.add)),
    "subtract": _of_times(_checked("subtract", operator.sub)),
    "multiply": _checked("multiply", operator.mul),
    "divide": _divide,
    "div": _div,
    "modulo": _modulo,
    "negate": _negate,
    **dict.fromkeys(_COMPARISONS, _compare),
    "between": _between,
    "same": _same,
    "is_in": _is_in,
    "not": _arrow(pc.invert),
    "is_null": _arrow(pc.is_null),
    "is_not_null": _arrow(pc.is_valid),
    "least": _extreme,
    "greatest": _extreme,
    "concat": _concat,
    "lower": _cased,
    "upper": _cased,
    "trim": _arrow(lambda value: pc.utf8_trim(value, " ")),
    "length": _arrow(pc.utf8_length),
    "contains": _arrow(pc.match_substring, "pattern"),
    "starts_with": _arrow(pc.starts_with, "pattern"),
    "ends_with": _arrow(pc.ends_with, "pattern"),
    "replace": _replace,
    "extract": _extract,
    "split": _split,
    "truncate": _of_times(_truncate),
    **{part: _of_times(_arrow(getattr(pc, part))) for part in ("year", "month", "day", "hour", "minute", "second")},
    "struct": _struct,
    "field": _field,
    "get": _get,
    "element_at": _element_at,
    "try_element_at": _element_at,
    "date_trunc": _of_times(_floor),
    "trunc": _of_times(_floor),
    "to_date": _of_times(_by_format),
    "to_timestamp": _of_times(_by_format),
}
