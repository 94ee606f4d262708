"""The nodes of an expression: immutable, comparable, and without meaning of their own.

`col("price") * 2 > 10` is a tree of these. A node says what was written; `resolve` finds out what it means
for a given schema, and `evaluate` computes it. Users never see nodes: they hold an `Expr`, a thin handle
whose operators build them.

1. Nodes are frozen dataclasses with ordinary equality and hash, so plans can be compared and put in sets.
2. A literal's type is part of it: the literals 1, 1.0 and True are three different nodes, though Python finds
   them equal.
3. `text` prints SQL. It is what error messages and `explain()` show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.schema import is_unicode, type_name

__all__ = [
    "EVENT_TIME",
    "Call",
    "Case",
    "Cast",
    "Column",
    "Literal",
    "Node",
    "Udf",
    "columns_of",
    "literal",
    "walk",
]

EVENT_TIME = "__time"
"""The hidden column that `with_watermark` adds and `event_time()` reads."""

_DIGITS = 38  # of a decimal, at most

_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "modulo": "%",
    "div": "div",
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "and",
    "or": "or",
}


class Node:
    """What all nodes share: their inputs, and their text."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def text(self) -> str:
        """The node as SQL."""
        raise NotImplementedError

    def inner_text(self) -> str:
        """The node as an operand: in parentheses where they are needed to read it the same way."""
        return self.text()


@dataclass(frozen=True)
class Column(Node):
    """The value of a column."""

    name: str

    def __post_init__(self) -> None:
        _stored(self.name)

    def text(self) -> str:
        if self.name == EVENT_TIME:
            return "event_time()"
        return self.name if self.name.isidentifier() else f"`{self.name}`"


@dataclass(frozen=True)
class Literal(Node):
    """A constant, with the type that its Python value has."""

    value: Any
    type: pa.DataType

    def text(self) -> str:
        match self.value:
            case None:
                return "null"
            case bool():
                return str(self.value).lower()
            case str():
                return "'" + self.value.replace("'", "''") + "'"
            case bytes():
                return f"x'{self.value.hex()}'"
            case datetime():
                return f"timestamp '{self.value.isoformat(sep=' ')}'"
            case date():
                return f"date '{self.value.isoformat()}'"
            case timedelta():
                return f"interval '{self.value}'"
        return str(self.value)


@dataclass(frozen=True)
class Call(Node):
    """A function of other nodes. `options` are fixed when it is written: a pattern, a unit, field names."""

    function: str
    args: tuple[Node, ...]
    options: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for option in self.options:
            _stored(option)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.args

    def text(self) -> str:
        texts = [arg.inner_text() for arg in self.args]
        if self.function in _INFIX:
            return f"{texts[0]} {_INFIX[self.function]} {texts[1]}"
        match self.function:
            case "not":
                return f"not {texts[0]}"
            case "negate":
                return f"-{texts[0]}"
            case "is_null":
                return f"{texts[0]} is null"
            case "is_not_null":
                return f"{texts[0]} is not null"
            case "is_in":
                return f"{texts[0]} in ({', '.join(texts[1:])})"
            case "between":
                return f"{texts[0]} between {texts[1]} and {texts[2]}"
            case "date_trunc":
                return f"date_trunc('{self.options[0]}', {self.args[0].text()})"
            case "extract":
                pattern, group = (*self.options, 1)[:2]
                return f"regexp_extract({texts[0]}, {literal(pattern).text()}, {group})"
            case "split":
                return f"split({texts[0]}, {literal(self.options[0]).text()})"
            case "get":
                return self._get_text(texts[0])
            case "struct":
                pairs = zip(self.options, self.args, strict=True)
                return f"struct({', '.join(f'{arg.text()} as {name}' for name, arg in pairs)})"
        shown = [arg.text() for arg in self.args] + [_option_text(option) for option in self.options]
        return f"{self.function}({', '.join(shown)})"

    def inner_text(self) -> str:
        words = ("not", "negate", "is_null", "is_not_null", "is_in", "between")
        return f"({self.text()})" if self.function in _INFIX or self.function in words else self.text()

    def _get_text(self, value: str) -> str:
        key = self.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str) and key.value.isidentifier():
            return f"{value}.{key.value}"
        return f"{value}[{key.text()}]"


@dataclass(frozen=True)
class Cast(Node):
    """A value as another type. `attempt` gives null instead of an error (SQL's try_cast)."""

    input: Node
    type: pa.DataType
    attempt: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"{'try_cast' if self.attempt else 'cast'}({self.input.text()} as {type_name(self.type)})"


@dataclass(frozen=True)
class Case(Node):
    """The value of the first branch whose condition is true, else `otherwise`, else null."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None = None

    @property
    def inputs(self) -> tuple[Node, ...]:
        rest = () if self.otherwise is None else (self.otherwise,)
        return (*(node for branch in self.branches for node in branch), *rest)

    def text(self) -> str:
        branches = " ".join(f"when {condition.text()} then {value.text()}" for condition, value in self.branches)
        rest = "" if self.otherwise is None else f" else {self.otherwise.text()}"
        return f"case {branches}{rest} end"


@dataclass(frozen=True)
class Udf(Node):
    """A user's own function. By value it is called once per row; by column once per batch, with Arrow arrays.

    `parameters` has a field for each argument: its type (None: whatever comes) and whether the function takes
    nulls.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Node, ...]
    parameters: tuple[pa.Field | None, ...]
    returns: pa.Field
    by_column: bool = False
    makers: tuple[Callable[[Any], Any] | None, ...] = ()  # what makes records of the arguments that are some

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.args

    def text(self) -> str:
        return f"{self.name}({', '.join(arg.text() for arg in self.args)})"


def literal(value: Any) -> Literal:
    """The literal of a Python value.

    An int is a bigint and a float a double, but next to a column an int literal takes the column's type if it
    fits.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        raise PlanError(
            f"{value!r} has no time zone", fix=Fix("literal.zone", f"If it is in UTC, say so. Write: {_in_utc(value)}")
        )
    _stored(value)
    found = next((found for kind, found in _LITERAL_TYPES if isinstance(value, kind)), None)
    if isinstance(value, Decimal):
        found = _decimal_type(value)
    if found == pa.int64() and not -(2**63) <= value < 2**63:
        fix = Fix("literal.bits", f"Write: Decimal({value})") if abs(value) < 10**_DIGITS else None
        raise PlanError(f"{value} does not fit in 64 bits", fix=fix)
    if found is not None:
        return Literal(value, found)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return literal(value.item())  # A numpy scalar.
    raise PlanError(f"{value!r} cannot be a literal: expected a number, text, bytes, a date, datetime, timedelta or None")


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for inner in node.inputs:
        yield from walk(inner)


def columns_of(node: Node) -> frozenset[str]:
    """The names of the columns that a node reads."""
    return frozenset(inner.name for inner in walk(node) if isinstance(inner, Column))


def _stored(value: object) -> None:
    """A text that stands in an expression is one that can be compared with stored ones, or be stored."""
    if isinstance(value, str) and not is_unicode(value):
        raise PlanError(
            f"{value!r} has half of a character (a surrogate without its other half), which cannot be stored",
            fix=Fix("text.half", 'Put another in its place. Write: text.encode("utf-8", "replace").decode()'),
        )


def _in_utc(value: datetime) -> str:
    """The moment of UTC that a clock without a zone shows, as code."""
    parts = [*value.timetuple()[:6], value.microsecond]
    while len(parts) > 5 and not parts[-1]:
        parts.pop()
    return f"datetime({', '.join(map(str, parts))}, tzinfo=UTC)"


def _decimal_type(value: Decimal) -> pa.DataType:
    if not value.is_finite():
        raise PlanError(f"{value!r} is not a number that a decimal column can hold")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a finite decimal has an exponent"
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > _DIGITS:
        raise PlanError(f"{value} has {precision} digits, and a decimal has at most {_DIGITS}")
    return pa.decimal128(precision, scale)


def _option_text(option: Any) -> str:
    return literal(option).text() if isinstance(option, str) else str(option)


# In order: bool is an int and datetime is a date to Python, but not here.
_LITERAL_TYPES: list[tuple[type, pa.DataType]] = [
    (type(None), pa.null()),
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (str, pa.string()),
    (bytes, pa.binary()),
    (datetime, pa.timestamp("us", tz="UTC")),
    (date, pa.date32()),
    (timedelta, pa.duration("us")),
]
