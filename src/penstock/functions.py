"""Row functions: a user's function of one row, run over Arrow batches.

The annotation of the first parameter decides what the function gets, and with it which columns are turned
into Python values at all:

* none, or `Row`: a read-only row of all columns;
* a dataclass, NamedTuple or TypedDict: an instance, from the columns of its fields;
* `str`, `int`, …: the value of the only column.

The return annotation (or `schema=`) decides the output columns in the same way. Rules:

1. A row for which the function raises, or returns what does not fit, is an error of that row; the others are
   unaffected.
2. Values are checked a whole column at a time; only if a column does not fit are its rows looked at one by
   one.
3. Hidden columns (`__time`) are never shown. The operator carries them over by `origin`: which input row each
   output row came from.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import RAISED, Fix, PlanError, RowError
from penstock.exact import exactly_batch
from penstock.row import Row, row_of
from penstock.schema import (
    far_error,
    far_rows,
    is_optional,
    is_record_class,
    no_such_column,
    record_hints,
    to_array,
    to_field,
    to_schema,
    to_values,
    type_name,
    visible,
)

__all__ = [
    "Applied",
    "Decoder",
    "Encoder",
    "Failed",
    "Row",
    "RowFunction",
    "arguments_of",
    "decoder_for",
    "encoder_for",
    "fields_of",
    "instance_maker",
    "plain_value",
]

_KINDS = ("map", "flat_map", "filter", "map_async")

Errors = list[tuple[int, BaseException]]
Origin = Sequence[int]
"""The number of the row each result came from."""
Decoder = Callable[[list[list[Any]], int], Iterable[Any]]
"""From columns of Python values, and the number of rows, to the argument of each call, one at a time."""
Encoder = Callable[[list[Any]], list[list[Any]]]
"""From what the calls returned to columns of Python values."""


@dataclass(frozen=True)
class Applied:
    """What a row function made of a batch.

    `origin[i]` is the number of the input row that output row i came from; `errors` are the rows that failed,
    and why.
    """

    rows: pa.RecordBatch
    origin: np.ndarray
    errors: Errors


@dataclass(frozen=True)
class RowFunction:
    """A function of one row, with the columns it reads and the schema of what it returns.

    >>> def twice(n: int) -> int:
    ...     return n * 2
    >>> double = RowFunction.of(twice, "map", pa.schema({"value": pa.int64()}))
    >>> double.apply(pa.record_batch({"value": [1, 2]})).rows.to_pydict()
    {'value': [2, 4]}
    """

    name: str
    kind: str
    function: Callable[[Any], Any]
    columns: tuple[str, ...]
    output: pa.Schema
    decoder: Decoder
    encoder: Encoder

    @classmethod
    def of(cls, fn: Callable[..., Any], kind: str, input: pa.Schema, schema: Any = None) -> RowFunction:
        """Read the annotations of `fn` against the input schema; a `PlanError` where they do not fit."""
        assert kind in _KINDS, f"unknown kind {kind!r}"
        name = _name_of(fn)
        parameter, returns = _annotations(fn, name)
        shown = visible(input)
        columns, decode = decoder_for(name, parameter, shown)
        if kind == "filter":
            if schema is not None:
                raise PlanError("filter keeps the columns as they are, so it takes no schema")
            if returns not in (None, bool):
                raise PlanError(f"filter needs a function that returns bool, and {name} returns {shown_type(returns)}")
            return cls(name, kind, fn, columns, shown, decode, _nothing)
        spec = schema if schema is not None else _returned(name, kind, returns)
        output, encode = encoder_for(spec, shown)
        return cls(name, kind, fn, columns, output, decode, encode)

    def apply(self, batch: pa.RecordBatch, attempts: int = 1) -> Applied:
        """Run the function over the rows of `batch`; where it raises, up to `attempts` times."""
        values = arguments_of(self, batch)
        origin, results, errors = self._call(values, batch.num_rows, attempts)
        if self.kind == "filter":
            rows = batch.select(self.output.names).take(pa.array(origin, pa.int64()))
            return Applied(exactly_batch(rows, self.output), np.array(origin, dtype=np.int64), errors)
        return self.fit(origin, results, errors)

    def arguments(self, batch: pa.RecordBatch) -> list[tuple[Any, BaseException | None]]:
        """For each row what the function is to get, or why that cannot be made."""
        values = arguments_of(self, batch)
        return [(None, value.error) if type(value) is Failed else (value, None) for value in values]

    def fit(self, origin: Origin, results: list[Any], errors: Errors) -> Applied:
        """What calls returned as rows; those that do not fit are added to the errors."""
        try:
            rows = self._to_batch(results)
        except Exception:
            rows, origin, errors = self._without_misfits(origin, results, errors)
        numbers = np.arange(len(origin)) if isinstance(origin, range) else np.array(origin, dtype=np.int64)
        return Applied(rows, numbers, errors)

    def decode(self, columns: list[list[Any]], rows: int) -> list[Any]:
        """The argument of each call, from Python values of `self.columns`; raises if one cannot be made."""
        arguments = list(self.decoder(columns, rows))
        for argument in arguments:
            if type(argument) is Failed:
                raise argument.error
        return arguments

    def encode(self, result: Any) -> list[Any]:
        """One returned value as a value for each output column; a `RowError` if it has other columns."""
        return [column[0] for column in self.encoder([result])]

    def _call(self, values: Iterable[Any], rows: int, attempts: int) -> tuple[Origin, list[Any], Errors]:
        """What the function returned, the row each came from, and the rows for which it raised."""
        function, kind = self.function if attempts == 1 else self._repeated(attempts), self.kind
        if kind == "map" and isinstance(values, Sure):
            return _mapped(function, values, rows)
        origin: list[int] = []
        results: list[Any] = []
        errors: Errors = []
        for index, value in enumerate(values):
            try:
                if type(value) is Failed:
                    raise value.error
                found = function(value)
                if kind == "map":
                    results.append(found)
                    origin.append(index)
                elif kind == "flat_map":
                    # All or nothing: rows that came before an error within one call are not sent.
                    several = _several(self.name, found)
                    results += several
                    origin += [index] * len(several)
                elif _truth(self.name, found):
                    origin.append(index)
            except RAISED as error:  # Whatever a user's function raises is an error of its row.
                errors.append((index, error))
        return origin, results, errors

    def _repeated(self, attempts: int) -> Callable[[Any], Any]:
        """The function, called again if it raises. What a generator raises it raises while it is read, so it is read here."""
        function, whole = self.function, self.kind == "flat_map"

        def repeated(value: Any) -> Any:
            for left in reversed(range(attempts)):
                try:
                    found = function(value)
                    return _several(self.name, found) if whole else found
                except RAISED:
                    if not left:
                        raise
            raise AssertionError("there is at least one attempt")

        return repeated

    def _to_batch(self, results: list[Any]) -> pa.RecordBatch:
        columns = self.encoder(results)
        arrays = [to_array(column, field) for column, field in zip(columns, self.output, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)

    def _without_misfits(self, origin: Origin, results: list[Any], errors: Errors) -> tuple[pa.RecordBatch, Origin, Errors]:
        """The rows that fit; the input rows of the others are added to the errors."""
        bad: dict[int, BaseException] = {}
        for index, result in zip(origin, results, strict=True):
            try:
                self._to_batch([result])
            except Exception as error:
                bad.setdefault(index, error)
        kept = [position for position, index in enumerate(origin) if index not in bad]
        rows = self._to_batch([results[position] for position in kept])
        return (
            rows,
            [origin[position] for position in kept],
            sorted([*errors, *bad.items()], key=itemgetter(0)),
        )


class Sure(map):  # type: ignore[type-arg]
    """Arguments of which none is `Failed`."""


def _mapped(function: Callable[[Any], Any], values: Sure, rows: int) -> tuple[Origin, list[Any], Errors]:
    """One result for each row. As long as no call fails there is no step of Python for a row but the function itself."""
    results: list[Any] = []
    errors: Errors = []
    each = map(function, values)
    while len(results) + len(errors) < rows:
        try:
            results.extend(each)  # up to the row that fails; the next time from the one behind it
            if len(results) + len(errors) < rows:
                raise RuntimeError("the function raised StopIteration")
        except RAISED as error:  # Whatever a user's function raises is an error of its row.
            errors.append((len(results) + len(errors), error))
    bad = {row for row, _ in errors}
    return range(rows) if not bad else [row for row in range(rows) if row not in bad], results, errors


def _name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", None) or _name_of(getattr(fn, "func", type(fn))))


def _annotations(fn: Callable[..., Any], name: str) -> tuple[Any, Any]:
    """The annotations of the first parameter and of the result; None where there are none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except ValueError:  # Some builtins have no signature: then nothing is known, and schema= must say it.
        return None, None
    if not parameters:
        called = name if name.isidentifier() else "f"
        raise PlanError(
            f"{name} takes no argument, and is given a row", fix=Fix("function.argument", f"Let it take one: def {called}(row)")
        )
    target: Any = getattr(fn, "func", fn)
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise PlanError(
            f"cannot read the annotations of {name}: {error}",
            fix=Fix("function.hints", "Define the classes they mention at the top level of a module"),
        ) from error
    except TypeError:
        hints = {}
    returned = hints.get("return")
    if returned is type(None):
        raise PlanError(f"{name} is annotated to return None, so there would be no rows")
    return hints.get(parameters[0].name), returned


def _returned(name: str, kind: str, returns: Any) -> Any:
    """What one output row is, by the return annotation."""
    if returns is None:
        called = name if name.isidentifier() else "…"
        raise PlanError(
            f"cannot tell what {name} returns",
            fix=Fix(
                "function.returns",
                f"Use a function with a return annotation (-> float, or a class with fields), or say it: .{kind}({called}, schema=float)",
            ),
        )
    if kind in ("map", "map_async"):
        inner, optional = is_optional(returns)
        if optional and (inner is Row or is_record_class(inner)):
            raise PlanError(
                f"{name} may return None, and {kind} makes one row of each",
                fix=Fix("function.none", "Use flat_map with a list, which may be empty, or filter first"),
            )
        return returns
    args = typing.get_args(returns)
    origin = typing.get_origin(returns)
    iterable = isinstance(origin, type) and hasattr(origin, "__iter__") and not issubclass(origin, Mapping)
    if not iterable or not args:
        raise PlanError(
            f"flat_map needs a function that gives several rows, and {name} returns {shown_type(returns)}",
            fix=Fix("function.several", f"Annotate it as what it yields, -> Iterator[{shown_type(returns)}], or use map"),
        )
    return args[0]


def shown_type(annotation: Any) -> str:
    """How to call a type in a message."""
    whole = isinstance(annotation, type) or typing.get_origin(annotation) is None  # of list[int] the name is only "list"
    return str(getattr(annotation, "__name__", annotation) if whole else annotation)


# From columns to what the function gets


class Reading(Protocol):
    """A function, as far as it is known what it reads."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def decoder(self) -> Decoder: ...


class Failed:
    """Stands for an argument that could not be made: the call raises this error instead."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def arguments_of(function: Reading, batch: pa.RecordBatch) -> Iterable[Any]:
    """The argument of each call; `Failed` for a row with a time that Python does not have."""
    columns = [batch.column(name) for name in function.columns]
    try:
        return function.decoder([to_values(column) for column in columns], batch.num_rows)
    except (OverflowError, ValueError):
        far = {row: name for name, column in zip(function.columns, columns) for row in far_rows(column)}
        rest = pa.array([row for row in range(batch.num_rows) if row not in far], pa.int64())
        made = iter(function.decoder([to_values(column.take(rest)) for column in columns], len(rest)))
        return (Failed(far_error(far[row])) if row in far else next(made) for row in range(batch.num_rows))


def decoder_for(name: str, annotation: Any, schema: pa.Schema) -> tuple[tuple[str, ...], Decoder]:
    """The columns a function with this parameter reads, and what makes its arguments of them."""
    if annotation is None or annotation is Row or annotation is typing.Any:
        return tuple(schema.names), _row_decoder(schema)
    if is_record_class(annotation):
        return _record_decoder(name, annotation, schema)
    field = to_field("value", annotation)
    if len(schema) != 1:
        raise PlanError(
            f"{name} takes {shown_type(annotation)}, so its input must have one column, "
            f"and this has {len(schema)}: {', '.join(schema.names)}",
            fix=Fix("function.one-column", "Annotate a class with the fields it needs, or take a pen.Row"),
        )
    only = schema.field(0)
    _check_fits(name, only, field)
    convert = _safely(instance_maker(annotation))

    def decode(columns: list[list[Any]], rows: int) -> Iterable[Any]:
        if field.nullable:
            return (None if value is None else convert(value) for value in columns[0])
        fix = Fix("function.null", f"Annotate it so, or filter first. Write: {shown_type(annotation)} | None")
        refused = Failed(RowError(f"{only.name}: null, and {name} takes none", fix=fix))
        return (refused if value is None else convert(value) for value in columns[0])

    return (only.name,), decode


def _row_decoder(schema: pa.Schema) -> Decoder:
    names = schema.names

    def decode(columns: list[list[Any]], rows: int) -> Iterable[Any]:
        if not columns:
            return (Row() for _ in range(rows))
        return (row_of(dict(zip(names, values))) for values in zip(*columns))

    return decode


def _record_decoder(name: str, annotation: Any, schema: pa.Schema) -> tuple[tuple[str, ...], Decoder]:
    fields = list(to_schema(annotation))
    for field in fields:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise PlanError(no_such_column(field.name, schema.names))
        _check_fits(name, schema.field(index), field)
    make = _safely(instance_maker(annotation))
    names = [field.name for field in fields]
    required = [field.name for field in fields if not field.nullable and schema.field(field.name).nullable]

    def decode_one(values: tuple[Any, ...]) -> Any:
        record = dict(zip(names, values, strict=True))
        for one in required:
            if record[one] is None:
                said = typing.get_type_hints(annotation, include_extras=True)[one]
                fix = Fix("function.null-field", f"Annotate it so, or filter first. Write: {one}: {shown_type(said)} | None")
                return Failed(RowError(f"{one}: null, and {annotation.__name__} takes none", fix=fix))
        return make(record)

    direct, bare = _takes_columns(annotation, schema), issubclass(annotation, tuple)
    checked = [names.index(one) for one in required]

    def decode(columns: list[list[Any]], rows: int) -> Iterable[Any]:
        if direct and not any(None in columns[index] for index in checked):
            # What a NamedTuple's own __new__ does, without a call of Python.
            return Sure(tuple.__new__, itertools.repeat(annotation), zip(*columns)) if bare else Sure(annotation, *columns)
        return map(decode_one, zip(*columns, strict=True))

    return tuple(names), decode


def _takes_columns(annotation: Any, schema: pa.Schema) -> bool:
    """Whether instances can be made of values as they are, position by position, and nothing can go wrong: several times faster."""
    if dataclasses.is_dataclass(annotation):
        parameters: Any = getattr(annotation, "__dataclass_params__")  # noqa: B009 - mypy does not know it
        plain = all(field.init and not field.kw_only for field in dataclasses.fields(annotation))
        own = "__init__" in vars(annotation) and not hasattr(annotation, "__post_init__")
        if not (parameters.init and plain and own):
            return False
    elif not (issubclass(annotation, tuple) and annotation.__base__ is tuple):
        return False
    makers = ((name, instance_maker(hint)) for name, hint in record_hints(annotation).items())
    return all(m is _itself or (m is float and pa.types.is_floating(schema.field(n).type)) for n, m in makers)


def _check_fits(name: str, column: pa.Field, field: pa.Field) -> None:
    """A column fits a parameter if its Python values are of the annotated kind: any integer is an `int`."""
    wanted = type_name(field.type)
    if not _fits(column.type, field.type):
        raise PlanError(
            f"{name} takes {wanted} as {field.name!r}, and column {column.name!r} is {type_name(column.type)}",
            fix=Fix("function.type", f"Change the annotation, or cast the column before. Write: {_cast_text(column, wanted)}"),
        )


def _cast_text(column: pa.Field, wanted: str) -> str:
    cast = f'col("{column.name}").cast("{wanted}")'
    return (
        f".with_columns({column.name}={cast})" if column.name.isidentifier() else f'.with_columns(**{{"{column.name}": {cast}}})'
    )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_struct(wanted):
        return bool(pa.types.is_struct(found)) and all(
            found.get_field_index(field.name) >= 0 and _fits(found.field(field.name).type, field.type) for field in wanted
        )
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found) or pa.types.is_large_list(found)) and _fits(found.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(found)) and _fits(found.item_type, wanted.item_type)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(found):
        return (found.tz is None) == (wanted.tz is None)
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_floating(found) or pa.types.is_integer(found))
    alike: list[Callable[[pa.DataType], bool]] = [
        pa.types.is_integer,
        pa.types.is_decimal,
        pa.types.is_date,
        lambda kind: bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)),
        lambda kind: "binary" in str(kind),
    ]
    return found == wanted or any(check(found) and check(wanted) for check in alike)


def instance_maker(annotation: Any) -> Callable[[Any], Any]:
    """What turns Arrow's Python value (dicts, lists of pairs) into an instance of the annotated type."""
    annotation, _ = is_optional(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return instance_maker(args[0])
    if annotation is float:
        return float
    if origin is list:
        item = _unless_null(instance_maker(args[0]))
        return lambda values: [item(value) for value in values]
    if origin is dict:
        item = _unless_null(instance_maker(args[1]))
        return lambda pairs: {key: item(value) for key, value in dict(pairs).items()}
    if not is_record_class(annotation):
        return _itself
    makers = {name: _unless_null(instance_maker(hint)) for name, hint in record_hints(annotation).items()}
    if typing.is_typeddict(annotation):
        return lambda record: {name: maker(record[name]) for name, maker in makers.items()}
    return lambda record: annotation(**{name: maker(record[name]) for name, maker in makers.items()})


def _itself(value: Any) -> Any:
    return value


def _safely(maker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`maker`, with an error as its result: a class may refuse values in its __post_init__."""
    if maker is _itself:
        return maker

    def make(value: Any) -> Any:
        try:
            return maker(value)
        except RAISED as error:
            return Failed(error)

    return make


def _unless_null(maker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return maker if maker is _itself else lambda value: None if value is None else maker(value)


# From what the function returns to columns


def _nothing(results: list[Any]) -> list[list[Any]]:
    return []


def encoder_for(spec: Any, input: pa.Schema) -> tuple[pa.Schema, Encoder]:
    """The output schema, and what turns returned values into its columns."""
    output = input if spec is Row else to_schema(spec)
    nested = [bool(pa.types.is_nested(kind)) for kind in output.types]

    def plain(columns: list[list[Any]]) -> list[list[Any]]:
        pairs = zip(columns, nested, strict=True)
        return [[plain_value(value) for value in column] if is_nested else column for column, is_nested in pairs]

    if spec is Row or isinstance(spec, str | pa.Schema) or is_record_class(spec):
        return output, lambda results: plain(_record_columns(results, output.names))
    return output, lambda results: plain([results])


def _record_columns(results: list[Any], names: list[str]) -> list[list[Any]]:
    kinds = set(map(type, results))
    only = kinds.pop() if len(kinds) == 1 else None
    if dataclasses.is_dataclass(only) and {field.name for field in dataclasses.fields(only)} == set(names):
        return [[getattr(result, name) for result in results] for name in names]
    if only is not None and _stands_for(only, results, names):
        return list(map(list, zip(*results, strict=True)))
    records = results if only is dict else [_record_of(result, names) for result in results]
    known = set(names)
    for record in records:
        if not known.issuperset(record):
            raise RowError(no_such_column(next(name for name in record if name not in known), names))
    return [[record.get(name) for record in records] for name in names]


def _stands_for(kind: type, results: list[Any], names: list[str]) -> bool:
    """Whether these, all of one kind, are tuples with exactly these columns."""
    if kind is tuple:
        return set(map(len, results)) == {len(names)}
    return issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(names)


def _record_of(value: Any, names: list[str]) -> Mapping[str, Any]:
    if isinstance(value, tuple) and not hasattr(value, "_asdict") and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    found = fields_of(value)
    if found is None:
        raise RowError(f"expected a row with {', '.join(names)}, and found {value!r}")
    return found


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of whatever can stand for a row, or None."""
    if isinstance(value, Row):
        return value._values
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named: dict[str, Any] = value._asdict()
        return named
    return None


def plain_value(value: Any) -> Any:
    """Instances, also within others, as the dicts and lists that Arrow takes."""
    fields = fields_of(value)
    if fields is not None:
        return {key: plain_value(item) for key, item in fields.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value


_NOT_SEVERAL = (str, bytes, Mapping, Row)


def _several(name: str, found: Any) -> list[Any]:
    if found is None or isinstance(found, _NOT_SEVERAL):
        raise RowError(f"{name} must return several rows (a list, or by yield), and returned {found!r}")
    return list(found)


def _truth(name: str, found: Any) -> bool:
    if found is True or found is False:
        return found
    if isinstance(found, np.bool_):
        return bool(found)
    raise RowError(f"{name} must return True or False, and returned {found!r}")
