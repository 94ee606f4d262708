"""What the user chains: `Stream`, `KeyedStream`, `WindowedStream`. Each method builds one plan node and no more.

One rule for strings: as an argument of a stream method a string is SQL, so a bare name is a column; inside an expression a
Python value is a literal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from penstock.api.where import user_line
from penstock.connectors.connector import Sink
from penstock.errors import PlanError
from penstock.eventtime import Tumbling, micros
from penstock.expr import Aggregate, Expr, col, lit, parse, parse_aggregate
from penstock.folding import ReduceFunction
from penstock.functions import RowFunction
from penstock.names import check_name
from penstock.plan import logical
from penstock.plan.explain import explain_node
from penstock.schema import to_schema, visible

if TYPE_CHECKING:
    from penstock.api.pipeline import Pipeline

T = TypeVar("T")


class Stream:
    """Rows with a schema. Methods return new streams; nothing runs until the pipeline does.

    >>> import penstock as pen
    >>> from penstock import sources
    >>> orders = pen.Pipeline("doc").read(sources.memory([{"user": "a", "price": 3}], schema="user string, price bigint"))
    >>> orders.filter("price > 1").select("user", double="price * 2").schema.names
    ['user', 'double']
    """

    def __init__(self, pipeline: Pipeline, node: logical.Node) -> None:
        self._pipeline, self._node = pipeline, node

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._node.schema

    def explain(self) -> str:
        """What is planned up to here, as text."""
        return explain_node(self._node)

    # Functions of one row.

    def map(self, function: Callable[..., Any], *, schema: Any = None) -> Stream:
        """Each row becomes what the function returns. Annotations say what it gets and gives; or `schema=`.

        `orders.map(euros)` with `def euros(order: Order) -> Priced`; `orders.map(lambda row: row.price * 2, schema=float)`.
        """
        return self._rows(function, "map", schema)

    def flat_map(self, function: Callable[..., Any], *, schema: Any = None) -> Stream:
        """Each row becomes the rows the function yields: `def words(line: str) -> Iterator[str]`."""
        return self._rows(function, "flat_map", schema)

    def filter(self, condition: Expr | str | Callable[..., bool]) -> Stream:
        """The rows for which a condition, or a function, is true."""
        if isinstance(condition, Expr | str):
            expr = at_line(lambda: as_expr(condition))
            return self._then(logical.Filter(where=user_line(), input=self._node, condition=expr, on_error=self._on_error))
        return self._rows(condition, "filter", None)

    def map_batches(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, schema: Any) -> Stream:
        """Each Arrow batch becomes what the function returns. The result must not depend on how rows are batched."""
        output = at_line(lambda: to_schema(schema))
        return self._then(logical.MapBatches(where=user_line(), input=self._node, function=function, output=output))

    # Columns.

    def select(self, *columns: Expr | str, **named: Expr | str) -> Stream:
        """These columns, in this order: `select("user", total="price * quantity")`."""
        return self._project([*at_line(lambda: named_exprs(columns)), *at_line(lambda: keyword_exprs(named))])

    def with_columns(self, **named: Expr | str) -> Stream:
        """The same columns with these added or replaced."""
        fresh = dict(at_line(lambda: keyword_exprs(named)))
        kept = [(name, fresh.pop(name, col(name))) for name in self.schema.names]
        return self._project([*kept, *fresh.items()])

    def drop(self, *columns: str) -> Stream:
        """All columns but these."""
        at_line(lambda: self._known(columns))
        return self._project([(name, col(name)) for name in self.schema.names if name not in columns])

    def rename(self, names: Mapping[str, str]) -> Stream:
        """The same columns, some under another name: `rename({"n": "views"})`."""
        at_line(lambda: self._known(tuple(names)))
        return self._project([(names.get(name, name), col(name)) for name in self.schema.names])

    # Several streams.

    def union(self, *others: Stream) -> Stream:
        """The rows of all, which must have the same columns."""
        return self._then(logical.Union(where=user_line(), streams=(self._node, *(other._node for other in others))))

    def split(self, conditions: Mapping[str, Expr | str]) -> Parts:
        """Rows by condition, the first that is true: `parts["paid"]`, and `parts.rest` for what matched none."""
        exprs = at_line(lambda: keyword_exprs(conditions))
        node = logical.Split(where=user_line(), input=self._node, conditions=tuple(exprs), on_error=self._on_error)
        return Parts(self._pipeline, node)

    @property
    def late(self) -> Stream:
        """The rows that came after their window had closed; only windows have them."""
        if not isinstance(self._node, logical.WindowAggregate | logical.WindowReduce):
            raise PlanError(
                "only the result of a window has late rows. Write: counts = ….window(…).aggregate(…); counts.late",
                where=user_line(),
            )
        return self._then(logical.Port(where=user_line(), input=self._node, port="late"))

    # Time and keys.

    def with_watermark(self, column: str, *, delay: Any, idle_after: Any = None) -> Stream:
        """Event time, and how late rows may be: `with_watermark("at", delay="5s")`. Per split; the least over the active ones."""
        delay_us = at_line(lambda: micros(delay, "delay"))
        idle_us = None if idle_after is None else at_line(lambda: micros(idle_after, "idle_after"))
        return self._then(
            logical.AssignTime(
                where=user_line(), input=self._node, column=column, delay=delay_us, idle_after=idle_us, on_error=self._on_error
            )
        )

    def key_by(self, *columns: Expr | str, **named: Expr | str) -> KeyedStream:
        """Rows with equal keys are worked on together: `key_by("user")`, `key_by(word="value")`."""
        keys = [*at_line(lambda: named_exprs(columns)), *at_line(lambda: keyword_exprs(named))]
        if not keys:
            raise PlanError('key_by needs a column. Write: .key_by("user"). Over all rows: .window(...)', where=user_line())
        computed = {name: expr for name, expr in keys if expr.text() != name}
        stream = self.with_columns(**computed) if computed else self
        return KeyedStream(stream, tuple(name for name, _ in keys))

    def window(self, shape: Tumbling) -> WindowedStream:
        """Windows over all rows, without a key."""
        all_rows = [*((name, col(name)) for name in self.schema.names), (logical.ALL_COLUMN, lit(0))]
        return WindowedStream(self._project(all_rows), (logical.ALL_COLUMN,), shape)

    # The end.

    def write(self, sink: Sink, *, name: str | None = None) -> Pipeline:
        """Into a sink. Returns the pipeline, so that a chain ends in something that runs."""
        self._pipeline.add(logical.Write(where=user_line(), input=self._node, sink=sink, name=name or sink.name))
        return self._pipeline

    # How nodes are made.

    @property
    def _on_error(self) -> str:
        return self._pipeline.on_error

    def _then(self, node: logical.Node) -> Stream:
        return Stream(self._pipeline, node)

    def _project(self, columns: list[tuple[str, Expr]]) -> Stream:
        return self._then(logical.Project(where=user_line(), input=self._node, columns=tuple(columns), on_error=self._on_error))

    def _rows(self, function: Callable[..., Any], kind: str, schema: Any) -> Stream:
        row_function = at_line(lambda: RowFunction.of(function, kind, self.schema, schema))
        return self._then(logical.MapRows(where=user_line(), input=self._node, function=row_function, on_error=self._on_error))

    def _known(self, names: tuple[str, ...]) -> None:
        for name in names:
            col(name).type(self.schema)


class Parts:
    """The streams a `split` makes, by tag."""

    def __init__(self, pipeline: Pipeline, node: logical.Split) -> None:
        self._pipeline, self._node = pipeline, node
        self._tags = [tag for tag, _ in node.conditions]

    def __getitem__(self, tag: str) -> Stream:
        """The rows of one tag."""
        if tag not in self._tags:
            raise PlanError(f"this split has no part {tag!r}. Its parts: {', '.join(self._tags)}, and .rest", where=user_line())
        return Stream(self._pipeline, logical.Port(where=user_line(), input=self._node, port=tag))

    @property
    def rest(self) -> Stream:
        """The rows that matched no condition."""
        return Stream(self._pipeline, logical.Port(where=user_line(), input=self._node, port="rest"))


class KeyedStream:
    """Rows by key: `aggregate`, `reduce`, `window`."""

    def __init__(self, stream: Stream, by: tuple[str, ...]) -> None:
        self._stream, self._by = stream, by

    def aggregate(self, *aliased: Aggregate, name: str | None = None, **aggregates: Aggregate | str) -> Stream:
        """Running aggregates: an updated row per key. `aggregate(n=pen.count(), total="sum(price)", name="totals")`."""
        built = at_line(lambda: named_aggregates(aliased, aggregates))
        name = need_name(name, "aggregate", built, self._by)
        node = logical.Aggregate(
            where=user_line(), input=self._stream._node, by=self._by, name=name, aggregates=built, on_error=self._stream._on_error
        )
        return self._stream._then(node)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """A function of two rows, folded over each key's rows in the order they come: an updated row per key."""
        folded = at_line(lambda: ReduceFunction.of(function, self._stream.schema))
        name = need_name(name, "reduce", function, self._by)
        node = logical.Reduce(
            where=user_line(), input=self._stream._node, by=self._by, name=name, function=folded, on_error=self._stream._on_error
        )
        return self._stream._then(node)

    def window(self, shape: Tumbling) -> WindowedStream:
        """Windows per key: `window(pen.tumbling("10s"))`."""
        return WindowedStream(self._stream, self._by, shape)


class WindowedStream:
    """Rows by key and window: `aggregate`, `reduce`."""

    def __init__(self, stream: Stream, by: tuple[str, ...], shape: Tumbling) -> None:
        if not isinstance(shape, Tumbling):
            raise PlanError(
                f'window needs a shape, and {shape!r} is none. Write: .window(pen.tumbling("10s"))', where=user_line()
            )
        self._stream, self._by, self._shape = stream, by, shape

    def aggregate(self, *aliased: Aggregate, name: str | None = None, **aggregates: Aggregate | str) -> Stream:
        """One row per key and window, with window_start and window_end, once the watermark has passed its end."""
        built = at_line(lambda: named_aggregates(aliased, aggregates))
        name = need_name(name, "aggregate", built, self._by)
        node = logical.WindowAggregate(
            where=user_line(),
            input=self._stream._node,
            by=self._by,
            name=name,
            window=self._shape,
            aggregates=built,
            on_error=self._stream._on_error,
        )
        return self._stream._then(node)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """A function of two rows, folded over each key's rows of a window."""
        folded = at_line(lambda: ReduceFunction.of(function, visible(self._stream.schema)))
        name = need_name(name, "reduce", function, self._by)
        node = logical.WindowReduce(
            where=user_line(),
            input=self._stream._node,
            by=self._by,
            name=name,
            window=self._shape,
            function=folded,
            on_error=self._stream._on_error,
        )
        return self._stream._then(node)


def tumbling(size: Any, *, offset: Any = "0s") -> Tumbling:
    """Windows of one size, side by side: `tumbling("10s")`."""
    return at_line(lambda: Tumbling(micros(size, "size"), micros(offset, "offset")))


# --- arguments to expressions
# ----------------------------------------------------------------------------------------------------------------


def at_line(build: Callable[[], T]) -> T:
    """What `build` returns; its PlanError points at the user's line."""
    try:
        return build()
    except PlanError as error:
        if error.where is None:
            error.where = user_line()
        raise


def as_expr(value: object) -> Expr:
    """A string is SQL, an expression is itself."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return parse(value)
    raise PlanError(f"expected an expression or SQL text, and got {value!r}. A literal: pen.lit({value!r})")


def named_exprs(values: tuple[Expr | str, ...]) -> list[tuple[str, Expr]]:
    """Positional arguments: each must have a name of its own."""
    named = []
    for value in values:
        expr = as_expr(value)
        if expr.name is None:
            raise PlanError(f'{expr.text()} has no name. Write: total={value!r}, or .alias("total")')
        named.append((expr.name, expr))
    return named


def keyword_exprs(values: Mapping[str, Expr | str]) -> list[tuple[str, Expr]]:
    """Keyword arguments: the keyword is the name."""
    return [(name, as_expr(value)) for name, value in values.items()]


def named_aggregates(aliased: tuple[Aggregate, ...], named: Mapping[str, Aggregate | str]) -> tuple[tuple[str, Aggregate], ...]:
    """Aggregates with the names of their result columns."""
    built: list[tuple[str, Aggregate]] = []
    for aggregate in aliased:
        if not isinstance(aggregate, Aggregate) or aggregate.name is None:
            raise PlanError('an aggregate needs a name. Write: n=pen.count(), or pen.count().alias("n")')
        built.append((aggregate.name, aggregate))
    for name, value in named.items():
        aggregate = parse_aggregate(value) if isinstance(value, str) else value
        if not isinstance(aggregate, Aggregate):
            raise PlanError(f'{name}={value!r} is no aggregate. Write: {name}=pen.count(), or {name}=col("x").sum()')
        built.append((name, aggregate))
    if not built:
        raise PlanError('aggregate needs something to compute. Write: .aggregate(n=pen.count(), name="counts")')
    return tuple(built)


def need_name(name: str | None, verb: str, what: object, by: tuple[str, ...]) -> str:
    """The step's name, or an error that shows the line to write."""
    if name is None:
        suggestion = "-".join((*(key.lstrip("_") for key in by), "counts" if verb == "aggregate" else verb)).replace("_", "-")
        if isinstance(what, tuple):
            inside = ", ".join(f"{n}=pen.count()" if a.text() == "count(*)" else f'{n}="{a.text()}"' for n, a in what)
        else:
            inside = getattr(what, "__name__", "function")
        raise PlanError(
            f"this {verb} keeps state, so it needs a name: savepoints find its state by it.\n"
            f'  Write: .{verb}({inside}, name="{suggestion}")',
            where=user_line(),
        )
    return check_name(name, "a step", where=user_line())
