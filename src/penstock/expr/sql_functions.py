"""The functions of SQL texts: for each name its forms, and what it is as a node.

The parser hands over a function as it was written: a name and its arguments. `FUNCTIONS` is all there is; a name that is not
in it is refused, and so is any number of arguments that no form has. `docs/guide/functions.md` describes each of them, and
`tests/differential` compares each with Spark's own answer; both fail for a function that they do not know.

A reader gets the name and the written arguments (trees of sqlglot's) and returns a node. What must be known before the first row, as a
pattern or a unit, is a literal: `_text` and `_whole` say so where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.expr.expressions import event_time
from penstock.expr.moments import time_unit
from penstock.expr.nodes import Call, Case, Cast, Node
from penstock.expr.sql_errors import LIST_OF_FUNCTIONS, no_such_function, written
from penstock.schema import type_of

__all__ = ["FUNCTIONS", "Function", "function"]

Read = Callable[[Any], Node]
"""Reads a tree of sqlglot's: an argument is an expression itself."""

_REGEX_MARKS = set(r".^$*+?{}[]\|()")
_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("decimal", "date", "timestamp", "binary", "string"),
)
_NAMED = ("Alias", "Column", "Dot")


@dataclass(frozen=True, slots=True)
class Function:
    """One function: how it is written, how many arguments it takes (`most` None: any number), and its reader."""

    form: str
    least: int
    most: int | None
    reader: Callable[[str, list[Any], Read], Node]


def function(tree: Any, read: Read) -> Node:
    """The node of a function that was written; a `PlanError` if there is none."""
    name, args = str(getattr(tree.this, "this", tree.this)).lower(), tree.expressions
    found = FUNCTIONS.get(name)
    if found is None:
        raise no_such_function(name, written(tree))
    if len(args) < found.least or (found.most is not None and len(args) > found.most):
        raise PlanError(
            f"{name} does not take {len(args) or 'no'} argument{'' if len(args) == 1 else 's'}: {written(tree)}",
            fix=Fix("sql.arguments", f"It is written {found.form}. {LIST_OF_FUNCTIONS}"),
        )
    return found.reader(name, args, read)


def _call(kernel: str) -> Callable[[str, list[Any], Read], Node]:
    """A function whose arguments are all expressions."""
    return lambda name, args, read: Call(kernel, tuple(map(read, args)))


def _pattern(kernel: str) -> Callable[[str, list[Any], Read], Node]:
    """A function of a text and a literal one."""
    return lambda name, args, read: Call(kernel, (read(args[0]),), (_text(name, args[1]),))


def _as_type(name: str, args: list[Any], read: Read) -> Node:
    return Cast(read(args[0]), type_of(name))


def _if(name: str, args: list[Any], read: Read) -> Node:
    return Case(((read(args[0]), read(args[1])),), read(args[2]))


def _struct(name: str, args: list[Any], read: Read) -> Node:
    names, values = [], []
    for field in args:
        if type(field).__name__ not in _NAMED:
            text = written(field)
            raise PlanError(
                f"a field of a struct needs a name, and {text} has none", fix=Fix("sql.field", f"Write: struct({text} as x)")
            )
        names.append(field.alias_or_name)
        values.append(read(field.this if type(field).__name__ == "Alias" else field))
    return _fields(names, values)


def _named_struct(name: str, args: list[Any], read: Read) -> Node:
    if len(args) % 2:
        raise PlanError(f"{name} takes pairs of a name and a value, and found {len(args)} arguments")
    return _fields([_text(name, arg) for arg in args[::2]], [read(arg) for arg in args[1::2]])


def _fields(names: list[str], values: list[Node]) -> Node:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PlanError(f"a struct has two fields called {twice!r}, and needs different names")
    return Call("struct", tuple(values), tuple(names))


def _replace(name: str, args: list[Any], read: Read) -> Node:
    return Call("replace", (read(args[0]),), (_text(name, args[1]), _text(name, args[2]) if len(args) == 3 else ""))


def _extract(name: str, args: list[Any], read: Read) -> Node:
    pattern = _text(name, args[1])
    group = _whole(name, args[2]) if len(args) == 3 else 1
    return Call("extract", (read(args[0]),), (pattern,) if group == 1 else (pattern, group))


def _split(name: str, args: list[Any], read: Read) -> Node:
    separator = _text(name, args[1])
    if not separator:
        raise PlanError("split needs a separator, and found ''")
    return Call("split", (read(args[0]),), (separator, bool(_REGEX_MARKS & set(separator))))


def _date_trunc(name: str, args: list[Any], read: Read) -> Node:
    unit = time_unit(name, _text(name, args[0]))
    if unit in ("second", "minute", "hour", "day"):
        return Call("truncate", (read(args[1]),), (f"1 {unit}",))
    return Call("date_trunc", (read(args[1]),), (unit,))


def _trunc(name: str, args: list[Any], read: Read) -> Node:
    return Call("trunc", (read(args[0]),), (time_unit(name, _text(name, args[1])),))


def _truncate(name: str, args: list[Any], read: Read) -> Node:
    return Call("truncate", (read(args[0]),), (_text(name, args[1]),))


def _to_moment(name: str, args: list[Any], read: Read) -> Node:
    found = type_of(name.removeprefix("to_"))
    if len(args) == 1:
        return Cast(read(args[0]), found)
    return Call(name, (read(args[0]),), (_text(name, args[1]),))


def _event_time(name: str, args: list[Any], read: Read) -> Node:
    return event_time().node


def _text(name: str, argument: Any) -> str:
    kind = type(argument).__name__
    if kind == "RawString" or (kind == "Literal" and argument.is_string):
        return str(argument.this)
    if kind == "Concat" and all(part.is_string for part in argument.expressions):
        return "".join(part.this for part in argument.expressions)
    raise PlanError(f"{name} needs a text in quotes here, not an expression: {written(argument)}")


def _whole(name: str, argument: Any) -> int:
    if type(argument).__name__ == "Literal" and not argument.is_string and str(argument.this).isdigit():
        return int(argument.this)
    raise PlanError(f"{name} needs a whole number here, not an expression: {written(argument)}")


FUNCTIONS: dict[str, Function] = {
    **{name: Function(f"{name}(value, ...)", 1, None, _call("coalesce")) for name in ("coalesce",)},
    **{name: Function(f"{name}(value, instead)", 2, 2, _call("coalesce")) for name in ("nvl", "ifnull")},
    **{name: Function(f"{name}(value, value, ...)", 2, None, _call(name)) for name in ("least", "greatest")},
    "if": Function("if(condition, value, otherwise)", 3, 3, _if),
    "concat": Function("concat(text, ...)", 1, None, _call("concat")),
    "mod": Function("mod(number, by)", 2, 2, _call("modulo")),
    "div": Function("div(number, by)", 2, 2, _call("div")),
    **{name: Function(f"{name}(text)", 1, 1, _call("lower")) for name in ("lower", "lcase")},
    **{name: Function(f"{name}(text)", 1, 1, _call("upper")) for name in ("upper", "ucase")},
    **{name: Function(f"{name}(text)", 1, 1, _call("length")) for name in ("length", "len", "char_length", "character_length")},
    "trim": Function("trim(text)", 1, 1, _call("trim")),
    "contains": Function("contains(text, 'part')", 2, 2, _pattern("contains")),
    **{name: Function(f"{name}(text, 'part')", 2, 2, _pattern("starts_with")) for name in ("startswith", "starts_with")},
    **{name: Function(f"{name}(text, 'part')", 2, 2, _pattern("ends_with")) for name in ("endswith", "ends_with")},
    "replace": Function("replace(text, 'old', 'new')", 2, 3, _replace),
    "regexp_extract": Function("regexp_extract(text, 'pattern', group)", 2, 3, _extract),
    "split": Function("split(text, 'pattern')", 2, 2, _split),
    **{name: Function(f"{name}(date)", 1, 1, _call(name)) for name in ("year", "month", "day")},
    "dayofmonth": Function("dayofmonth(date)", 1, 1, _call("day")),
    **{name: Function(f"{name}(timestamp)", 1, 1, _call(name)) for name in ("hour", "minute", "second")},
    "date_trunc": Function("date_trunc('unit', timestamp)", 2, 2, _date_trunc),
    "trunc": Function("trunc(date, 'unit')", 2, 2, _trunc),
    "truncate": Function("truncate(timestamp, 'duration')", 2, 2, _truncate),
    "to_date": Function("to_date(value, 'format')", 1, 2, _to_moment),
    "to_timestamp": Function("to_timestamp(value, 'format')", 1, 2, _to_moment),
    "element_at": Function("element_at(list or map, number or key)", 2, 2, _call("element_at")),
    "try_element_at": Function("try_element_at(list or map, number or key)", 2, 2, _call("try_element_at")),
    "struct": Function("struct(column, value as name, ...)", 1, None, _struct),
    "named_struct": Function("named_struct('name', value, ...)", 2, None, _named_struct),
    **{name: Function(f"{name}(value)", 1, 1, _as_type) for name in _TYPES},
    "event_time": Function("event_time()", 0, 0, _event_time),
}
