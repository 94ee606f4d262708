"""What to write where types do not fit: the cast that is enough, or the way to what is inside of a record, list or map.

A cast is proposed only where values of these types can be cast at all, and where the expression means something after it: numbers
as texts can be compared, and 10 comes before 9 then, so what is compared never becomes a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.errors import Fix
from penstock.expr.casts import can_cast
from penstock.expr.nodes import EVENT_TIME
from penstock.expr.promote import TIMESTAMP, Typed, is_numeric, unify, working_type
from penstock.schema import type_name

__all__ = ["as_numbers", "as_one_type", "casting", "clash", "inside"]

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?")

Cast = tuple[Typed, pa.DataType]
Fits = Callable[[list[Typed]], bool]


def casting(arg: Typed, target: pa.DataType) -> str:
    """How to get a value to its type: as a whole where its code is known, else what goes behind it."""
    cast, code = f'.cast("{type_name(target)}")', _code(arg)
    return f"Write: {code}{cast}" if code is not None else f"A cast goes behind {arg.text}. Write: {cast}"


def inside(found: pa.DataType, fits: Callable[[pa.DataType], bool]) -> str | None:
    """What leads to a value that fits, inside of a record, list or map, as code: `["city"]`. None if there is none."""
    if not pa.types.is_nested(found):
        return "" if fits(found) else None
    ways: list[tuple[str, pa.DataType]] = []
    if pa.types.is_struct(found):
        ways = [(f'["{field.name}"]', field.type) for field in found]
    elif pa.types.is_map(found):
        ways = [('["key"]', found.item_type)] if pa.types.is_string(found.key_type) else []
    elif pa.types.is_list(working_type(found)):
        ways = [("[0]", found.value_type)]
    deeper = ((way, inside(kind, fits)) for way, kind in ways)
    return next((way + rest for way, rest in deeper if rest is not None), None)


def clash(args: Sequence[Typed]) -> list[Typed]:
    """Two values that have no type in common."""
    return [args[0], next((arg for arg in args[1:] if unify([args[0], arg]) is None), args[-1])]


def as_one_type(args: Sequence[Typed], *, comparing: bool) -> Fix | None:
    """The change of one value after which all have a type in common; None if one is not enough."""
    code = _without_quotes(args)
    if code is not None:
        return Fix("expr.quotes", f"What stands in quotes is a text. Write: {code}")
    casts = [(arg, kind) for arg, kind in _swaps(clash(args)) if not (comparing and _would_be_text(arg, kind))]
    found = _first(args, casts, lambda tried: unify(tried) is not None)
    return Fix("expr.types", casting(*found)) if found else None


def _would_be_text(arg: Typed, target: pa.DataType) -> bool:
    return pa.types.is_string(target) and not pa.types.is_binary(arg.type)


def _without_quotes(args: Sequence[Typed]) -> str | None:
    """The constants that are texts, `'9'`, as what the other values are, `9`. None if they do not say that, or there are no others."""
    quoted = [arg for arg in args if arg.is_literal and pa.types.is_string(arg.type)]
    kind = unify([arg for arg in args if arg not in quoted])
    if not quoted or kind is None or all(arg.is_literal for arg in args):
        return None
    said = [_said(arg.options[0].strip().lower(), kind) for arg in quoted]
    return None if None in said else ", ".join(map(str, said))


def _said(text: str, kind: pa.DataType) -> str | None:
    """The number or boolean that a text says, as code."""
    if pa.types.is_boolean(kind):
        return text.capitalize() if text in ("true", "false") else None
    if pa.types.is_floating(kind) and text in ("nan", "infinity", "-infinity"):
        return f'pen.lit("{text}").cast("double")'
    if not is_numeric(kind) or not _NUMBER.fullmatch(text):
        return None
    number = int(text) if text.lstrip("+-").isdigit() else float(text)
    return repr(number) if abs(number) < 2**63 else None


def as_numbers(function: str, values: Sequence[Typed], is_temporal: Fits) -> Fix | None:
    """What makes arithmetic of two values that are not numbers as it needs them; None if nothing does.

    Args:
        is_temporal: whether the function takes these values as moments and durations.
    """
    number = _without_quotes(values)
    counted = not any(pa.types.is_boolean(value.type) for value in values)
    if number is not None and counted and (function != "div" or "." not in number):
        joined = _joined(values) if function == "add" else None
        return Fix(
            "expr.quoted-number", f"What stands in quotes is a text. Write: {number}" + (f", or {joined}" if joined else "")
        )
    whole = function == "div"
    likely = pa.int64() if whole else pa.float64()

    def counts(found: pa.DataType) -> bool:
        return pa.types.is_integer(found) if whole else is_numeric(found)

    def fits(tried: list[Typed]) -> bool:
        return all(counts(value.type) or pa.types.is_null(value.type) for value in tried) or is_temporal(tried)

    casts = [(arg, kind if counts(kind) else likely) for arg, kind in _swaps(values) if not counts(arg.type)]
    casts += [(arg, TIMESTAMP) for arg in values if pa.types.is_date(arg.type)]
    found = _first(values, casts, fits)
    if function == "add" and any(pa.types.is_string(value.type) for value in values):
        return _number_or_text(values, found)
    if found is not None:
        return Fix("expr.number", casting(*found))
    for target in (likely, TIMESTAMP):
        if all(can_cast(value.type, target) for value in values) and fits([_tried(value, target) for value in values]):
            return Fix("expr.both", f'A cast goes behind each of them. Write: .cast("{type_name(target)}")')
    return None


def _number_or_text(values: Sequence[Typed], cast: Cast | None) -> Fix | None:
    """For a sum of which a part is text: the cast that makes it one of numbers, or how text is joined."""
    if not all(can_cast(value.type, pa.string()) for value in values):
        return None
    joined = _joined(values)
    if cast is not None:
        return Fix("expr.number-or-text", casting(*cast) + (f", or {joined}" if joined else ""))
    sentence = f"Join text with pen.concat; in SQL it is concat({', '.join(value.text for value in values)})"
    return Fix("expr.concat", f"Write: {joined}" if joined else sentence)


def _joined(values: Sequence[Typed]) -> str | None:
    codes = [_code(value) for value in values]
    return None if None in codes else f"pen.concat({', '.join(map(str, codes))})"


def _code(arg: Typed) -> str | None:
    """A column or a simple constant as code; None for anything else, of which only the SQL is known."""
    while arg.function == "cast" and arg.text == arg.args[0].text:
        arg = arg.args[0]  # a cast that nobody wrote
    if arg.function == "column":
        return "pen.event_time()" if arg.options[0] == EVENT_TIME else f'col("{arg.options[0]}")'
    return f"pen.lit({arg.options[0]!r})" if arg.is_literal and isinstance(arg.options[0], bool | int | float | str) else None


def _swaps(values: Sequence[Typed]) -> list[Cast]:
    """Either of two as the type of the other. Text as something else comes before the reverse, and constants come last."""
    left, right = values
    return sorted(
        [(left, right.type), (right, left.type)], key=lambda cast: (cast[0].is_literal, not pa.types.is_string(cast[0].type))
    )


def _first(args: Sequence[Typed], casts: Sequence[Cast], fits: Fits) -> Cast | None:
    """The first of these casts that is enough. A text that stands in the program is not cast: its owner knows what it should say."""
    for cast in casts:
        arg, target = cast
        constant = arg.is_literal and pa.types.is_string(arg.type)
        if not constant and can_cast(arg.type, target) and fits([_tried(each, target) if each is arg else each for each in args]):
            return cast
    return None


def _tried(arg: Typed, target: pa.DataType) -> Typed:
    return Typed("cast", target, True, (arg,), (False,), arg.text)
