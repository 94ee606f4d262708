"""What the fields of a class are where nobody said: for values that were stored before the class had them."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pyarrow as pa

from penstock.processing.values import ValueType
from penstock.schema import is_optional, is_record_class, record_hints, to_array

__all__ = ["Tree", "defaults_of"]

Tree = dict[str, tuple[Any, Any]]
"""Field to the value of its default (an Arrow scalar; None if it has none) and the same of the fields below it."""


def defaults_of(annotation: Any) -> Tree:
    """The defaults of a class, of the classes that its fields hold, and so on; through lists and dicts.

    >>> @dataclasses.dataclass
    ... class Visit:
    ...     page: str
    ...     times: int = 1
    >>> defaults_of(list[Visit])["times"][0].as_py()
    1
    """
    annotation, _ = is_optional(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated or origin is list:
        return defaults_of(args[0])
    if origin is dict:
        return defaults_of(args[1])
    if not is_record_class(annotation):
        return {}
    return {name: (_default(annotation, name, hint), defaults_of(hint)) for name, hint in record_hints(annotation).items()}


def _default(record: Any, name: str, hint: Any) -> pa.Scalar | None:
    value: Any = getattr(record, "_field_defaults", {}).get(name, dataclasses.MISSING)
    if dataclasses.is_dataclass(record):
        field = record.__dataclass_fields__[name]
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return None
    kind = ValueType(name, hint)
    return to_array([kind.plain(value)], kind.field)[0]
