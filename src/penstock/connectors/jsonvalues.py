"""Lines of JSON into Arrow by way of Python's own parser: slower than a block at once, and what says which lines are bad, and why.

It takes every line that `jsonblock` takes, with the same values, and some more: a field, or a key of a map, that stands
twice, times as text beside times as numbers, and "NaN", "Infinity" and "-Infinity" as text.

1. All lines are parsed first, then each column is made at once. A value that does not fit is the fault of its line alone.
2. Numbers stay text until Arrow reads them: no digit is lost, and both ways read them by the same function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.fileformat import Undecodable
from penstock.connectors.jsonblock import read_block, read_leaf
from penstock.exact import exactly
from penstock.schema import type_name

__all__ = ["decode_values", "parse"]

SAMPLE_CHARS = 80
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""As Spark writes them."""

Faults = dict[int, str]
"""Lines, by number, and what is wrong with each."""
Lines = Sequence[int]
"""The line that each value comes from."""


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_PARSER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refused)


def parse(line: bytes) -> dict[str, Any]:
    """The object on a line, its numbers as text."""
    try:
        found = _PARSER.decode(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        at = error.object[error.start]
        raise Undecodable(f"not Unicode: \\u{ord(at):04x} is half of a character") from error
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Undecodable(f"expected an object, found {_sample(found)}")
    return found


def decode_values(lines: Sequence[bytes], schema: pa.Schema) -> tuple[pa.RecordBatch, Faults]:
    """The rows of the good lines, in order, and the other lines."""
    faults: Faults = {}
    objects: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(lines):
        try:
            objects.append(parse(line))
            numbers.append(number)
        except Undecodable as error:
            faults[number] = str(error)
    arrays = [_column([each.get(field.name) for each in objects], field, field.name, numbers, faults) for field in schema]
    if len(faults) and objects:
        good = pa.array([number not in faults for number in numbers], pa.bool_())
        arrays = [each.filter(good) for each in arrays]
    arrays = [exactly(each, field.type) for each, field in zip(arrays, schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), faults


def _column(values: list[Any], field: pa.Field, path: str, lines: Lines, faults: Faults) -> pa.Array:
    """The values of a field; what does not fit is null here and a fault of its line."""
    if not field.nullable:
        for value, line in zip(values, lines):
            if value is None:
                faults.setdefault(line, f"column {path!r} is not null, and there is no value for it")
    kind = field.type
    if pa.types.is_struct(kind):
        return _structs(values, kind, path, lines, faults)
    if pa.types.is_list(kind):
        return _lists(values, kind, path, lines, faults)
    if pa.types.is_map(kind):
        return _maps(values, kind, path, lines, faults)
    return _leaves(values, kind, path, lines, faults)


def _structs(values: list[Any], kind: pa.DataType, path: str, lines: Lines, faults: Faults) -> pa.Array:
    present = _only(values, dict, kind, path, lines, faults)
    owners = [lines[at] for at in present]
    children = [
        _column([values[at].get(inner.name) for at in present], inner, f"{path}.{inner.name}", owners, faults) for inner in kind
    ]
    fields = [pa.field(inner.name, child.type) for inner, child in zip(kind, children)]
    found = pa.StructArray.from_arrays(children, fields=fields)
    if len(present) == len(values):
        return found
    places: list[int | None] = [None] * len(values)
    for place, at in enumerate(present):
        places[at] = place
    return found.take(pa.array(places, pa.int64()))


def _lists(values: list[Any], kind: pa.DataType, path: str, lines: Lines, faults: Faults) -> pa.Array:
    present = _only(values, list, kind, path, lines, faults)
    items = [item for at in present for item in values[at]]
    owners = [lines[at] for at in present for _ in values[at]]
    return pa.ListArray.from_arrays(_offsets(values, present), _column(items, kind.value_field, f"{path}[]", owners, faults))


def _maps(values: list[Any], kind: pa.DataType, path: str, lines: Lines, faults: Faults) -> pa.Array:
    present = _only(values, dict, kind, path, lines, faults)
    keys = [key for at in present for key in values[at]]
    items = [item for at in present for item in values[at].values()]
    owners = [lines[at] for at in present for _ in values[at]]
    return pa.MapArray.from_arrays(
        _offsets(values, present),
        _column(keys, kind.key_field, f"{path}[]", owners, faults),
        _column(items, kind.item_field, f"{path}[]", owners, faults),
    )


def _only(values: list[Any], python: type, kind: pa.DataType, path: str, lines: Lines, faults: Faults) -> list[int]:
    """Which values are of a Python type. Null is none, and no fault."""
    present = [at for at, value in enumerate(values) if type(value) is python]
    if len(present) < len(values):
        for value, line in zip(values, lines):
            if value is not None and type(value) is not python:
                faults.setdefault(line, _misfit(value, kind, path))
    return present


def _offsets(values: list[Any], present: list[int]) -> pa.Array:
    """Where each list's items begin; null for a list that is null."""
    offsets: list[int | None] = [None] * len(values)
    end = 0
    for at in present:
        offsets[at] = end
        end += len(values[at])
    return pa.array([*offsets, end], pa.int32())


def _leaves(values: list[Any], kind: pa.DataType, path: str, lines: Lines, faults: Faults) -> pa.Array:
    try:
        return _leaf_array(values, kind)
    except (pa.ArrowInvalid, _Misfit, Undecodable):
        pass
    kept = list(values)
    for at, value in enumerate(values):
        try:
            _leaf_array([value], kind)
        except (pa.ArrowInvalid, _Misfit, Undecodable):
            kept[at] = None
            faults.setdefault(lines[at], _misfit(value, kind, path))
    return _leaf_array(kept, kind)


def _misfit(value: Any, kind: pa.DataType, path: str) -> str:
    return f"column {path!r} is {type_name(kind)}, and the value is {_sample(value)}"


class _Misfit(Exception):
    """Some value is of another kind than the column."""


def _leaf_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values without anything inside, by their kind; raises if one does not fit."""
    return _maker(kind)(values, kind)


def _maker(kind: pa.DataType) -> Callable[[list[Any], pa.DataType], pa.Array]:
    is_ = pa.types
    checks: list[tuple[Callable[[pa.DataType], bool], Callable[[list[Any], pa.DataType], pa.Array]]] = [
        (lambda t: is_.is_string(t) or is_.is_large_string(t) or is_.is_string_view(t), _texts),
        (is_.is_boolean, _booleans),
        (is_.is_floating, _floats),
        (is_.is_integer, _numbers),
        (is_.is_decimal, _decimals),
        (is_.is_timestamp, _times),
    ]
    return next((make for check, make in checks if check(kind)), _as_a_block)


def _check(values: list[Any], *allowed: type) -> None:
    if not {type(value) for value in values} <= {*allowed, type(None)}:
        raise _Misfit


def _texts(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, str)
    return pa.array(values, kind)


def _booleans(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, bool)
    return pa.array(values, kind)


def _numbers(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, Number)
    return read_leaf(pa.array(values, pa.string()), kind)


def _decimals(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, Number, str)
    return read_leaf(pa.array(values, pa.string()), kind)


def _floats(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, Number, str)
    words = [type(value) is str for value in values]
    if not any(words):
        return read_leaf(pa.array(values, pa.string()), kind)
    if any(word and value not in NOT_FINITE for word, value in zip(words, values)):
        raise _Misfit
    finite = read_leaf(pa.array([None if word else value for word, value in zip(words, values)], pa.string()), kind)
    others = pa.array([float(value) if word else None for word, value in zip(words, values)], pa.float64())
    return pc.coalesce(others.cast(kind), finite)


def _times(values: list[Any], kind: pa.DataType) -> pa.Array:
    _check(values, Number, str)
    texts = read_leaf(pa.array([value if type(value) is str else None for value in values], pa.string()), kind)
    numbers = pa.array([value if type(value) is Number else None for value in values], pa.string())
    return pc.coalesce(texts, read_leaf(numbers.cast(pa.int64()), kind)) if numbers.null_count < len(numbers) else texts


def _as_a_block(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Kinds that are seldom seen in JSON are read from the lines of a column of their own."""
    if not values:
        return pa.nulls(0, kind)
    _check(values, Number, str, bool)
    block = "".join(f'{{"value":{_written(value)}}}\n' for value in values).encode()
    return read_block(block, pa.schema([pa.field("value", kind)])).column(0)


def _written(value: Any) -> str:
    """The value as JSON, its numbers as they were."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(str(key))}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _sample(value: Any) -> str:
    text = _written(value)
    return text if len(text) <= SAMPLE_CHARS else text[: SAMPLE_CHARS - 3] + "..."
