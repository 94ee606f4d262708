"""What the user wrote, as immutable nodes: each is checked when it is built and knows the schema of its rows.

A node knows three things about its output: the columns (`schema`, without hidden ones), whether its rows carry event time
(`timed`: the hidden column `__time`), and how rows relate to earlier ones (`changes`: "append" rows are final, "update" rows
replace the earlier row with the same `keys`).
Some nodes have more outputs than one; `Port` picks another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.connectors.connector import Sink, Source
from penstock.errors import PlanError
from penstock.eventtime import Tumbling, duration_text
from penstock.expr import Aggregate as AggregateExpr
from penstock.expr import Expr, col
from penstock.folding import ReduceFunction
from penstock.functions import RowFunction
from penstock.state.keygroups import canonical_type

TIME_COLUMN = "__time"
ROWS_COLUMN = "__rows"
ALL_COLUMN = "__all"  # the key of windows over all rows: the same for every row
TIME_TYPE = pa.timestamp("us", tz="UTC")

DEAD_SCHEMA = pa.schema(
    [
        pa.field("step", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("split", pa.string()),
        pa.field("position", pa.string()),
        pa.field("error", pa.string(), nullable=False),
        pa.field("record", pa.string()),
        pa.field("event_time", TIME_TYPE),
    ]
)
"""What a dead letter says of a row that could not be processed."""

WINDOW_FIELDS = (pa.field("window_start", TIME_TYPE, nullable=False), pa.field("window_end", TIME_TYPE, nullable=False))


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One step. Nodes are compared by identity: the same words written twice are two steps."""

    where: str = ""  # the user's own line
    schema: pa.Schema = field(init=False)
    timed: bool = field(init=False, default=False)
    changes: str = field(init=False, default="append")
    keys: tuple[str, ...] = field(init=False, default=())

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes whose rows this one takes."""
        return ()

    def text(self) -> str:
        """One line for explain()."""
        return type(self).__name__

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _like(self, input: Node, schema: pa.Schema | None = None) -> None:
        self._set(schema=schema or input.schema, timed=input.timed, changes=input.changes, keys=input.keys)

    def error(self, message: str) -> PlanError:
        """A PlanError at the user's line."""
        return PlanError(message, where=self.where or None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Read(Node):
    """Rows of a source."""

    source: Source
    name: str
    on_error: str = "fail"

    def __post_init__(self) -> None:
        self._set(schema=self.source.schema)

    def text(self) -> str:
        return f"read {self.name} ({self.source.describe()})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Project(Node):
    """Each output column is an expression over the input's columns."""

    input: Node
    columns: tuple[tuple[str, Expr], ...]
    on_error: str = "fail"

    def __post_init__(self) -> None:
        names = [name for name, _ in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self.error(f"the column {twice[0]!r} is made twice. Give one of them another name: select(a=..., b=...)")
        fields = []
        for name, expr in self.columns:
            check_column_name(name, self)
            fields.append(pa.field(name, typed(expr, self.input, self)))
        self._like(self.input, pa.schema(fields))
        lost = [key for key in self.keys if key not in names]
        if lost and self.changes == "update":
            raise self.error(
                f"rows of this stream replace earlier rows with the same {', '.join(self.keys)}, and {lost[0]!r} is left out here."
                f" Keep it: select({', '.join(repr(key) for key in self.keys)}, ...)"
            )
        altered = [name for name, expr in self.columns if name in self.keys and expr.text() != col(name).text()]
        if altered:
            raise self.error(
                f"rows of this stream replace earlier rows with the same {', '.join(self.keys)}, and {altered[0]!r} is computed anew"
                " here. Give the new column another name"
            )

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return "select " + ", ".join(name if expr.text() == name else f"{name}={expr.text()}" for name, expr in self.columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Node):
    """The rows for which the condition is true."""

    input: Node
    condition: Expr
    on_error: str = "fail"

    def __post_init__(self) -> None:
        kind = typed(self.condition, self.input, self)
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise self.error(
                f"filter needs a condition, and {self.condition.text()} is {kind}. Write e.g. {self.condition.text()} > 0"
            )
        self._like(self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"filter {self.condition.text()}"


@dataclass(frozen=True, eq=False, kw_only=True)
class MapRows(Node):
    """A Python function of one row: map, flat_map or filter."""

    input: Node
    function: RowFunction
    on_error: str = "fail"

    def __post_init__(self) -> None:
        if self.input.changes != "append" and self.function.kind != "filter":
            raise self.error(
                "a function may change the key by which rows of this stream replace earlier ones. Use select or with_columns"
            )
        self._like(self.input, self.function.output)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"{self.function.kind} {self.function.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class MapBatches(Node):
    """A Python function of an Arrow batch. It must not depend on how rows are batched."""

    input: Node
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    output: pa.Schema

    def __post_init__(self) -> None:
        if self.input.changes != "append":
            raise self.error("map_batches needs final rows, and rows of this stream replace earlier ones")
        self._like(self.input, self.output)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"map_batches {getattr(self.function, '__name__', 'function')}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """The rows of all inputs, which have the same columns."""

    streams: tuple[Node, ...]

    def __post_init__(self) -> None:
        first = self.streams[0]
        for other in self.streams[1:]:
            if [(f.name, f.type) for f in other.schema] != [(f.name, f.type) for f in first.schema]:
                raise self.error(
                    f"union needs equal columns. Left: {schema_words(first.schema)}. Right: {schema_words(other.schema)}"
                )
            if (other.timed, other.changes, other.keys) != (first.timed, first.changes, first.keys):
                raise self.error(
                    "union needs streams of one kind: with event time on all or none, all append or all update by one key"
                )
        fields = [
            pa.field(f.name, f.type, any(stream.schema.field(f.name).nullable for stream in self.streams)) for f in first.schema
        ]
        self._like(first, pa.schema(fields))

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.streams

    def text(self) -> str:
        return f"union of {len(self.streams)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Split(Node):
    """Rows by condition: the first that is true names the port; none: the port "rest"."""

    input: Node
    conditions: tuple[tuple[str, Expr], ...]
    on_error: str = "fail"

    def __post_init__(self) -> None:
        for tag, condition in self.conditions:
            if tag in ("main", "late", "dead", "rest"):
                raise self.error(f"the tag {tag!r} is taken. Choose another")
            if not pa.types.is_boolean(typed(condition, self.input, self)):
                raise self.error(f"split needs conditions, and {condition.text()} is not one")
        self._like(self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return "split " + ", ".join(f"{tag}: {condition.text()}" for tag, condition in self.conditions)


@dataclass(frozen=True, eq=False, kw_only=True)
class Port(Node):
    """Another output of a node than its main one."""

    input: Node
    port: str

    def __post_init__(self) -> None:
        if self.port == "late":
            assert isinstance(self.input, WindowAggregate | WindowReduce)
            self._like(self.input.input, self.input.row_schema)
        else:
            self._like(self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"output {self.port!r}"


@dataclass(frozen=True, eq=False, kw_only=True)
class DeadLetters(Node):
    """The dead letters of every step of the pipeline. Which steps those are is known once the pipeline is complete."""

    def __post_init__(self) -> None:
        self._set(schema=DEAD_SCHEMA)

    def text(self) -> str:
        return "dead letters"


@dataclass(frozen=True, eq=False, kw_only=True)
class AssignTime(Node):
    """Event time from a column, and how late rows may be."""

    input: Node
    column: str
    delay: int
    idle_after: int | None
    on_error: str = "fail"

    def __post_init__(self) -> None:
        if self.input.timed:
            raise self.error("this stream has event time already. Say with_watermark once, right after read")
        if self.input.changes != "append":
            raise self.error("with_watermark needs final rows. Say it right after read")
        check_columns([self.column], self.input, self)
        kind = self.input.schema.field(self.column).type
        if not pa.types.is_timestamp(kind):
            raise self.error(
                f"event time needs a timestamp, and {self.column!r} is {kind}."
                f" Write: with_columns({self.column}=col({self.column!r}).cast('timestamp'))"
            )
        if self.delay < 0:
            raise self.error(f"delay={duration_text(self.delay)} is negative")
        self._like(self.input)
        self._set(timed=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        idle = f", idle after {duration_text(self.idle_after)}" if self.idle_after else ""
        return f"watermark {self.column} - {duration_text(self.delay)}{idle}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Keyed(Node):
    """Base of steps that remember something per key."""

    input: Node
    by: tuple[str, ...]  # columns of the input
    name: str
    on_error: str = "fail"

    def __post_init__(self) -> None:
        if self.input.changes != "append":
            raise self.error(
                f"the rows of this stream replace earlier ones, so {self.verb} would count both. Aggregate once, or over windows"
            )
        check_columns(self.by, self.input, self)
        for key in self.by:
            try:
                canonical_type(self.input.schema.field(key).type)
            except PlanError as error:
                raise self.error(f"the key {key!r}: {error.message}") from None

    verb = "this step"

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def by_fields(self) -> list[pa.Field]:
        """The key columns."""
        return [self.input.schema.field(key) for key in self.by]

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns as the result has them: over all rows there is none to show."""
        return [f for f in self.by_fields if f.name != ALL_COLUMN]

    @property
    def row_schema(self) -> pa.Schema:
        """The input's columns as the user knows them: without the key that all rows share."""
        return pa.schema([f for f in self.input.schema if f.name != ALL_COLUMN])

    @property
    def shape(self) -> Tumbling | None:
        """The windows, if any."""
        return None

    def _keyed_text(self, what: str) -> str:
        window = f" window {self.shape.text()}" if self.shape else ""
        keys = "all rows" if self.by == (ALL_COLUMN,) else f"key_by {', '.join(self.by)}"
        return f"{keys}{window} {what} name={self.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Keyed):
    """A running aggregate: an updated row per key whenever rows of that key came."""

    aggregates: tuple[tuple[str, AggregateExpr], ...]
    verb = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = [*self.key_fields, *aggregate_fields(self.aggregates, self.input, self)]
        self._set(schema=unique_schema(fields, self), changes="update", keys=self.by)

    def text(self) -> str:
        return self._keyed_text("aggregate " + aggregates_text(self.aggregates))


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAggregate(Keyed):
    """One row per key and window, once the watermark has passed the window's end."""

    window: Tumbling
    aggregates: tuple[tuple[str, AggregateExpr], ...]
    verb = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_timed(self, self.window)
        fields = [*self.key_fields, *WINDOW_FIELDS, *aggregate_fields(self.aggregates, self.input, self)]
        self._set(schema=unique_schema(fields, self), timed=True)

    @property
    def shape(self) -> Tumbling:
        return self.window

    def text(self) -> str:
        return self._keyed_text("aggregate " + aggregates_text(self.aggregates))


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(Keyed):
    """A function of two rows, folded over the rows of each key in the order they come."""

    function: ReduceFunction
    verb = "reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(schema=self.input.schema, changes="update", keys=self.by)

    def text(self) -> str:
        return self._keyed_text(f"reduce {self.function.name}")


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowReduce(Keyed):
    """A function of two rows, folded over the rows of each key and window."""

    window: Tumbling
    function: ReduceFunction
    verb = "reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_timed(self, self.window)
        rest = [f for f in self.input.schema if f.name not in self.by and f.name != ALL_COLUMN]
        self._set(schema=unique_schema([*self.key_fields, *WINDOW_FIELDS, *rest], self), timed=True)

    @property
    def shape(self) -> Tumbling:
        return self.window

    def text(self) -> str:
        return self._keyed_text(f"reduce {self.function.name}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Node):
    """Rows into a sink."""

    input: Node
    sink: Sink
    name: str

    def __post_init__(self) -> None:
        if self.input.changes not in self.sink.accepts:
            step = step_name(self.input)
            raise self.error(
                f"sink {self.name!r} ({self.sink.describe().split(',')[0]}) can only add rows, and the rows of step {step!r} replace"
                ' earlier ones (emit="update").\n  Use a sink that takes updates (sinks.memory, sinks.console, sinks.foreach_batch),'
                " or a window"
            )
        self._like(self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"write {self.name} ({self.sink.describe()})"


# --- checks
# ---------------------------------------------------------------------------------------------------------------------------------


def typed(expr: Expr, input: Node, node: Node) -> pa.DataType:
    """The type of an expression over a node's rows, or a PlanError at the user's line."""
    schema = input.schema.append(pa.field(TIME_COLUMN, TIME_TYPE, nullable=False)) if input.timed else input.schema
    try:
        return expr.type(schema)
    except PlanError as error:
        raise node.error(error.message) from None


def check_columns(names: list[str] | tuple[str, ...], input: Node, node: Node) -> None:
    """Each name is a column of the input."""
    for name in names:
        typed(col(name), input, node)


def check_column_name(name: str, node: Node) -> None:
    """Names that start with two underscores are ours."""
    if name.startswith("__") and name != ALL_COLUMN:
        raise node.error(f"the column name {name!r} starts with two underscores, which are kept for Penstock. Choose another")


def check_timed(node: Keyed, window: Tumbling) -> None:
    """A window needs event time."""
    if not node.input.timed:
        raise node.error(
            f'{window.text()} needs event time, and this stream has none.\n  Write .with_watermark("at", delay="5s") before key_by'
        )


def aggregate_fields(aggregates: tuple[tuple[str, AggregateExpr], ...], input: Node, node: Node) -> list[pa.Field]:
    """The result columns."""
    fields = []
    for name, aggregate in aggregates:
        check_column_name(name, node)
        try:
            kind = aggregate.type(input.schema)
        except PlanError as error:
            raise node.error(error.message) from None
        fields.append(pa.field(name, kind, nullable=aggregate.kind != "count"))
    return fields


def unique_schema(fields: list[pa.Field], node: Node) -> pa.Schema:
    """A schema without a name twice."""
    names = [f.name for f in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise node.error(f"the result would have two columns {twice[0]!r}. Rename one")
    return pa.schema(fields)


def aggregates_text(aggregates: tuple[tuple[str, AggregateExpr], ...]) -> str:
    """As explain() shows them."""
    return ", ".join(f"{name}={aggregate.text()}" for name, aggregate in aggregates)


def schema_words(schema: pa.Schema) -> str:
    """Columns and types in a line."""
    return ", ".join(f"{f.name} {f.type}" for f in schema)


def step_name(node: Node) -> str:
    """The name of the nearest named step at or above a node."""
    while True:
        name = getattr(node, "name", None)
        if name or not node.inputs:
            return str(name or node.text())
        node = node.inputs[0]


def walk(roots: tuple[Node, ...]) -> Iterator[Node]:
    """Every node reachable from the roots, each once, inputs before what reads them."""
    seen: set[int] = set()

    def visit(node: Node) -> Iterator[Node]:
        if id(node) in seen:
            return
        seen.add(id(node))
        for input in node.inputs:
            yield from visit(input)
        yield node

    for root in roots:
        yield from visit(root)
