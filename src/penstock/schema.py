"""Schemas: what users write (a class, Spark's DDL, an Arrow schema) becomes one thing, a `pa.Schema`.

A schema says which columns a stream has, of which types, and which may hold null. Arrow's is the only form
used inside; the others are ways to write it down.

1. A Python type means one Arrow type (`int` is int64, `datetime` is timestamp in µs UTC). `T | None` may be
   null, everything else may not. `Annotated[int, pa.int32()]` says the Arrow type exactly.
2. Type names in text are Spark's: `int` has 32 bits, `bigint` 64. A column of DDL may be null unless it says
   not, and so may what is inside: `array<string not null>`.
3. Columns whose names start with `__` are Penstock's own, so users cannot declare them.
4. A value that does not fit its field is refused by `to_array`, never turned into null, cut or wrapped.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError, RowError

__all__ = [
    "HIDDEN",
    "column_name",
    "far_error",
    "far_rows",
    "field_text",
    "is_hidden",
    "is_optional",
    "is_record_class",
    "is_unicode",
    "no_such_column",
    "record_hints",
    "schema_text",
    "shown",
    "to_array",
    "to_field",
    "to_rows",
    "to_schema",
    "to_type",
    "to_values",
    "type_name",
    "type_of",
    "visible",
]

HIDDEN = "__"
NAIVE = Fix("value.zone", "Say its zone. Write: datetime(2026, 1, 31, 12, 30, tzinfo=UTC), or datetime.now(UTC)")

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FEW = 64
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_PLAIN = frozenset(kind.id for kind in (*_INTEGERS, pa.float16(), pa.float32(), pa.float64()))
"""Kinds of numbers, by Arrow's own numbers for them. Of few Arrow makes Python's fastest, of many numpy does."""

_PYTHON_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: _TIMESTAMP,
    Decimal: pa.decimal128(38, 18),
}

_NAMED_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "timestamp_ltz": _TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}

_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`[^`]+`)|(?P<word>\w+)|(?P<mark>[<>(),:]))")


def to_schema(spec: Any) -> pa.Schema:
    """The Arrow schema that `spec` describes.

    >>> to_schema("user string not null, price double").names
    ['user', 'price']
    >>> to_schema(str)
    value: string not null

    Args: spec: a `pa.Schema`, Spark's DDL, a dataclass, NamedTuple or TypedDict, or a primitive type (one
    column `value`).
    """
    if isinstance(spec, pa.Schema):
        schema = spec
    elif isinstance(spec, str):
        schema = pa.schema(_Ddl(spec).columns())
    elif is_record_class(spec):
        schema = pa.schema(_fields_of(spec, ()))
    elif isinstance(spec, pa.DataType):
        schema = pa.schema([pa.field("value", spec)])
    else:
        schema = pa.schema([to_field("value", spec)])
    _check_names(schema)
    return schema


def to_type(spec: Any) -> pa.DataType:
    """The Arrow type of a type name ("bigint"), a Python type (`int`), a class, or an Arrow type itself."""
    if isinstance(spec, pa.DataType):
        return spec
    if isinstance(spec, str):
        return type_of(spec)
    return to_field("value", spec).type


def type_of(text: str) -> pa.DataType:
    """The Arrow type of a Spark type name.

    >>> type_of("bigint")
    DataType(int64)
    """
    ddl = _Ddl(text)
    found = ddl.type()
    ddl.expect_end()
    return found


def to_field(name: str, annotation: Any) -> pa.Field:
    """The field of one annotation: `int | None` is a nullable int64, `list[str]` a list without nulls."""
    return _field(name, annotation, ())


def is_hidden(name: str) -> bool:
    """Whether a column is Penstock's own (`__time`, `__rows`): carried along, never shown."""
    return name.startswith(HIDDEN)


def is_unicode(text: str) -> bool:
    """Whether every part of a text is a character. Python's texts can hold halves of them, which nothing can store."""
    return text.isascii() or not _SURROGATE.search(text)


def column_name(name: object) -> str:
    """`name`, if a column can be called so."""
    if isinstance(name, str) and name and is_unicode(name):
        return name
    raise PlanError(
        f"{name!r} cannot be the name of a column, which is a text that is not empty and has no halves of characters",
        fix=Fix("column.name", 'Write: col("n").alias("total")'),
    )


def visible(schema: pa.Schema) -> pa.Schema:
    """The columns a user sees: all but the hidden ones."""
    return pa.schema([field for field in schema if not is_hidden(field.name)])


def no_such_column(name: str, names: Iterable[str]) -> str:
    """What to say about a column that is not there: the ones that are, and the nearest."""
    shown = [known for known in names if not is_hidden(known)]
    near = difflib.get_close_matches(name, shown, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no column {name!r} here. Columns: {', '.join(shown)}.{hint}"


def is_record_class(spec: Any) -> bool:
    """Whether `spec` is a dataclass, a NamedTuple or a TypedDict: a class whose fields are columns."""
    if not isinstance(spec, type):
        return False
    named_tuple = issubclass(spec, tuple) and hasattr(spec, "_fields")
    return dataclasses.is_dataclass(spec) or named_tuple or typing.is_typeddict(spec)


def is_optional(annotation: Any) -> tuple[Any, bool]:
    """Split `T | None` into (T, True); anything else is (itself, False)."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    members = [member for member in typing.get_args(annotation) if member is not type(None)]
    optional = len(members) < len(typing.get_args(annotation))
    if len(members) != 1:
        raise PlanError(
            f"{annotation} could be several types, and a column has one",
            fix=Fix("type.one", "Annotate one type, T, or one that may be missing, T | None"),
        )
    return members[0], optional


def record_hints(spec: Any) -> dict[str, Any]:
    """The annotations of a record class's fields, in order; optional keys of a TypedDict may be null."""
    try:
        hints = typing.get_type_hints(spec, include_extras=True)
    except NameError as error:
        raise PlanError(
            f"cannot read the fields of {spec.__name__}: {error}",
            fix=Fix(
                "type.fields", f"Define the classes it mentions at the top level of a module, before {spec.__name__} is used"
            ),
        ) from error
    if dataclasses.is_dataclass(spec):
        return {field.name: hints[field.name] for field in dataclasses.fields(spec)}
    if hasattr(spec, "_fields"):
        return {name: hints.get(name, Any) for name in spec._fields}
    required: frozenset[str] = getattr(spec, "__required_keys__", frozenset(hints))
    return {name: _key_hint(hint, name in required) for name, hint in hints.items()}


def _key_hint(hint: Any, required: bool) -> Any:
    # Where annotations are strings, only the hint itself tells which keys are required.
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        required = typing.get_origin(hint) is typing.Required
        hint = typing.get_args(hint)[0]
    return hint if required or is_optional(hint)[1] else typing.Optional[hint]  # noqa: UP045


def _fields_of(spec: Any, inside: tuple[Any, ...]) -> list[pa.Field]:
    if spec in inside:
        raise PlanError(f"{spec.__name__} contains itself, and a column's type must end somewhere")
    hints = record_hints(spec)
    if not hints:
        raise PlanError(f"{spec.__name__} has no annotated fields, so it describes no columns")
    return [_field(name, hint, (*inside, spec)) for name, hint in hints.items()]


def _field(name: str, annotation: Any, inside: tuple[Any, ...]) -> pa.Field:
    inner, nullable = is_optional(annotation)
    return pa.field(name, _python_type(inner, name, inside), nullable=nullable)


def _python_type(annotation: Any, name: str, inside: tuple[Any, ...]) -> pa.DataType:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        exact = [extra for extra in args[1:] if isinstance(extra, pa.DataType)]
        return exact[0] if exact else _python_type(args[0], name, inside)
    if isinstance(annotation, pa.DataType):
        return annotation
    if origin is list and len(args) == 1:
        return pa.list_(_field("item", args[0], inside))
    if origin is dict and len(args) == 2:
        if args[0] is not str:
            raise PlanError(f"{name}: keys of a dict column are str, and found {_annotation_name(args[0])}")
        return pa.map_(pa.string(), _field("value", args[1], inside))
    if is_record_class(annotation):
        return pa.struct(_fields_of(annotation, inside))
    found = _PYTHON_TYPES.get(annotation) if isinstance(annotation, type) else None
    if found is None:
        raise PlanError(
            f"{name}: {_annotation_name(annotation)} is not a type of columns. Known: int, float, str, bool, "
            "bytes, date, datetime, Decimal, list[T], dict[str, T], dataclasses and the like, T | None",
            fix=Fix("type.known", "Take one of these; any other Arrow type can be said exactly: Annotated[int, pa.int32()]"),
        )
    return found


def _annotation_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _check_names(schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        column_name(name)
        if is_hidden(name):
            raise PlanError(
                f"column {name!r}: names starting with '__' are Penstock's own",
                fix=Fix("schema.reserved", f"Choose another name, such as {name.strip('_') or 'value'}"),
            )
        if name in seen:
            raise PlanError(
                f"column {name!r} is there twice", fix=Fix("schema.twice", f"Give one of them another name, such as {name}_2")
            )
        seen.add(name)
    if not seen:
        raise PlanError(
            "a schema needs at least one column", fix=Fix("schema.empty", 'Write: schema="user string, price double"')
        )


class _Ddl:
    """A reader of Spark's DDL, by recursive descent over a list of tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.next = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"cannot read {text[position:].strip()!r}")
            self.tokens.append(match.group().strip())
            position = match.end()

    def columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        self.expect_end()
        return fields

    def type(self) -> pa.DataType:
        word = self._word("a type").lower()
        match word:
            case "array":
                return pa.list_(self._bracketed(lambda: self._item("item")))
            case "map":
                return self._bracketed(self._map)
            case "struct":
                return self._bracketed(self._struct)
            case "decimal" | "dec" | "numeric":
                return self._decimal()
            case "varchar" | "char":
                self._numbers()
                return pa.string()
        found = _NAMED_TYPES.get(word)
        if found is None:
            raise self._error(
                f"there is no type {word!r}. Types: {', '.join(sorted(_NAMED_TYPES))}, "
                "decimal(p,s), array<T>, map<K,V>, struct<name: T>"
            )
        return found

    def expect_end(self) -> None:
        if self.next < len(self.tokens):
            raise self._error(f"expected ',' or the end, and found {self.tokens[self.next]!r}")

    def _column(self) -> pa.Field:
        name = self._word("a column name").strip("`")
        self._take(":")
        return pa.field(name, self.type(), nullable=not self._not_null())

    def _map(self) -> pa.DataType:
        key = self.type()
        if not self._take(","):
            raise self._error("a map has a key and a value: map<string, bigint>")
        return pa.map_(key, self._item("value"))

    def _item(self, name: str) -> pa.Field:
        """What a list or map holds. Spark's DDL has no "not null" here, but its types have."""
        return pa.field(name, self.type(), nullable=not self._not_null())

    def _not_null(self) -> bool:
        found = self._take("not")
        if found and not self._take("null"):
            raise self._error("expected 'null' after 'not'")
        return found or (self._take("null") and False)

    def _struct(self) -> pa.DataType:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        return pa.struct(fields)

    def _decimal(self) -> pa.DataType:
        numbers = [*self._numbers(), 0] if self._peek() == "(" else [10, 0]
        precision, scale = numbers[0], numbers[1]
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(f"decimal({precision},{scale}): expected 1 to 38 digits, of which the scale is a part")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        opened = self._take("(")
        while opened:
            word = self._word("a number")
            if not word.isdigit():
                raise self._error(f"expected a number, and found {word!r}")
            numbers.append(int(word))
            opened = self._take(",")
        if not numbers or not self._take(")"):
            raise self._error("expected numbers in parentheses, as in decimal(10,2)")
        return numbers

    def _bracketed(self, inner: Callable[[], Any]) -> Any:
        if not self._take("<"):
            raise self._error("expected '<', as in array<string>")
        found = inner()
        if not self._take(">"):
            raise self._error("expected '>'")
        return found

    def _peek(self) -> str:
        return self.tokens[self.next].lower() if self.next < len(self.tokens) else ""

    def _take(self, token: str) -> bool:
        found = self._peek() == token
        self.next += found
        return found

    def _word(self, what: str) -> str:
        if self.next >= len(self.tokens) or self.tokens[self.next] in "<>(),:":
            raise self._error(f"expected {what}, and found {self._peek() or 'the end'!r}")
        self.next += 1
        return self.tokens[self.next - 1]

    def _error(self, problem: str) -> PlanError:
        return PlanError(f"in {self.text!r}: {problem}")


def type_name(found: pa.DataType) -> str:
    """The name users know a type by: Spark's, as in `type_of`; Arrow's own where Spark has none."""
    if pa.types.is_decimal(found):
        return f"decimal({found.precision},{found.scale})"
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return f"array<{field_text(found.value_field)}>"
    if pa.types.is_map(found):
        return f"map<{type_name(found.key_type)}, {field_text(found.item_field)}>"
    if pa.types.is_struct(found):
        return f"struct<{', '.join(_field_text(field, ': ') for field in found)}>"
    if pa.types.is_dictionary(found):
        return type_name(found.value_type)
    names = {arrow: name for name, arrow in reversed(_NAMED_TYPES.items())}
    return names.get(found, str(found))


def schema_text(schema: pa.Schema) -> str:
    """The visible columns in one line, which `to_schema` reads again: 'user string not null, n int'."""
    return ", ".join(_field_text(field, " ") for field in visible(schema))


def field_text(field: pa.Field) -> str:
    """The type of a column, with what it says of null: 'array<string not null> not null'."""
    return type_name(field.type) + ("" if field.nullable else " not null")


def _field_text(field: pa.Field, between: str) -> str:
    name = field.name if re.fullmatch(r"\w+", field.name) else f"`{field.name}`"
    return f"{name}{between}{field_text(field)}"


def to_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Python values as an Arrow array of exactly `field`; a `RowError` where one does not fit.

    Arrow itself would cut 1.5 to an integer, read a naive datetime as UTC and let null into a field that is
    not null.
    """
    _check_values(values, field)
    try:
        return pa.array(values, type=field.type)
    except UnicodeEncodeError as error:
        raise RowError(f"{field.name}: {error.object!r:.80} has half of a character, which cannot be stored") from None
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise RowError(f"{field.name}: {error}") from error


def to_values(column: pa.Array) -> list[Any]:
    """The values of an array for Python: `to_pylist`, but faster for what is common, and maps are dicts, also inside of others."""
    kind = column.type
    if kind.id in _PLAIN:
        fast: list[Any] = column.to_numpy().tolist() if len(column) > _FEW and not column.null_count else column.to_pylist()
        return fast
    if pa.types.is_dictionary(kind):
        values = np.fromiter([*to_values(column.dictionary), None], object)
        numbers = pc.fill_null(column.indices, len(values) - 1) if column.null_count else column.indices
        shared: list[Any] = values[numbers.to_numpy()].tolist()
        return shared
    if pa.types.is_timestamp(kind) and kind.tz == "UTC":
        micros = to_values((column if kind.unit == "us" else column.cast(_TIMESTAMP, safe=False)).view(pa.int64()))
        return [None if us is None else _EPOCH + timedelta(microseconds=us) for us in micros]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
    listed: list[Any] = column.to_pylist()
    with_dicts = _with_dicts(kind) if pa.types.is_nested(kind) else None
    return listed if with_dicts is None else with_dicts(listed)


@functools.lru_cache
def _with_dicts(kind: pa.DataType) -> Callable[[list[Any]], list[Any]] | None:
    """What makes dicts of the lists of pairs that Arrow gives for maps, in values of a type; None if there are no maps in it.

    It changes records where they stand. A map whose keys are nested stays as it is: they can be no keys of a dict.
    """
    t = pa.types
    if t.is_map(kind) and not t.is_nested(kind.key_type):
        items = _with_dicts(kind.item_type)
        if items is None:
            return lambda maps: [None if pairs is None else dict(pairs) for pairs in maps]
        return lambda maps: [
            None if pairs is None else dict(zip([key for key, _ in pairs], items([item for _, item in pairs]))) for pairs in maps
        ]
    if t.is_struct(kind):
        fields = [(field.name, inner) for field in kind if (inner := _with_dicts(field.type)) is not None]
        return functools.partial(_records_with_dicts, fields) if fields else None
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        inside = _with_dicts(kind.value_type)
        return None if inside is None else lambda lists: [None if values is None else inside(values) for values in lists]
    return None


def _records_with_dicts(fields: list[tuple[str, Callable[[list[Any]], list[Any]]]], records: list[Any]) -> list[Any]:
    present = [record for record in records if record is not None]
    for name, inner in fields:
        for record, value in zip(present, inner([record[name] for record in present])):
            record[name] = value
    return records


def far_rows(column: pa.Array) -> list[int]:
    """The rows with a time outside of the years 0001 to 9999, also deep inside: a source may have them, and Python has not."""
    try:
        to_values(column)
    except (OverflowError, ValueError):
        half = len(column) // 2
        if not half:
            return [0]
        return [*far_rows(column.slice(0, half)), *(half + row for row in far_rows(column.slice(half)))]
    return []


def far_error(name: str) -> RowError:
    """Why there are no Python values for such a row."""
    return RowError(f"{name}: a time outside of the years 0001 to 9999, which Python does not have")


def to_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """`to_pylist` for people and texts: a time that Python does not have is its text, as '92026-01-02'."""
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    except (OverflowError, ValueError):
        columns = [list(map(shown, column)) for column in table.columns]
        return [dict(zip(table.schema.names, values)) for values in zip(*columns)]


def shown(value: pa.Scalar) -> Any:
    """A value for people: a time, or a duration, that Python does not have is its text."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        kind = value.type
    if pa.types.is_struct(kind):
        return {name: shown(item) for name, item in value.items()}
    if pa.types.is_map(kind):
        return [(shown(entry["key"]), shown(entry["value"])) for entry in value.values]
    if pa.types.is_nested(kind):
        return list(map(shown, value.values))
    if pa.types.is_duration(kind):
        return f"{value.value} {kind.unit}"
    unit: Any = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    return f"{np.datetime64(value.value, unit)}{'+00:00' if pa.types.is_timestamp(kind) and kind.tz else ''}"


@functools.lru_cache(maxsize=1024)
def _accepted(found: pa.DataType) -> tuple[type, ...]:
    """The Python types whose values mean what they say in a column of this type; () is anything."""
    checks: list[tuple[Any, tuple[type, ...]]] = [
        (pa.types.is_boolean, (bool,)),
        (pa.types.is_integer, (int,)),
        (pa.types.is_floating, (float, int)),
        (pa.types.is_decimal, (Decimal, int)),
        (pa.types.is_timestamp, (datetime,)),
        (pa.types.is_date, (date,)),
        (pa.types.is_duration, (timedelta,)),
        (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), (str,)),
        (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), (bytes, bytearray)),
        (pa.types.is_map, (Mapping,)),
        (pa.types.is_struct, (Mapping,)),
        (pa.types.is_list, (list, tuple)),
    ]
    return next((accepted for check, accepted in checks if check(found)), ())


def _check_values(values: Sequence[Any], field: pa.Field, inside: str = "") -> None:
    """Raise a `RowError` unless every value means in Arrow what it means in Python."""
    path = inside + field.name
    present = [value for value in values if value is not None]
    if not field.nullable and len(present) < len(values):
        raise RowError(f"{path}: null, and the column is not null")
    accepted = _accepted(field.type)
    for kind in set(map(type, present)):
        if accepted and not _accepts(kind, accepted):
            raise RowError(f"{path}: expected {type_name(field.type)}, and found {kind.__name__}")
    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        if any(value.tzinfo is None for value in present):
            raise RowError(f"{path}: a datetime without time zone", fix=NAIVE)
    elif pa.types.is_struct(field.type):
        _check_structs(present, field.type, path)
    elif pa.types.is_list(field.type):
        _check_values([item for value in present for item in value], field.type.value_field, f"{path}.")
    elif pa.types.is_map(field.type):
        _check_values([key for value in present for key in value], field.type.key_field, f"{path}.")
        items = [item for value in present for item in value.values()]
        _check_values(items, field.type.item_field, f"{path}.")


def _accepts(kind: type, accepted: tuple[type, ...]) -> bool:
    if kind is bool and bool not in accepted:
        return False
    if kind is datetime and datetime not in accepted:
        return False
    # numpy's integers have no common base with Python's, but are the same numbers.
    is_index = int in accepted and hasattr(kind, "__index__")
    return issubclass(kind, accepted) or is_index


def _check_structs(values: list[Mapping[str, Any]], found: pa.DataType, path: str) -> None:
    names = [inner.name for inner in found]
    for value in values:
        extra = [name for name in value if name not in names]
        if extra:
            raise RowError(f"{path}: there is no field {extra[0]!r}. Fields: {', '.join(names)}")
    for inner in found:
        _check_values([value.get(inner.name) for value in values], inner, f"{path}.")
