"""Casts, as Spark's ANSI mode defines them: what the target cannot hold is an error of its row, not a guess.

1. Fractions are cut towards zero on the way to an integer; decimals are rounded half up to their scale.
2. Text may have blanks around it; "1.5" is no integer. Text without a zone is UTC.
3. A number as a timestamp is in seconds since 1970, and back. No time is outside of the years 0001 to 9999.
4. Doubles print as Java prints them ("1.0", "1.0E10"), so that every runner writes the same text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.inside import can_cast_inside, cast_inside
from penstock.expr.rowwise import (
    Evaluated,
    fit_decimal,
    fit_integer,
    masked,
    slowly,
    slowly_by_kernel,
    with_errors,
    within_calendar,
)
from penstock.expr.time_texts import BLANKS, days_of_text, micros_of_text
from penstock.schema import type_name

__all__ = ["can_cast", "cast", "round_decimal"]

_SECOND_US = 1_000_000
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_ANY_DECIMAL = re.compile(_DECIMAL.pattern.replace("[0-9]", r"\d"), re.IGNORECASE)  # Java reads all digits of Unicode here
_HEX_FLOAT = re.compile(r"[+-]?0x([0-9a-f]+\.?|[0-9a-f]*\.[0-9a-f]+)p[+-]?[0-9]+", re.IGNORECASE)
_WORDS = re.compile(r"[+-]?(?:NaN|Infinity)|(?i:[+-]?(?:inf|infinity)|nan)")
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}

_NUMBERS = {"integer", "float", "decimal"}

Kernel = Callable[[pa.Array, pa.DataType], Evaluated]


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether any value of `source` could become one of `target`; which do is known row by row."""
    if pa.types.is_dictionary(source):
        source = source.value_type
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_fixed_size_list(source) or pa.types.is_large_list(source):
        source = pa.list_(source.value_field)
    inside = can_cast_inside(source, target, can_cast)
    if inside is not None:
        return inside
    # A number is a moment of UTC, so a clock without a zone is none.
    if {_kind(source), _kind(target)} & _NUMBERS and any(
        pa.types.is_timestamp(each) and each.tz is None for each in (source, target)
    ):
        return False
    return (_kind(source), _kind(target)) in _CASTS


def cast(array: pa.Array, target: pa.DataType, *, attempt: bool = False) -> Evaluated:
    """`array` as `target`; rows that cannot be are bad, or null if it is an attempt. The same goes for the elements of lists."""
    found = _cast(array, target, attempt)
    return Evaluated(found.values) if attempt else found


def _cast(array: pa.Array, target: pa.DataType, attempt: bool) -> Evaluated:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == target:
        return Evaluated(array)
    if pa.types.is_null(array.type):
        return Evaluated(pa.nulls(len(array), target))
    if pa.types.is_fixed_size_list(array.type) or pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    if can_cast_inside(array.type, target, can_cast) is not None:
        return cast_inside(array, target, functools.partial(cast, attempt=attempt))
    source = within_calendar(Evaluated(array))
    return with_errors(within_calendar(_CASTS[_kind(array.type), _kind(target)](source.values, target)), [source])


def _kind(found: pa.DataType) -> str:
    checks: list[tuple[str, Callable[[pa.DataType], bool]]] = [
        ("boolean", pa.types.is_boolean),
        ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        (
            "text",
            lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
        ),
        ("binary", lambda t: "binary" in str(t)),
        ("date", pa.types.is_date),
        ("timestamp", pa.types.is_timestamp),
        ("duration", pa.types.is_duration),
        (
            "list",
            lambda t: pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t),
        ),
    ]
    return next((kind for kind, check in checks if check(found)), str(found))


def _reason(array: pa.Array, target: pa.DataType) -> str:
    return f"a {type_name(array.type)} that is no {type_name(target)}"


def _arrow(array: pa.Array, target: pa.DataType) -> Evaluated:
    """Arrow's own cast where it means the same; row by row where it fails."""
    try:
        return Evaluated(array.cast(target))
    except pa.ArrowInvalid:
        return slowly_by_kernel(lambda row: row.cast(target), array, target, _reason(array, target))


def _loosely(array: pa.Array, target: pa.DataType) -> Evaluated:
    """A number as a double: the nearest one, as everywhere in SQL."""
    return Evaluated(array.cast(target, safe=False))


def _to_integer(array: pa.Array, target: pa.DataType) -> Evaluated:
    try:
        return Evaluated(array.cast(target))
    except pa.ArrowInvalid:
        return slowly(lambda v: fit_integer(v, target), [array], target, len(array), _reason(array, target))


def _float_to_integer(array: pa.Array, target: pa.DataType) -> Evaluated:
    whole = pc.trunc(array.cast(pa.float64(), safe=False))
    bound = 2.0 ** (target.bit_width - 1)
    # A NaN fails both comparisons, so it is not good; a null stays null.
    good = pc.and_(pc.greater_equal(whole, -bound), pc.less(whole, bound))
    if target.bit_width == 64:
        # The greatest bigint is no double: to Spark the next one, 2^63, is it.
        edge = pc.equal(whole, bound)
        if pc.any(edge).as_py():
            rest = _float_to_integer(pc.if_else(edge, 0.0, whole), target)
            return Evaluated(pc.if_else(edge, pa.scalar(2**63 - 1, target), rest.values), rest.errors, rest.reason)
    checked = masked(whole, pc.invert(good), _reason(array, target))
    return Evaluated(checked.values.cast(target, safe=False), checked.errors, checked.reason)


def _decimal_to_integer(array: pa.Array, target: pa.DataType) -> Evaluated:
    return slowly(lambda v: fit_integer(int(v), target), [array], target, len(array), _reason(array, target))


def round_decimal(array: pa.Array, target: pa.DataType, reason: str) -> Evaluated:
    """A decimal (also of 256 bits) as `target`: rounded half up, bad where it does not fit."""
    try:
        rounded = pc.round(array, target.scale, "half_towards_infinity") if array.type.scale > target.scale else array
        return Evaluated(rounded.cast(target))
    except pa.ArrowInvalid:
        return slowly(lambda v: fit_decimal(v, target), [array], target, len(array), reason)


def _decimal_to_float(array: pa.Array, target: pa.DataType) -> Evaluated:
    # Arrow's own cast multiplies, and is off by a digit: 1.38 becomes 1.3800000000000001.
    if target == pa.float64() and array.type.precision <= 15 and len(array):
        # Such a number and such a power of ten are doubles, so that their quotient is rounded once.
        halves = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array)) : 2]
        numbers = pa.array(halves / 10.0**array.type.scale)
        return Evaluated(pc.if_else(array.is_valid(), numbers, pa.scalar(None, target)) if array.null_count else numbers)
    return Evaluated(array.cast(pa.string()).cast(target))


def _decimal_to_decimal(array: pa.Array, target: pa.DataType) -> Evaluated:
    return round_decimal(array, target, _reason(array, target))


def _integer_to_decimal(array: pa.Array, target: pa.DataType) -> Evaluated:
    return round_decimal(array.cast(pa.int64()).cast(pa.decimal128(19, 0)), target, _reason(array, target))


def _float_to_decimal(array: pa.Array, target: pa.DataType) -> Evaluated:
    # As in Spark, what is no number is null, not an error. A float is the decimal that it says as a double.
    wide = array.cast(pa.float64())
    finite = pc.if_else(pc.is_finite(wide), wide, pa.scalar(None, wide.type))
    text = _float_to_text(finite, pa.string()).values
    return slowly(lambda v: fit_decimal(Decimal(v), target), [text], target, len(array), _reason(array, target))


def _to_boolean(array: pa.Array, target: pa.DataType) -> Evaluated:
    return Evaluated(pc.not_equal(array, pa.scalar(0, pa.int8()).cast(array.type)))


def _boolean_to_decimal(array: pa.Array, target: pa.DataType) -> Evaluated:
    return _integer_to_decimal(array.cast(pa.int64()), target)


def _text_to_integer(array: pa.Array, target: pa.DataType) -> Evaluated:
    try:
        if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():  # Arrow would read 0x10 as 16.
            return Evaluated(array.cast(target))
    except pa.ArrowInvalid:
        pass

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text.strip(BLANKS)):
            raise ValueError(text)
        return fit_integer(int(text.strip(BLANKS)), target)

    return slowly(parse, [array], target, len(array), _reason(array, target))


def _parse_float(text: str) -> str:
    """The number that Java reads in a text, in Arrow's words: with 1.5f and 0x1p3, and without 1_000."""
    text = text.strip(BLANKS)
    if _WORDS.fullmatch(text):
        return text.lower().removeprefix("+").replace("-nan", "nan")
    number = text[:-1] if text[-1:] in tuple("fFdD") else text
    if _DECIMAL.fullmatch(number):
        return number.removeprefix("+")
    if _HEX_FLOAT.fullmatch(number):
        return repr(float.fromhex(number))
    raise ValueError(text)


def _text_to_float(array: pa.Array, target: pa.DataType) -> Evaluated:
    try:
        if not pc.any(pc.match_substring(array, "n", ignore_case=True)).as_py():  # Arrow has more words for NaN than Java.
            return Evaluated(array.cast(target))
    except pa.ArrowInvalid:
        pass
    found = slowly(_parse_float, [array], pa.string(), len(array), _reason(array, target))
    return Evaluated(found.values.cast(target), found.errors, found.reason)


def _text_to_decimal(array: pa.Array, target: pa.DataType) -> Evaluated:
    def parse(text: str) -> Decimal:
        if not _ANY_DECIMAL.fullmatch(text.strip(BLANKS)):
            raise ValueError(text)
        return fit_decimal(Decimal(text.strip(BLANKS)), target)

    return slowly(parse, [array], target, len(array), _reason(array, target))


def _text_to_boolean(array: pa.Array, target: pa.DataType) -> Evaluated:
    def parse(text: str) -> bool:
        word = text.strip(BLANKS).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(text)
        return word in _TRUE

    return slowly(parse, [array], target, len(array), _reason(array, target))


def _text_to_date(array: pa.Array, target: pa.DataType) -> Evaluated:
    try:
        return Evaluated(array.cast(target))
    except pa.ArrowInvalid:
        found = slowly(days_of_text, [array], pa.int32(), len(array), _reason(array, target))
        return Evaluated(found.values.cast(target), found.errors, found.reason)


def _text_to_timestamp(array: pa.Array, target: pa.DataType) -> Evaluated:
    # Arrow reads more forms than Spark, and wants to know whether texts have zones. What it reads in the same way is asked for first.
    for end, zone in (("$", None), ("Z$", "UTC")):
        try:
            if (target.tz or zone is None) and pc.all(pc.match_substring_regex(array, _PLAIN_TIME + end)).as_py():
                return Evaluated(array.cast(pa.timestamp("us", tz=zone)).cast(target))
        except pa.ArrowInvalid:
            break
    zoned = target.tz is not None
    found = slowly(lambda text: micros_of_text(text, zoned=zoned), [array], pa.int64(), len(array), _reason(array, target))
    return Evaluated(found.values.cast(target), found.errors, found.reason)


def _integer_to_timestamp(array: pa.Array, target: pa.DataType) -> Evaluated:
    def scale(seconds: int) -> int:
        return fit_integer(seconds * _SECOND_US, pa.int64())

    try:
        micros = Evaluated(pc.multiply_checked(array.cast(pa.int64()), _SECOND_US))
    except pa.ArrowInvalid:
        micros = slowly(scale, [array], pa.int64(), len(array), _reason(array, target))
    return Evaluated(micros.values.cast(target), micros.errors, micros.reason)


def _float_to_timestamp(array: pa.Array, target: pa.DataType) -> Evaluated:
    micros = _float_to_integer(pc.multiply(array.cast(pa.float64()), float(_SECOND_US)), pa.int64())
    return Evaluated(micros.values.cast(target), micros.errors, micros.reason)


def _micros(array: pa.Array) -> pa.Array:
    return _timestamp_to_timestamp(array, pa.timestamp("us", tz=array.type.tz)).values.cast(pa.int64())


def _timestamp_to_integer(array: pa.Array, target: pa.DataType) -> Evaluated:
    micros = _micros(array)
    seconds = pa.array(pc.fill_null(micros, 0).to_numpy() // _SECOND_US)
    return _to_integer(pc.if_else(pc.is_valid(micros), seconds, pa.scalar(None, pa.int64())), target)


def _timestamp_to_float(array: pa.Array, target: pa.DataType) -> Evaluated:
    return Evaluated(pc.divide(_micros(array).cast(pa.float64(), safe=False), float(_SECOND_US)).cast(target, safe=False))


def _timestamp_to_timestamp(array: pa.Array, target: pa.DataType) -> Evaluated:
    if array.type.unit == "ns" and target.unit != "ns":
        # Arrow's cast cuts towards 1970; what came before it must go down, too.
        array = pc.floor_temporal(array, unit="microsecond").cast(pa.timestamp("us", tz=array.type.tz), safe=False)
    return _arrow(array, target)


def _timestamp_to_text(array: pa.Array, target: pa.DataType) -> Evaluated:
    text = pc.strftime(_micros(array).cast(pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    text = pc.replace_substring_regex(text, r"(\.\d*[1-9])0+$", r"\1")
    return Evaluated(pc.replace_substring_regex(text, r"\.0+$", ""))


def _timestamp_to_date(array: pa.Array, target: pa.DataType) -> Evaluated:
    return Evaluated(pc.floor_temporal(_micros(array).cast(pa.timestamp("us")), unit="day").cast(target))


def _java_text(value: Any) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, unique=True, trim="0"))
    mantissa, exponent = np.format_float_scientific(value, unique=True, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"


def _float_to_text(array: pa.Array, target: pa.DataType) -> Evaluated:
    precise = np.float32 if pa.types.is_float32(array.type) else np.float64
    return slowly(lambda v: _java_text(precise(v)), [array], target, len(array), "")


def _decimal_to_text(array: pa.Array, target: pa.DataType) -> Evaluated:
    return slowly(lambda v: format(v, "f"), [array], target, len(array), "")


_CASTS: dict[tuple[str, str], Kernel] = {
    ("boolean", "integer"): _arrow,
    ("boolean", "float"): _arrow,
    ("boolean", "decimal"): _boolean_to_decimal,
    ("boolean", "text"): _arrow,
    ("integer", "boolean"): _to_boolean,
    ("integer", "integer"): _to_integer,
    ("integer", "float"): _loosely,
    ("integer", "decimal"): _integer_to_decimal,
    ("integer", "timestamp"): _integer_to_timestamp,
    ("integer", "text"): _arrow,
    ("float", "boolean"): _to_boolean,
    ("float", "integer"): _float_to_integer,
    ("float", "float"): _loosely,
    ("float", "decimal"): _float_to_decimal,
    ("float", "timestamp"): _float_to_timestamp,
    ("float", "text"): _float_to_text,
    ("decimal", "boolean"): _to_boolean,
    ("decimal", "integer"): _decimal_to_integer,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "text"): _decimal_to_text,
    ("text", "boolean"): _text_to_boolean,
    ("text", "integer"): _text_to_integer,
    ("text", "float"): _text_to_float,
    ("text", "decimal"): _text_to_decimal,
    ("text", "date"): _text_to_date,
    ("text", "timestamp"): _text_to_timestamp,
    ("text", "text"): _arrow,
    ("text", "binary"): _arrow,
    ("binary", "text"): _arrow,
    ("binary", "binary"): _arrow,
    ("date", "date"): _arrow,
    ("date", "timestamp"): _arrow,
    ("date", "text"): _arrow,
    ("timestamp", "integer"): _timestamp_to_integer,
    ("timestamp", "float"): _timestamp_to_float,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "timestamp"): _timestamp_to_timestamp,
    ("timestamp", "text"): _timestamp_to_text,
    ("duration", "duration"): _arrow,
    ("list", "list"): _arrow,
}
