"""What the user wrote, as immutable nodes: each is checked when it is built and knows the schema of its rows.

A node knows of its output:

1. the columns (`schema`), without hidden ones;
2. how rows relate to earlier ones (`changes`): "append" rows are final, "update" rows replace the earlier row with the same
   `keys`, "retract" rows withdraw an earlier equal row or add one;
3. which hidden columns the rows carry: `__time` (`timed`: event time), `__change` (`signed`: +1 for a row that is added or put,
   -1 for one that is withdrawn or deleted; always there on a retract stream, and on an update stream whose rows can go away) and
   `__pane` (`paned`: which firing of a window sent the row).

Some nodes have more outputs than one; `Port` picks another. Steps that keep state are in `keyed.py` and `joins.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from penstock.connectors.connector import Sink, Source
from penstock.errors import Fix, PlanError
from penstock.eventtime import duration_text
from penstock.expr import Expr, col
from penstock.expr.promote import is_numeric
from penstock.functions import RowFunction
from penstock.schema import column_name, type_name

TIME_COLUMN = "__time"
CHANGE_COLUMN = "__change"
PANE_COLUMN = "__pane"
ROWS_COLUMN = "__rows"
ALL_COLUMN = "__all"  # the key of windows over all rows: the same for every row
TIME_TYPE = pa.timestamp("us", tz="UTC")

TIME_FIELD = pa.field(TIME_COLUMN, TIME_TYPE, nullable=False)
CHANGE_FIELD = pa.field(CHANGE_COLUMN, pa.int8(), nullable=False)
PANE_FIELD = pa.field(PANE_COLUMN, pa.int64(), nullable=False)

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

Used = Mapping[str, set[str]]
"""The columns that somebody uses of each output of a node, by port."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One step. Nodes are compared by identity: the same words written twice are two steps."""

    where: str = ""  # the user's own line
    schema: pa.Schema = field(init=False)
    timed: bool = field(init=False, default=False)
    changes: str = field(init=False, default="append")
    keys: tuple[str, ...] = field(init=False, default=())
    signed: bool = field(init=False, default=False)
    paned: bool = field(init=False, default=False)
    retimed: bool = field(init=False, default=False)  # whether a row may be withdrawn for one with another event time

    kind: ClassVar[str]  # of the operator that does it

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes whose rows this one takes."""
        return ()

    @property
    def hidden(self) -> list[pa.Field]:
        """The hidden columns its rows carry."""
        fields = ((self.timed, TIME_FIELD), (self.signed, CHANGE_FIELD), (self.paned, PANE_FIELD))
        return [field for carried, field in fields if carried]

    def needs(self, used: Used) -> list[set[str]]:
        """The visible columns it takes of each input, if these of its own are used."""
        return [set(used["main"]) for _ in self.inputs]

    def output(self, port: str) -> Node:
        """A node whose rows are like those that leave by a port."""
        return self

    def text(self) -> str:
        """One line for explain()."""
        return type(self).__name__

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _like(self, input: Node, schema: pa.Schema | None = None) -> None:
        """The rows are of the same kind as those of the input."""
        self._set(schema=schema or input.schema, timed=input.timed, changes=input.changes, keys=input.keys)
        self._set(signed=input.signed, paned=input.paned, retimed=input.retimed)

    def error(self, message: str, *, fix: Fix | None = None) -> PlanError:
        """A PlanError at the user's line."""
        return PlanError(message, fix=fix, where=self.where or None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Read(Node):
    """Rows of a source."""

    source: Source
    name: str
    on_error: str = "fail"
    kind = "source"

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
    kind = "project"

    def __post_init__(self) -> None:
        names = [name for name, _ in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self.error(
                f"the column {twice[0]!r} is made twice",
                fix=Fix("column.twice", f'Give one of them another name. Write: {twice[0]}_2=col("{twice[0]}")'),
            )
        fields = []
        for name, expr in self.columns:
            check_column_name(name, self)
            fields.append(pa.field(name, typed(expr, self.input, self)))
        self._like(self.input, pa.schema(fields))
        lost = [key for key in self.keys if key not in names]
        if lost and self.changes == "update":
            raise self.error(
                f"rows of this stream replace earlier rows with the same {', '.join(self.keys)}, and {lost[0]!r} is left out here",
                fix=Fix("column.key-lost", f"Keep it. Write: .select({', '.join(repr(key) for key in self.keys)}, …)"),
            )
        altered = [name for name, expr in self.columns if name in self.keys and expr.text() != col(name).text()]
        if altered and self.changes == "update":
            raise self.error(
                f"rows of this stream replace earlier rows with the same {', '.join(self.keys)}, and {altered[0]!r} is computed anew"
                " here",
                fix=Fix(
                    "column.key-altered", f"Give the new column another name, such as {altered[0]}_2, and keep {altered[0]!r}"
                ),
            )

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        return [visible_columns(expr for _, expr in self.kept(used["main"]))]

    def kept(self, used: set[str]) -> list[tuple[str, Expr]]:
        """What must be made: what somebody uses, and whatever can fail, since its bad rows are somebody's business."""
        return [(name, expr) for name, expr in self.columns if name in used or expr.columns() != {expr.text()}]

    def text(self) -> str:
        return "select " + ", ".join(name if expr.text() == name else f"{name}={expr.text()}" for name, expr in self.columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Node):
    """The rows for which the condition is true."""

    input: Node
    condition: Expr
    on_error: str = "fail"
    kind = "filter"

    def __post_init__(self) -> None:
        kind = typed(self.condition, self.input, self)
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            asked = f"({self.condition.text()}) {'> 0' if is_numeric(kind) else 'is not null'}"
            raise self.error(
                f"filter needs a condition, and {self.condition.text()} is {type_name(kind)}",
                fix=Fix("filter.condition", f"Compare it, or ask whether it is there. Write: .filter({asked!r})"),
            )
        filtered(self, self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        return [used["main"] | visible_columns([self.condition]) | set(self.keys)]

    def text(self) -> str:
        return f"filter {self.condition.text()}"


@dataclass(frozen=True, eq=False, kw_only=True)
class MapRows(Node):
    """A Python function of one row: map, flat_map or filter."""

    input: Node
    function: RowFunction
    on_error: str = "fail"
    attempts: int = 1
    kind = "rows"

    def __post_init__(self) -> None:
        if self.function.kind == "filter":
            filtered(self, self.input)
            return
        if self.input.changes == "update":
            raise self.error(
                "a function may change the key by which rows of this stream replace earlier ones",
                fix=Fix(
                    "map.of-updates", "Use expressions: with_columns, select or filter, with a pen.udf where SQL has no function"
                ),
            )
        self._like(self.input, self.function.output)
        self._set(keys=())

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        kept = used["main"] | set(self.keys) if self.function.kind == "filter" else set()
        return [kept | set(self.function.columns)]

    def text(self) -> str:
        return f"{self.function.kind} {self.function.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class MapBatches(Node):
    """A Python function of an Arrow batch. It must not depend on how rows are batched."""

    input: Node
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    made: pa.Schema
    kind = "batches"

    def __post_init__(self) -> None:
        if self.input.changes != "append":
            raise self.error("map_batches needs final rows, and rows of this stream replace earlier ones")
        self._like(self.input, self.made)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        return [set(self.input.schema.names)]

    def text(self) -> str:
        return f"map_batches {getattr(self.function, '__name__', 'function')}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """The rows of all inputs, which have the same columns."""

    streams: tuple[Node, ...]
    kind = "union"

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
        self._set(signed=any(stream.signed for stream in self.streams), paned=all(stream.paned for stream in self.streams))
        self._set(retimed=any(stream.retimed for stream in self.streams))

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
    kind = "split"

    def __post_init__(self) -> None:
        for tag, condition in self.conditions:
            if tag in ("main", "late", "dead", "rest"):
                raise self.error(f"the tag {tag!r} is taken", fix=Fix("split.tag", f"Choose another. Write: {tag}_part"))
            if not pa.types.is_boolean(typed(condition, self.input, self)):
                raise self.error(f"split needs conditions, and {condition.text()} is not one")
        if self.input.changes == "update":
            raise self.error(
                "rows of this stream replace earlier ones, and a newer one may belong elsewhere",
                fix=Fix("split.of-updates", "Use filter, once for each part"),
            )
        self._like(self.input)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        return [set().union(*used.values()) | visible_columns(condition for _, condition in self.conditions)]

    def text(self) -> str:
        return "split " + ", ".join(f"{tag}: {condition.text()}" for tag, condition in self.conditions)


@dataclass(frozen=True, eq=False, kw_only=True)
class Port(Node):
    """Another output of a node than its main one."""

    input: Node
    port: str

    def __post_init__(self) -> None:
        self._like(self.input.output(self.port))

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def text(self) -> str:
        return f"output {self.port!r}"


@dataclass(frozen=True, eq=False, kw_only=True)
class AsRows(Node):
    """Changes as rows that are final: a column says what each is."""

    input: Node
    op: str
    kind = "as_rows"

    def __post_init__(self) -> None:
        check_column_name(self.op, self, Fix("as_rows.op", 'Write: .as_rows(op="op")'))
        if self.op in self.input.schema.names:
            raise self.error(
                f"there is a column {self.op!r} already",
                fix=Fix("as_rows.column", f'Name another. Write: .as_rows(op="{self.op}_2")'),
            )
        self._like(self.input, self.input.schema.append(pa.field(self.op, pa.string(), nullable=False)))
        self._set(changes="append", keys=(), signed=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def added(self) -> str:
        """What a row that is not withdrawn is called."""
        return "update" if self.input.changes == "update" else "insert"

    def needs(self, used: Used) -> list[set[str]]:
        return [used["main"] - {self.op}]

    def text(self) -> str:
        return f"as_rows {self.op}"


@dataclass(frozen=True, eq=False, kw_only=True)
class DeadLetters(Node):
    """The dead letters of every step of the pipeline. Which steps those are is known once the pipeline is complete."""

    kind = "union"

    def __post_init__(self) -> None:
        self._set(schema=DEAD_SCHEMA)

    def text(self) -> str:
        return "dead letters"


@dataclass(frozen=True, eq=False, kw_only=True)
class AssignTime(Node):
    """Event time from an expression or a function of a row; how the watermark follows it; and what a split may not do."""

    input: Node
    at: Expr | RowFunction
    delay: int | None = None  # this or `punctuated`
    punctuated: Expr | RowFunction | None = None
    idle_after: int | None = None
    max_ahead: int | None = None
    align: str | None = None
    drift: int | None = None
    on_error: str = "fail"
    kind = "time"

    def __post_init__(self) -> None:
        if self.input.timed:
            raise self.error(
                "this stream has event time already", fix=Fix("watermark.again", "Say with_watermark once, right after read")
            )
        if self.input.changes != "append":
            raise self.error("with_watermark needs final rows", fix=Fix("watermark.of-changes", "Say it right after read"))
        self._check_timestamp(self.at, "event time")
        if self.punctuated is not None:
            self._check_timestamp(self.punctuated, "a punctuation")
        self._check_options()
        self._like(self.input)
        self._set(timed=True)

    def _check_timestamp(self, what: Expr | RowFunction, role: str) -> None:
        if isinstance(what, RowFunction):
            return  # what it returns is looked at row by row
        kind = typed(what, self.input, self)
        if not pa.types.is_timestamp(kind):
            text = what.text()
            named = text in self.input.schema.names
            fix = f'.with_columns({text}="cast({text} as timestamp)")' if named else f'"cast({text} as timestamp)"'
            raise self.error(
                f"{role} needs a timestamp, and {text!r} is {type_name(kind)}",
                fix=Fix("watermark.type", f"Make one of it. Write: {fix}"),
            )

    def _check_options(self) -> None:
        if self.delay is None and self.punctuated is None:
            raise self.error(
                "with_watermark must know how late rows may be",
                fix=Fix(
                    "watermark.delay",
                    "Say it, or that times never go back; punctuated= is for rows that say themselves how far time is."
                    ' Write: delay="5s", or delay="0s"',
                ),
            )
        if self.delay is not None and self.punctuated is not None:
            raise self.error(
                f"delay={duration_text(self.delay)} makes the watermark follow event time, and punctuated= makes it follow what"
                " rows say",
                fix=Fix("watermark.two-ways", "Leave one of them out"),
            )
        for name in ("delay", "idle_after", "max_ahead", "drift"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise self.error(
                    f"{name}={duration_text(value)} is negative",
                    fix=Fix("watermark.negative", f'Write: {name}="{duration_text(-value)}"'),
                )
        if self.drift is not None and self.align is None:
            raise self.error(
                "drift= says how far apart the splits of a group may be, and no group is named",
                fix=Fix("watermark.align", 'Name it. Write: align="group"'),
            )
        if self.align is not None and self.drift is None:
            raise self.error(
                f"align={self.align!r} needs to know how far apart splits may be", fix=Fix("watermark.drift", 'Write: drift="1m"')
            )

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        read = [self.at] if self.punctuated is None else [self.at, self.punctuated]
        functions = {name for what in read if isinstance(what, RowFunction) for name in what.columns}
        return [used["main"] | functions | visible_columns(what for what in read if isinstance(what, Expr))]

    def text(self) -> str:
        made = f" - {duration_text(self.delay)}" if self.delay is not None else f", punctuated by {words(self.punctuated)}"
        idle = f", idle after {duration_text(self.idle_after)}" if self.idle_after else ""
        ahead = f", at most {duration_text(self.max_ahead)} ahead" if self.max_ahead is not None else ""
        aligned = f", within {duration_text(self.drift)} of {self.align!r}" if self.drift is not None else ""
        return f"watermark {words(self.at)}{made}{idle}{ahead}{aligned}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Node):
    """Rows into a sink. Where rows can be withdrawn the sink is told by a column more, `change`."""

    input: Node
    sink: Sink
    name: str
    kind = "write"

    def __post_init__(self) -> None:
        if self.input.changes not in self.sink.accepts:
            raise self._refusal()
        self._like(self.input)
        if self.change in self.schema.names:
            raise self.error(
                f"a sink is told by a column {self.change!r} which rows are withdrawn, and this stream has one of that name",
                fix=Fix("write.change-column", f'Rename it. Write: .rename({{"{self.change}": "{self.change}_was"}})'),
            )

    def _refusal(self) -> PlanError:
        step, sink = step_name(self.input), f"sink {self.name!r} ({self.sink.describe().split(',')[0]})"
        if self.input.changes == "update":
            problem = f'{sink} can only add rows, and the rows of step {step!r} replace earlier ones (emit="update")'
        elif "update" in self.sink.accepts:
            problem = f'{sink} takes the last row of each key, and step {step!r} withdraws rows (emit="retract")'
        else:
            problem = f'{sink} can only add rows, and step {step!r} withdraws rows (emit="retract")'
        takers = "sinks.memory, sinks.console, sinks.foreach_batch, or sinks.files with change='change'"
        return self.error(
            problem,
            fix=Fix(
                "write.of-changes", f'Use a sink that takes them ({takers}), or emit="append" before. Write: .as_rows(op="op")'
            ),
        )

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def sink_schema(self) -> pa.Schema:
        """The rows as the sink gets them."""
        return self.schema.append(pa.field(self.change, pa.int8(), nullable=False)) if self.change else self.schema

    @property
    def change(self) -> str | None:
        """The column that tells the sink which rows are withdrawn, if it is told."""
        return self.sink.change_name if self.input.signed or self.sink.wants_change else None

    def needs(self, used: Used) -> list[set[str]]:
        return [set(self.input.schema.names)]

    def text(self) -> str:
        return f"write {self.name} ({self.sink.describe()})"


# --- checks
# ---------------------------------------------------------------------------------------------------------------------------------


def filtered(node: Node, input: Node) -> None:
    """Rows of the input that may be left out. A row that replaces an earlier one cannot just be missing: it is a delete then."""
    node._like(input)
    if input.changes == "update":
        node._set(signed=True)


def visible_columns(exprs: Iterable[Expr]) -> set[str]:
    """The columns that expressions read, without hidden ones: those travel anyway."""
    return {name for expr in exprs for name in expr.columns() if not name.startswith("__") or name == ALL_COLUMN}


def typed(expr: Expr, input: Node, node: Node) -> pa.DataType:
    """The type of an expression over a node's rows, or a PlanError at the user's line."""
    if PANE_COLUMN in expr.columns() and not input.paned:
        raise node.error(
            "pane() tells which firing of a window sent a row, and these rows come from none that sends several times"
        )
    if CHANGE_COLUMN in expr.columns() and input.changes == "retract":
        raise node.error(
            "with op() what is withdrawn would differ from what was sent, and never cancel it",
            fix=Fix("op.of-retractions", 'Make plain rows of the changes first. Write: .as_rows(op="op")'),
        )
    if CHANGE_COLUMN in expr.columns() and not input.signed:
        raise node.error("op() tells whether a row is withdrawn, and rows of this stream never are")
    try:
        return expr.type(pa.schema([*input.schema, *input.hidden]))
    except PlanError as error:
        raise node.error(error.message, fix=error.fix) from None


def words(what: Expr | RowFunction | None) -> str:
    """An expression or a function for explain()."""
    return what.text() if isinstance(what, Expr) else what.name if what is not None else ""


def check_columns(names: list[str] | tuple[str, ...], input: Node, node: Node) -> None:
    """Each name is a column of the input."""
    for name in names:
        typed(col(name), input, node)


def check_column_name(name: str, node: Node, fix: Fix | None = None) -> None:
    """A name is a text that is not empty and can be stored. Those that start with two underscores are ours."""
    try:
        column_name(name)
    except PlanError as error:
        raise node.error(error.message, fix=fix or error.fix) from None
    if name.startswith("__") and name != ALL_COLUMN:
        raise node.error(
            f"the column name {name!r} starts with two underscores, which are kept for Penstock",
            fix=Fix("column.reserved", f"Choose another, such as {name.strip('_') or 'value'}"),
        )


def casting(name: str, wanted: pa.DataType) -> str:
    """The line that gives a column the type of another."""
    return f'.with_columns({name}=col("{name}").cast("{type_name(wanted)}"))'


def unique_schema(fields: list[pa.Field], node: Node) -> pa.Schema:
    """A schema without a name twice."""
    names = [f.name for f in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise node.error(
            f"the result would have two columns {twice[0]!r}",
            fix=Fix("column.two", f"Rename one before, to {twice[0]}_2 for example"),
        )
    return pa.schema(fields)


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
