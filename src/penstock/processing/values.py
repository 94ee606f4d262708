"""What a state holds: a Python type, and how its values get into a column and back.

What comes out of a state must not depend on whether it has been on disk in between. So a value is made *plain* when it is set:
checked, copied, and brought into the form in which it would come back (`1` in a state of floats is `1.0`, a time is in UTC, a
dataclass is a dict). Reading makes a new object of it. Changing what came from `get` changes nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import Fix, RowError
from penstock.functions import fields_of, instance_maker
from penstock.schema import NAIVE, is_optional, is_record_class, record_hints, to_array, to_field, to_values, type_name

Convert = Callable[[Any], Any]

_MOMENT = pa.timestamp("us", tz="UTC")
_FAST = (pa.bool_(), pa.int64(), pa.float64(), pa.string())
"""Their makers refuse None themselves: a state of numbers should be fast."""


class ValueType:
    """A Python type as the type of a state.

    >>> kind = ValueType("total", float)
    >>> kind.plain(1)
    1.0
    """

    def __init__(self, name: str, annotation: Any) -> None:
        self.field = to_field(name, annotation)
        self.defaults = {} if isinstance(annotation, pa.DataType) else defaults_of(annotation)
        self.plain: Convert = plain_maker(self.field)
        maker = instance_maker(annotation) if not isinstance(annotation, pa.DataType) else copy.deepcopy
        nested = pa.types.is_nested(self.field.type)
        self.make: Convert | None = (lambda value: None if value is None else maker(value)) if nested else None
        """What makes an object of a plain value; None if a plain value is one."""

    def called(self, path: str) -> ValueType:
        """The same, with errors that speak of `path`."""
        named = copy.copy(self)
        named.plain = plain_maker(self.field, path)
        return named


def written(annotation: Any) -> str:
    """An annotation as a user writes it.

    >>> written(int), written(list[datetime]), written(str | None)
    ('int', 'list[datetime]', 'str | None')
    """
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(?:[\w<>]+\.)+(?=\w)", "", text)


def defaults_of(annotation: Any) -> dict[str, tuple[Any, Any]]:
    """What the fields of a class are for values that were stored before it had them: the defaults that it declares.

    Field to its default (as an Arrow scalar; None if there is none) and the same of the fields below it; through lists and dicts.
    It is looked up where the class is written: in a worker, to which it was sent, its annotations may not be readable.
    """
    annotation, _ = is_optional(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Annotated, list, dict) and args:
        return defaults_of(args[1 if origin is dict else 0])
    if not is_record_class(annotation):
        return {}
    return {name: (_default(annotation, name, hint), defaults_of(hint)) for name, hint in record_hints(annotation).items()}


def _default(record: Any, name: str, hint: Any) -> pa.Scalar | None:
    value: Any = getattr(record, "_field_defaults", {}).get(name, dataclasses.MISSING)
    if dataclasses.is_dataclass(record):
        field = record.__dataclass_fields__[name]
        factory: Any = field.default_factory
        value = field.default if factory is dataclasses.MISSING else factory()
    if value is dataclasses.MISSING:
        return None
    made = to_field(name, hint)
    try:
        return to_array([plain_maker(made)(value)], made)[0]
    except RowError:
        return None  # a default that does not fit its field is no value to begin with


def plain_maker(field: pa.Field, path: str | None = None) -> Convert:
    """What checks and copies a value of this field; it raises a `RowError` where one does not fit."""
    path = field.name if path is None else path
    convert = _plain_of(field.type, path)
    if field.nullable:
        return lambda value: None if value is None else convert(value)
    if field.type in _FAST:
        return convert

    def refuse_null(value: Any) -> Any:
        if value is None:
            raise _misfit(value, field.type, path)
        return convert(value)

    return refuse_null


def _plain_of(kind: pa.DataType, path: str) -> Convert:
    t = pa.types
    if t.is_boolean(kind):
        return _bool(path)
    if kind == pa.int64():
        return _int64(path)
    if kind == pa.float64():
        return _float64(path)
    if t.is_string(kind):
        return _string(path)
    if kind == _MOMENT:
        return _moment(path)
    if t.is_struct(kind):
        return _record(kind, path)
    if t.is_list(kind):
        item = plain_maker(kind.value_field, f"{path}.item")
        return lambda value: [item(each) for each in several(value, kind, path)]
    if t.is_map(kind):
        key, item = plain_maker(kind.key_field, f"{path}.key"), plain_maker(kind.item_field, f"{path}.value")
        return lambda value: {key(k): item(v) for k, v in _mapping(value, kind, path).items()}
    single = pa.field(path, kind)
    return lambda value: to_values(to_array([value], single))[0]  # rare: what Arrow makes of it


def _misfit(value: Any, kind: pa.DataType, path: str) -> RowError:
    if value is None:
        fix = Fix("value.none", "To allow it, declare it as T | None")
        return RowError(f"{path}: expected {type_name(kind)}, and found None", fix=fix)
    return RowError(f"{path}: expected {type_name(kind)}, and found {type(value).__name__} {value!r:.80}")


def _bool(path: str) -> Convert:
    def plain(value: Any) -> bool:
        if type(value) is bool:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        raise _misfit(value, pa.bool_(), path)

    return plain


def _string(path: str) -> Convert:
    def plain(value: Any) -> str:
        if type(value) is str and value.isascii():
            return value
        if not isinstance(value, str):
            raise _misfit(value, pa.string(), path)
        text = value if type(value) is str else str.__str__(value)  # of an Enum, its value
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(f"{path}: {text!r:.80} is no text that can be stored: {error.reason}") from None
        return text

    return plain


def _int64(path: str) -> Convert:
    def plain(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise _misfit(value, pa.int64(), path)
            value = value.__index__()
        if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
            return int(value)
        raise RowError(f"{path}: {value} does not fit into 64 bits")

    return plain


def _float64(path: str) -> Convert:
    def plain(value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            raise _misfit(value, pa.float64(), path)
        return float(value)

    return plain


def _moment(path: str) -> Convert:
    def plain(value: Any) -> datetime:
        if not isinstance(value, datetime):
            raise _misfit(value, _MOMENT, path)
        if value.tzinfo is None:
            raise RowError(f"{path}: a datetime without time zone", fix=NAIVE)
        return value if value.tzinfo is UTC and type(value) is datetime else _in_utc(value)

    return plain


def _in_utc(value: datetime) -> datetime:
    there = value.astimezone(UTC)
    return datetime.combine(there.date(), there.time(), UTC)  # also of a subclass, such as pandas has


def _record(kind: pa.DataType, path: str) -> Convert:
    makers = {inner.name: plain_maker(inner, f"{path}.{inner.name}") for inner in kind}

    def plain(value: Any) -> dict[str, Any]:
        found = fields_of(value)
        if found is None:
            raise _misfit(value, kind, path)
        for name in found:
            if name not in makers:
                raise RowError(f"{path}: there is no field {name!r}. Fields: {', '.join(makers)}")
        return {name: make(found.get(name)) for name, make in makers.items()}

    return plain


def several(value: Any, kind: pa.DataType, path: str) -> Any:
    """The value, if it has items in an order: not a text, not a set."""
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__iter__"):
        raise _misfit(value, kind, path)
    return value


def _mapping(value: Any, kind: pa.DataType, path: str) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):  # as Arrow gives maps
        return dict(value)
    raise _misfit(value, kind, path)


def restorer(kind: pa.DataType) -> Convert | None:
    """What makes a plain value of what stands within a column (times in Arrow's own UTC); None if it is one."""
    made = _restorer(kind)
    return None if made is None else lambda value: None if value is None else made(value)


def _restorer(kind: pa.DataType) -> Convert | None:
    if kind == _MOMENT:
        return _in_utc
    if pa.types.is_struct(kind):
        inner = {field.name: make for field in kind if (make := restorer(field.type)) is not None}
        return (lambda value: value | {name: make(value[name]) for name, make in inner.items()}) if inner else None
    if pa.types.is_list(kind):
        item = restorer(kind.value_type)
        return None if item is None else lambda value: [item(each) for each in value]
    if pa.types.is_map(kind):
        key, entry = restorer(kind.key_type), restorer(kind.item_type)
        if key is entry is None:
            return None
        key, entry = key or _same, entry or _same
        return lambda value: {key(k): entry(v) for k, v in value.items()}
    return None


def _same(value: Any) -> Any:
    return value


def stored_values(column: pa.Array) -> list[Any]:
    """The plain values of a column of state."""
    values = to_values(column)
    restore = restorer(column.type) if pa.types.is_nested(column.type) else None
    return values if restore is None else [restore(value) for value in values]
