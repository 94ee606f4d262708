"""Expressions as users write them: `col("price") * 2 > 10`.

An `Expr` is a handle on a node. Its operators build bigger nodes and compute nothing; what an expression
means is found out when it meets a schema. Because `==` builds a comparison, expressions are compared by
`same`.

Inside an expression a Python value is a literal: `col("kind") == "view"` compares with the text, not with a
column of that name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NoReturn, overload

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.expr.aggregating import Aggregating
from penstock.expr.moments import duration_us
from penstock.expr.nodes import EVENT_TIME, Call, Case, Cast, Column, Node, columns_of, literal
from penstock.expr.regex import named_group
from penstock.expr.resolve import resolve
from penstock.expr.udf import udf_node
from penstock.schema import column_name, to_type

__all__ = [
    "Expr",
    "coalesce",
    "col",
    "concat",
    "event_time",
    "greatest",
    "least",
    "lit",
    "struct",
    "udf",
    "when",
]


class Expr(Aggregating):
    """A value of each row, not yet computed. Its aggregates are in `aggregating`.

    >>> col("price") * col("quantity")
    price * quantity
    """

    __slots__ = ("_name", "node")
    # Without these, Python would use [] to iterate, and never end.
    __iter__ = None
    __contains__ = None

    def __init__(self, node: Node, name: str | None = None) -> None:
        self.node = node
        self._name = name

    @property
    def name(self) -> str | None:
        """The name of the result: the alias, else the column's own name, else None."""
        if self._name is not None:
            return self._name
        return self.node.name if isinstance(self.node, Column) and self.node.name != EVENT_TIME else None

    # What it means

    def type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the value over rows of `schema`; a `PlanError` where it has none."""
        return resolve(self.node, schema).type

    def field(self, schema: pa.Schema, name: str) -> pa.Field:
        """The result column: its type, and whether it may be null."""
        typed = resolve(self.node, schema)
        return pa.field(name, typed.type, nullable=typed.nullable)

    def check(self, schema: pa.Schema) -> None:
        """Raise a `PlanError` unless the expression means something over rows of `schema`."""
        resolve(self.node, schema)

    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        return columns_of(self.node)

    def text(self) -> str:
        """The expression as SQL."""
        return self.node.text()

    def same(self, other: Expr) -> bool:
        """Whether both are the same expression. (`==` builds a comparison.)"""
        return isinstance(other, Expr) and self.node == other.node and self._name == other._name

    def __repr__(self) -> str:
        return self.text() if self._name is None else f"{self.text()} as {self._name}"

    def __hash__(self) -> int:
        return hash((self.node, self._name))

    def __bool__(self) -> NoReturn:
        raise PlanError(
            "an expression is neither true nor false until it runs, so 'and', 'or', 'not' and 'if' cannot use it",
            fix=Fix("expr.bool", 'Use &, | and ~, with each part in parentheses. Write: (col("a") > 1) & (col("b") < 2)'),
        )

    # Operators

    def __add__(self, other: Any) -> Expr:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _call("divide", other, self)

    def __mod__(self, other: Any) -> Expr:
        return _call("modulo", self, other)

    def __rmod__(self, other: Any) -> Expr:
        return _call("modulo", other, self)

    def __neg__(self) -> Expr:
        return _call("negate", self)

    def __eq__(self, other: Any) -> Expr:  # type: ignore[override]
        return _call("equal", self, other)

    def __ne__(self, other: Any) -> Expr:  # type: ignore[override]
        return _call("not_equal", self, other)

    def __lt__(self, other: Any) -> Expr:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Expr:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _call("greater_equal", self, other)

    def __and__(self, other: Any) -> Expr:
        return _call("and", self, other)

    def __rand__(self, other: Any) -> Expr:
        return _call("and", other, self)

    def __or__(self, other: Any) -> Expr:
        return _call("or", self, other)

    def __ror__(self, other: Any) -> Expr:
        return _call("or", other, self)

    def __invert__(self) -> Expr:
        return _call("not", self)

    def __getitem__(self, key: Any) -> Expr:
        """A field of a struct, a value of a map, or an element of a list (from 0)."""
        return _call("get", self, key)

    # Methods

    def div(self, other: Any) -> Expr:
        """Whole-number division, cut towards zero."""
        return _call("div", self, other)

    def is_null(self) -> Expr:
        return _call("is_null", self)

    def is_not_null(self) -> Expr:
        return _call("is_not_null", self)

    def is_in(self, values: Iterable[Any]) -> Expr:
        """Whether the value is one of `values`, which are literals."""
        if isinstance(values, Expr):
            raise PlanError(
                f"is_in takes a list of values, and found the expression {values!r}",
                fix=Fix("expr.is_in-expression", "Compare with it by ==, or list constants. Write: .is_in([1, 2])"),
            )
        if isinstance(values, str | bytes):
            raise PlanError(
                f"is_in takes a list of values, and found {values!r}", fix=Fix("expr.is_in", f"Write: .is_in([{values!r}])")
            )
        literals = [literal(value) for value in values]
        if not literals:
            raise PlanError("is_in needs at least one value: nothing is in an empty list")
        return Expr(Call("is_in", (self.node, *literals)))

    def between(self, low: Any, high: Any) -> Expr:
        """Whether the value is from `low` to `high`, both included."""
        return _call("between", self, low, high)

    def fill_null(self, value: Any) -> Expr:
        return coalesce(self, value)

    def cast(self, type: Any) -> Expr:
        """The value as another type: "bigint", `int` or an Arrow type. Where it cannot be, the row is bad."""
        return Expr(Cast(self.node, to_type(type)))

    def alias(self, name: str) -> Expr:
        """The same value under another name."""
        return Expr(self.node, column_name(name))

    @property
    def str(self) -> Text:
        """Functions of text."""
        return Text(self)

    @property
    def dt(self) -> Moment:
        """Functions of timestamps and dates."""
        return Moment(self)


class Text:
    """`.str`: functions of text."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def lower(self) -> Expr:
        return _call("lower", self._expr)

    def upper(self) -> Expr:
        return _call("upper", self._expr)

    def length(self) -> Expr:
        """The number of characters."""
        return _call("length", self._expr)

    def trim(self) -> Expr:
        """Without spaces at both ends."""
        return _call("trim", self._expr)

    def contains(self, part: str) -> Expr:
        return _call("contains", self._expr, options=(_text(part),))

    def starts_with(self, part: str) -> Expr:
        return _call("starts_with", self._expr, options=(_text(part),))

    def ends_with(self, part: str) -> Expr:
        return _call("ends_with", self._expr, options=(_text(part),))

    def replace(self, old: str, new: str) -> Expr:
        """Every `old` (not a pattern) replaced by `new`."""
        return _call("replace", self._expr, options=(_text(old), _text(new)))

    def extract(self, pattern: str, group: int = 1) -> Expr:
        """What a group of a regular expression matched, 0 being all of it; as in Spark, "" if nothing did."""
        named_group(_text(pattern), group)
        return _call("extract", self._expr, options=(pattern,) if group == 1 else (pattern, group))

    def split(self, separator: str) -> Expr:
        """The parts between `separator` (not a pattern), as a list."""
        if not _text(separator):
            raise PlanError('split needs a separator, and found ""', fix=Fix("expr.split", 'Write: .str.split(",")'))
        return _call("split", self._expr, options=(separator, False))


class Moment:
    """`.dt`: functions of timestamps and dates, in UTC."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def truncate(self, to: str | timedelta) -> Expr:
        """The moment at or before it that is a multiple of "10s", "1m", "1h" or "1d" after 1970."""
        step = duration_us(to)
        return _call("truncate", self._expr, options=(to if isinstance(to, str) else f"{step}us",))

    def year(self) -> Expr:
        return _call("year", self._expr)

    def month(self) -> Expr:
        return _call("month", self._expr)

    def day(self) -> Expr:
        return _call("day", self._expr)

    def hour(self) -> Expr:
        return _call("hour", self._expr)

    def minute(self) -> Expr:
        return _call("minute", self._expr)

    def second(self) -> Expr:
        return _call("second", self._expr)


class When(Expr):
    """A `when` that can go on: `.when(condition, value)`, `.otherwise(value)`; otherwise null."""

    __slots__ = ()

    def when(self, condition: Any, value: Any) -> When:
        assert isinstance(self.node, Case), "a When holds a Case"
        return When(Case((*self.node.branches, (_node(condition), _node(value)))))

    def otherwise(self, value: Any) -> Expr:
        assert isinstance(self.node, Case), "a When holds a Case"
        return Expr(Case(self.node.branches, _node(value)))


def col(name: str) -> Expr:
    """The column `name`.

    >>> col("price") > 10
    price > 10
    """
    if not isinstance(name, str) or not name:
        raise PlanError(f"col takes the name of a column, and found {name!r}", fix=Fix("expr.col", 'Write: col("price")'))
    return Expr(Column(name))


def lit(value: Any) -> Expr:
    """A constant.

    >>> lit("web")
    'web'
    """
    return Expr(literal(value))


def when(condition: Any, value: Any) -> When:
    """`value` where `condition` is true; go on with `.when(…)` and `.otherwise(…)`.

    >>> when(col("n") > 1, "many").otherwise("one")
    case when n > 1 then 'many' else 'one' end
    """
    return When(Case(((_node(condition), _node(value)),)))


def coalesce(*values: Any) -> Expr:
    """The first of `values` that is not null."""
    return _several("coalesce", values)


def concat(*values: Any) -> Expr:
    """The values as text, one after the other; null if any is null."""
    return _several("concat", values)


def least(*values: Any) -> Expr:
    """The least of `values`, nulls left out."""
    return _several("least", values)


def greatest(*values: Any) -> Expr:
    """The greatest of `values`, nulls left out."""
    return _several("greatest", values)


def struct(*values: Expr, **named: Any) -> Expr:
    """A struct of columns, under their own names or the given ones.

    >>> struct(col("a"), b=col("x") + 1)
    struct(a as a, x + 1 as b)
    """
    fields = {_name_of(value): value for value in values} | named
    if len(fields) < len(values) + len(named) or not fields:
        raise PlanError(f"a struct needs fields with different names, and found: {', '.join(fields) or 'none'}")
    return Expr(Call("struct", tuple(_node(value) for value in fields.values()), tuple(fields)))


def event_time() -> Expr:
    """The event time of the row, even if its column was dropped."""
    return Expr(Column(EVENT_TIME))


@overload
def udf(function: Callable[..., Any], /) -> Callable[..., Expr]: ...
@overload
def udf(*, returns: Any) -> Callable[[Callable[..., Any]], Callable[..., Expr]]: ...
def udf(function: Callable[..., Any] | None = None, /, *, returns: Any = None) -> Callable[..., Any]:
    """Make a Python function usable in expressions. Its result depends on its arguments only: it may be called once for equal ones.

    >>> @udf
    ... def domain(url: str) -> str:
    ...     return url.split("/")[2]
    >>> domain(col("url"))
    domain(url)

    Args: returns: the type of the result; needed where the return annotation does not say it (parameters of
    `pa.Array`).
    """
    if function is None:
        return functools.partial(_udf, returns=returns)
    return _udf(function, returns=None)


def _udf(function: Callable[..., Any], *, returns: Any) -> Callable[..., Expr]:
    build = udf_node(function, returns)

    @functools.wraps(function)
    def call(*args: Any) -> Expr:
        return Expr(build(*map(_node, args)))

    return call


def _node(value: Any) -> Node:
    return value.node if isinstance(value, Expr) else literal(value)


def _call(function: str, *args: Any, options: tuple[Any, ...] = ()) -> Expr:
    return Expr(Call(function, tuple(map(_node, args)), options))


def _several(function: str, values: tuple[Any, ...]) -> Expr:
    if not values:
        raise PlanError(f"{function} needs at least one value")
    return _call(function, *values)


def _name_of(value: Any) -> str:
    name = value.name if isinstance(value, Expr) else None
    if name is None:
        code = '.alias("total")' if isinstance(value, Expr) else f"pen.struct(total={value!r})"
        raise PlanError(
            f"a field of a struct needs a name, and {value!r} has none", fix=Fix("struct.name", f"Name the field. Write: {code}")
        )
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"expected text, and found {value!r}")
    return value
