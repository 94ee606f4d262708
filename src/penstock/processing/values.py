"""What a state holds: a Python type, and how its values get into a column and back.

What comes out of a state must not depend on whether it has been on disk in between. So a value is made *plain* when it is set:
checked, copied, and brought into the form in which it would come back (`1` in a state of floats is `1.0`, a time is in UTC, a
dataclass is a dict). Reading makes a new object of it. Changing what came from `get` changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from penstock.errors import RowError
from penstock.functions import fields_of, instance_maker
from penstock.schema import to_array, to_field, to_values, type_name

Convert = Callable[[Any], Any]

_EXACT: dict[Any, type] = {pa.int64(): int, pa.float64(): float, pa.string(): str, pa.bool_(): bool, pa.binary(): bytes}
_IMMUTABLE = (int, float, str, bool, bytes, date, datetime, type(None))


class ValueType:
    """A Python type as the type of a state.

    >>> kind = ValueType("total", float)
    >>> kind.plain(1)
    1.0
    """

    def __init__(self, name: str, annotation: Any) -> None:
        self.field = to_field(name, annotation)
        self.exact = _EXACT.get(self.field.type) if not self.field.nullable else None
        self.plain: Convert = plain_maker(self.field)
        maker = instance_maker(annotation) if not isinstance(annotation, pa.DataType) else copy.deepcopy
        nested = pa.types.is_nested(self.field.type)
        self.make: Convert | None = (lambda value: None if value is None else maker(value)) if nested else None
        """What makes an object of a plain value; None if a plain value is one."""


def plain_maker(field: pa.Field) -> Convert:
    """What checks and copies a value of this field; it raises a `RowError` where one does not fit."""
    convert = _plain_of(field)
    if not field.nullable and field.type in _EXACT:  # these refuse None themselves; a state of numbers should be fast
        return convert
    if field.nullable:
        return lambda value: None if value is None else convert(value)

    def refuse_null(value: Any) -> Any:
        if value is None:
            raise RowError(f"{field.name}: None, and it holds {type_name(field.type)}. To allow it, declare T | None")
        return convert(value)

    return refuse_null


def _plain_of(field: pa.Field) -> Convert:
    kind, t = field.type, pa.types
    if t.is_boolean(kind):
        return _exactly(field, bool)
    if kind == pa.int64():
        return _int64(field)
    if kind == pa.float64():
        return _float64(field)
    if t.is_string(kind):
        return _exactly(field, str)
    if t.is_timestamp(kind) and kind.tz is not None:
        return _moment(field)
    if t.is_struct(kind):
        return _record(field)
    if t.is_list(kind):
        item = plain_maker(kind.value_field)
        return lambda value: [item(each) for each in _several(field, value)]
    if t.is_map(kind):
        key, item = plain_maker(kind.key_field), plain_maker(kind.item_field)
        return lambda value: {key(k): item(v) for k, v in _mapping(field, value).items()}
    return lambda value: to_values(to_array([value], field))[0]  # rare: what Arrow makes of it


def _misfit(field: pa.Field, value: Any) -> RowError:
    return RowError(f"{field.name}: expected {type_name(field.type)}, and found {type(value).__name__} {value!r:.80}")


def _exactly(field: pa.Field, wanted: type) -> Convert:
    def plain(value: Any) -> Any:
        if type(value) is wanted:
            return value
        if isinstance(value, wanted):
            return wanted(value)
        raise _misfit(field, value)

    return plain


def _int64(field: pa.Field) -> Convert:
    def plain(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise _misfit(field, value)
            value = value.__index__()
        if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
            return int(value)
        raise RowError(f"{field.name}: {value} does not fit into 64 bits")

    return plain


def _float64(field: pa.Field) -> Convert:
    def plain(value: Any) -> float:
        if type(value) is float:
            return value
        if (
            isinstance(value, bool)
            or not (isinstance(value, int | float) or hasattr(value, "__float__"))
            or isinstance(value, str)
        ):
            raise _misfit(field, value)
        return float(value)

    return plain


def _moment(field: pa.Field) -> Convert:
    def plain(value: Any) -> datetime:
        if not isinstance(value, datetime):
            raise _misfit(field, value)
        if value.tzinfo is None:
            raise RowError(f"{field.name}: a datetime without time zone. Write: datetime(…, tzinfo=UTC)")
        return value if value.tzinfo is UTC else value.astimezone(UTC)

    return plain


def _record(field: pa.Field) -> Convert:
    makers = {inner.name: plain_maker(inner) for inner in field.type}

    def plain(value: Any) -> dict[str, Any]:
        found = fields_of(value)
        if found is None:
            raise _misfit(field, value)
        for name in found:
            if name not in makers:
                raise RowError(f"{field.name}: there is no field {name!r}. Fields: {', '.join(makers)}")
        return {name: make(found.get(name)) for name, make in makers.items()}

    return plain


def _several(field: pa.Field, value: Any) -> Any:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise _misfit(field, value)
    return value


def _mapping(field: pa.Field, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _misfit(field, value)
    return value
