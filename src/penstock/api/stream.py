"""What the user chains: `Stream`. Each method builds one plan node and no more. After `key_by` comes `keyed.py`.

One rule for strings: as an argument of a stream method a string is SQL, so a bare name is a column; inside an expression a
Python value is a literal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api import asynchronous
from penstock.api import joins as joining
from penstock.api.arguments import as_expr, at_line, keyword_exprs, named_exprs
from penstock.api.keyed import KeyedStream, WindowedStream
from penstock.api.process import BroadcastStream
from penstock.api.shortforms import window_of
from penstock.api.where import user_line
from penstock.connectors.connector import Sink
from penstock.errors import Fix, PlanError, brief
from penstock.eventtime import micros
from penstock.expr import Aggregate, Expr, col, count, lit
from penstock.functions import RowFunction
from penstock.plan import joins, keyed, logical
from penstock.plan.dedupe import DropDuplicates
from penstock.plan.explain import explain_node
from penstock.plan.process import SIDE, Process
from penstock.plan.top import WindowTop
from penstock.policy import Policy, policy_of
from penstock.schema import column_name, to_schema
from penstock.windows import Running

if TYPE_CHECKING:
    from penstock.api.pipeline import Pipeline
    from penstock.plan.lookup import Table

HAS_LATE = keyed.WindowAggregate | keyed.WindowReduce | DropDuplicates | WindowTop | joins.HAS_LATE_RIGHT


def has_order(node: logical.Node) -> bool:
    """Whether a step takes rows in order of time, so that some may come too late."""
    return isinstance(node, Process) and node.order is not None


class Stream:
    """Rows with a schema. Methods return new streams; nothing runs until the pipeline does.

    >>> import penstock as pen
    >>> from penstock import sources
    >>> orders = pen.Pipeline("doc").read(sources.memory([{"user": "a", "price": 3}], schema="user string, price bigint"))
    >>> orders.filter("price > 1").select("user", double="price * 2").schema.names
    ['user', 'double']
    """

    def __init__(self, pipeline: Pipeline, node: logical.Node, late_of: logical.Node | None = None) -> None:
        self._pipeline, self._node = pipeline, node
        self._late_of = late_of or node  # the step whose late rows are meant

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._node.schema

    def explain(self) -> str:
        """What is planned up to here, as text."""
        return explain_node(self._node)

    # Functions of one row.

    def map(self, function: Callable[..., Any], *, schema: Any = None, on_error: str | Policy | None = None) -> Stream:
        """Each row becomes what the function returns. Annotations say what it gets and gives; or `schema=`.

        `orders.map(euros)` with `def euros(order: Order) -> Priced`; `orders.map(lambda row: row.price * 2, schema=float)`.
        `on_error`: what becomes of a row for which it raises, if not what the pipeline says: "fail", "dead-letter" or `pen.retry`.
        """
        return self._rows(function, "map", schema, on_error)

    def flat_map(self, function: Callable[..., Any], *, schema: Any = None, on_error: str | Policy | None = None) -> Stream:
        """Each row becomes the rows the function yields: `def words(line: str) -> Iterator[str]`."""
        return self._rows(function, "flat_map", schema, on_error)

    def filter(self, condition: Expr | str | Callable[..., bool], *, on_error: str | Policy | None = None) -> Stream:
        """The rows for which a condition, or a function, is true."""
        if isinstance(condition, Expr | str):
            expr = at_line(lambda: as_expr(condition))
            then = self._policy(on_error).then
            return self._then(logical.Filter(where=user_line(), input=self._node, condition=expr, on_error=then))
        return self._rows(condition, "filter", None, on_error)

    def map_async(
        self,
        function: Callable[..., Awaitable[Any]],
        *,
        capacity: int = 100,
        ordered: bool = True,
        timeout: Any = "5s",
        on_error: str | Policy | None = None,
        schema: Any = None,
        name: str | None = None,
    ) -> Stream:
        """Each row becomes what an async function returns: `orders.map_async(score)` with `async def score(order: Order) -> Scored`.

        For calls to outside services. Each row's result is sent once, but a call may be made more than once: rows whose results have
        not been sent are part of snapshots, and after a restart their calls are made again. So a call should do no harm twice.

        Args:
            capacity: how many calls each task has under way at most. Beyond it the stream waits.
            ordered: results in the order of the rows; False: as answers come, but never across a watermark.
            timeout: a call without an answer after so long has failed.
            on_error: what becomes of a row whose call fails, if not what the pipeline says: "fail", "dead-letter" or `pen.retry`.
            name: by which savepoints find its rows in flight; if left out, the function's name.
        """
        return asynchronous.map_async(
            self,
            function,
            capacity=capacity,
            ordered=ordered,
            timeout=timeout,
            policy=self._policy(on_error),
            schema=schema,
            name=name,
        )

    def map_batches(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, schema: Any) -> Stream:
        """Each Arrow batch becomes what the function returns. The result must not depend on how rows are batched."""
        output = at_line(lambda: to_schema(schema))
        return self._then(logical.MapBatches(where=user_line(), input=self._node, function=function, made=output))

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
        at_line(lambda: [column_name(name) for name in names.values()])
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

    def join(
        self,
        other: Stream,
        *,
        on: joining.On,
        window: Any = None,
        within: Any = None,
        how: str = "inner",
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Rows of two streams with equal keys, bounded in time: `a.join(b, on="id", within=("-5m", "30m"), name="both")`.

        The result has this stream's columns, then the other's without its key.

        Args:
            on: the columns that must be equal: `"id"`, `["x", "y"]` or `{"order_id": "id"}` (this stream's: the other's).
            window: rows meet in windows of this shape; results are sent when a window closes.
            within: or: bounds of the other row's time minus this one's, `("-5m", "30m")`; matches are sent as they come, rows without
                one once none can come. `"forever"` keeps both sides: for streams whose rows change.
            how: "inner", "left", "right", "full", "semi" (rows with a match, once) or "anti" (rows without one).
            suffix: is added to the other stream's columns whose names are taken.
        """
        return joining.join(self, other, on=on, window=window, within=within, how=how, suffix=suffix, name=name)

    def join_asof(
        self,
        other: Stream,
        *,
        on: joining.On,
        tolerance: Any = None,
        how: str = "left",
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Each row with the other stream's last row at or before its time: `trades.join_asof(quotes, on="symbol", name="priced")`.

        Sent once the watermark has passed the row's time, so the answer is final.

        Args:
            tolerance: how old that row may be: `"5s"`. Without it, any age.
            how: "left" keeps rows that find none; "inner" does not.
        """
        return joining.join_asof(self, other, on=on, tolerance=tolerance, how=how, suffix=suffix, name=name)

    def lookup(self, table: Table, *, on: joining.On | None = None, how: str = "inner", suffix: str = "_right") -> Stream:
        """Each row with the row of a table that has its key: `events.lookup(p.table(source, key="id"), on={"user_id": "id"})`.

        `how="left"` keeps rows that are not found. A row finds what the table holds when it passes.
        """
        return joining.lookup(self, table, on=on, how=how, suffix=suffix)

    def drop_duplicates(self, *columns: str, within: Any = None, name: str | None = None) -> Stream:
        """The first row of each key: `drop_duplicates("event_id", within="1h", name="seen")`. Without columns, by all of them.

        A key is forgotten after `within` of event time; without it, never.
        """
        return joining.drop_duplicates(self, columns, within=within, name=name)

    def broadcast(self) -> BroadcastStream:
        """To every task: the second input of a process function, `a.key_by("k").connect(b.broadcast()).process(…)`."""
        return BroadcastStream(self)

    def side(self, name: str) -> Stream:
        """A side output that a process function declares: `alerts.side("suspects")`."""
        outputs = self._node.spec.outputs if isinstance(self._node, Process) else {}
        if name not in outputs:
            raise PlanError(
                f"this step has no side output {name!r}; it has {', '.join(outputs) or 'none'}",
                fix=Fix("process.side", f"Declare it in the class of the process function: {name} = pen.Output(…)"),
                where=user_line(),
            )
        return self._then(logical.Port(where=user_line(), input=self._node, port=SIDE + name))

    @property
    def late(self) -> Stream:
        """The rows that came after their window had closed; of a join, this side's rows that came too late."""
        if not isinstance(self._late_of, HAS_LATE) and not has_order(self._late_of):
            raise PlanError(
                "only the result of a window has late rows, or of a join in time",
                fix=Fix("late.of", "Take them of that step itself: counts = ….window(…).aggregate(…), then counts.late"),
                where=user_line(),
            )
        return self._then(logical.Port(where=user_line(), input=self._late_of, port="late"))

    @property
    def late_right(self) -> Stream:
        """The other side's rows that came too late for a join."""
        if not isinstance(self._node, joins.HAS_LATE_RIGHT) and not (has_order(self._node) and len(self._node.inputs) == 2):
            raise PlanError(
                "only a join in time has late rows of its right side",
                fix=Fix("late.right-of", "Take them of the join itself: both = a.join(b, …), then both.late_right"),
                where=user_line(),
            )
        return self._then(logical.Port(where=user_line(), input=self._node, port="late_right"))

    # Time and keys.

    def with_watermark(
        self,
        at: Expr | str | Callable[..., Any],
        *,
        delay: Any = None,
        punctuated: Expr | str | Callable[..., Any] | None = None,
        idle_after: Any = None,
        max_ahead: Any = None,
        align: str | None = None,
        drift: Any = None,
    ) -> Stream:
        """Event time, and how far it is: `with_watermark("at", delay="5s")`. Per split; the least over the active ones.

        Args:
            at: a column, an expression, or a function of a row that returns a datetime with time zone.
            delay: by how much rows of a split may be out of order; "0s" if times never go back.
            punctuated: instead of `delay`: a function of a row (or an expression). Where it gives a time, nothing more at or
            before it comes in this split; None says nothing.
            idle_after: a split silent for so long holds nobody back.
            max_ahead: a row whose time is further in the future is a bad row, and moves nothing.
            align: splits of all sources that name this group stay within `drift` of the slowest.
        """

        def duration(value: Any, name: str) -> int | None:
            return None if value is None else at_line(lambda: micros(value, name))

        node = logical.AssignTime(
            where=user_line(),
            input=self._node,
            at=self._moment(at),
            delay=duration(delay, "delay"),
            punctuated=None if punctuated is None else self._moment(punctuated),
            idle_after=duration(idle_after, "idle_after"),
            max_ahead=duration(max_ahead, "max_ahead"),
            align=align,
            drift=duration(drift, "drift"),
            on_error=self._on_error,
        )
        return self._then(node)

    def key_by(self, *columns: Expr | str, **named: Expr | str) -> KeyedStream:
        """Rows with equal keys are worked on together: `key_by("user")`, `key_by(word="value")`."""
        keys = [*at_line(lambda: named_exprs(columns)), *at_line(lambda: keyword_exprs(named))]
        if not keys:
            raise PlanError(
                "key_by needs a column",
                fix=Fix(
                    "key_by.empty",
                    f'Name one; without a key there are windows over all rows. Write: .key_by("{self.schema.names[0]}"),'
                    ' or .window(pen.tumbling("10s"))',
                ),
                where=user_line(),
            )
        computed = {name: expr for name, expr in keys if expr.text() != name}
        stream = self.with_columns(**computed) if computed else self
        return KeyedStream(stream, tuple(name for name, _ in keys))

    def window(self, shape: Any, *, lateness: Any = None, trigger: Any = None, emit: str | None = None) -> WindowedStream:
        """Windows over all rows, without a key. Options as in `KeyedStream.window`."""
        all_rows = [*((name, col(name)) for name in self.schema.names), (logical.ALL_COLUMN, lit(0))]
        return WindowedStream(self._project(all_rows), (logical.ALL_COLUMN,), shape, lateness, trigger, emit)

    def aggregate(self, *aliased: Aggregate, name: str | None = None, **aggregates: Aggregate | str) -> Stream:
        """Running aggregates over all rows: one row, sent anew whenever rows came. `aggregate(n=pen.count(), name="total")`."""
        return self.window(Running()).aggregate(*aliased, name=name, **aggregates)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """A function of two rows, folded over all rows: one row, sent anew whenever rows came. It must be associative."""
        return self.window(Running()).reduce(function, name=name)

    def top(self, count: int, *, by: joining.By, ascending: joining.Ascending | None = None, name: str | None = None) -> Stream:
        """The greatest of all rows so far, with their `rank`; a row is sent for each rank that changes hands. See `KeyedStream.top`."""
        return self.window(Running()).top(count, by=by, ascending=ascending, name=name)

    def count_by_window(self, size: Any, *, every: Any = None, name: str | None = None) -> Stream:
        """How many rows there are in each window, as `n`; with `every`, windows overlap."""
        return self.window(at_line(lambda: window_of(size, every))).aggregate(n=count(), name=name)

    def count_by_value_and_window(self, size: Any, *, every: Any = None, name: str | None = None) -> Stream:
        """How many rows equal in all columns there are in each window, as `n`."""
        return self.key_by(*self.schema.names).window(at_line(lambda: window_of(size, every))).aggregate(n=count(), name=name)

    def reduce_by_window(
        self, function: Callable[[Any, Any], Any], size: Any, *, every: Any = None, name: str | None = None
    ) -> Stream:
        """A function of two rows, folded over all rows of each window."""
        return self.window(at_line(lambda: window_of(size, every))).reduce(function, name=name)

    def reduce_by_key_and_window(
        self,
        function: Callable[[Any, Any], Any],
        size: Any,
        *,
        by: str | list[str],
        every: Any = None,
        inverse: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Short for `key_by(by).reduce_by_window(function, size, ...)`."""
        keys = [by] if isinstance(by, str) else by
        return self.key_by(*keys).reduce_by_window(function, size, every=every, inverse=inverse, name=name)

    def as_rows(self, op: str = "op") -> Stream:
        """Changes as plain rows that are final: a column says what each is, "insert", "update" or "delete"."""
        return self._then(logical.AsRows(where=user_line(), input=self._node, op=op))

    # The end.

    def write(self, sink: Sink, *, name: str | None = None) -> Pipeline:
        """Into a sink. Returns the pipeline, so that a chain ends in something that runs."""
        self._pipeline.add(
            logical.Write(where=user_line(), input=self._node, sink=sink, name=sink.name if name is None else name)
        )
        return self._pipeline

    # How nodes are made.

    @property
    def _on_error(self) -> str:
        return self._pipeline.on_error

    def _then(self, node: logical.Node) -> Stream:
        return Stream(self._pipeline, node)

    def _project(self, columns: list[tuple[str, Expr]]) -> Stream:
        return self._then(logical.Project(where=user_line(), input=self._node, columns=tuple(columns), on_error=self._on_error))

    def _policy(self, on_error: str | Policy | None) -> Policy:
        return at_line(lambda: policy_of(on_error, self._pipeline.policy))

    def _rows(self, function: Callable[..., Any], kind: str, schema: Any, on_error: str | Policy | None) -> Stream:
        row_function, policy = at_line(lambda: RowFunction.of(function, kind, self.schema, schema)), self._policy(on_error)
        common: dict[str, Any] = {"where": user_line(), "input": self._node, "on_error": policy.then, "attempts": policy.attempts}
        return self._then(logical.MapRows(**common, function=row_function))

    def _moment(self, at: Expr | str | Callable[..., Any]) -> Expr | RowFunction:
        """What gives a row its time, or none."""
        if isinstance(at, Expr | str):
            return at_line(lambda: as_expr(at))
        if not callable(at):
            raise PlanError(
                f"{brief(at)} is neither a column, an expression nor a function",
                fix=Fix("watermark.time", 'Name the column with the time. Write: .with_watermark("at", delay="5s")'),
                where=user_line(),
            )
        return at_line(lambda: RowFunction.of(at, "map", self.schema, datetime | None))

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
