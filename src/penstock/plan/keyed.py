"""Steps that remember something per key: aggregates and reduce, running or over windows.

A keyed step says, besides what every node says: by which columns rows of each input are brought together (`sides`), and what it
keeps in snapshots (`states`, `params`). The state is found by the step's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.eventtime import NEEDS_TIME, duration_text
from penstock.expr import Accumulators
from penstock.expr import Aggregate as AggregateExpr
from penstock.expr.listed import tables_of
from penstock.folding import ReduceFunction
from penstock.plan.logical import (
    ALL_COLUMN,
    ROWS_COLUMN,
    TIME_TYPE,
    Node,
    Used,
    check_column_name,
    check_columns,
    unique_schema,
    walk,
)
from penstock.plan.replaced import of_updates
from penstock.state.convert import Wanted
from penstock.state.keygroups import canonical_type
from penstock.triggers import EACH_ROW, AfterCount, AfterEach, AfterTime, AfterWatermark, Trigger, after_watermark
from penstock.windows import Custom, Running, Shape, Sliding, Tumbling

WINDOW_COLUMN, END_COLUMN = "__window", "__end"
TIME_BOUNDS = (pa.field("window_start", TIME_TYPE, nullable=False), pa.field("window_end", TIME_TYPE, nullable=False))
ROW_BOUNDS = (pa.field("window_start", pa.int64(), nullable=False), pa.field("window_end", pa.int64(), nullable=False))
PANE_NUMBERS = ("end", "new", "live", "index", "timely", "sent", "sent_end", "sent_pane", "timer", "alarm")
"""What is known of a pane, besides its trigger, what was sent and its accumulators: `operators.panes` says what they mean."""
SESSION_FIELDS = [
    pa.field("__start", pa.int64(), nullable=False),
    pa.field("__end", pa.int64(), nullable=False),
    pa.field("__more_starts", pa.list_(pa.int64())),
    pa.field("__more_ends", pa.list_(pa.int64())),
]
"""The open sessions of a key. Most keys have one, which costs two numbers; lists are for the others."""
SENT = "__sent."
EMITS = ("append", "update", "retract", "delta", "complete")


@dataclass(frozen=True, slots=True)
class StateLayout:
    """One state of a step: a table of values by key, or timers. The first `route` key columns decide where a row lives.

    `expires` names the value column (int64, µs) that says when a row is gone: see `state.table`.
    """

    name: str
    keys: pa.Schema
    values: pa.Schema | None  # None: timers
    route: int
    expires: str | None = None  # the column that says when a row is forgotten
    broadcast: bool = False  # the same in every task
    grows: str = ""  # what may be added to it: see `state.convert`
    fills: Callable[[], Mapping[str, pa.Scalar]] = dict  # only asked when something was added
    defaults: Callable[[], Mapping[str, Any]] = dict
    endless: bool = False
    from_start: Callable[[], Mapping[str, tuple[str, ...]]] = dict

    @property
    def wanted(self) -> Wanted | None:
        """What its columns are to be, whatever they were when they were stored."""
        if self.values is None:
            return None
        return Wanted(self.values, self.grows, self.fills, self.defaults(), self.endless, self.from_start)


@dataclass(frozen=True, eq=False, kw_only=True)
class Stateful(Node):
    """Base of steps that remember something."""

    name: str
    on_error: str = "fail"

    verb: ClassVar[str] = "this step"

    def states(self) -> Sequence[StateLayout]:
        """What a snapshot holds of it."""
        raise NotImplementedError

    def params(self) -> dict[str, Any] | None:
        """What a snapshot must have been made with to fit: state of one window shape means nothing to another."""
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Keyed(Stateful):
    """Base of steps that remember something per key."""

    @property
    def sides(self) -> tuple[tuple[Node, tuple[str, ...]], ...]:
        """Each input, and the columns that say which of its rows belong together."""
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node, _ in self.sides)

    def partial(self) -> pa.Schema | None:
        """If rows are folded before they cross the exchange: what crosses it."""
        return None

    def check_keys(self, input: Node, by: Sequence[str]) -> None:
        """Each is a column of the input that can be a key."""
        check_columns(tuple(by), input, self)
        for key in by:
            try:
                canonical_type(input.schema.field(key).type)
            except PlanError as error:
                raise self.error(f"the key {key!r}: {error.message}", fix=error.fix) from None


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedRows(Keyed):
    """Base of keyed steps with one input."""

    input: Node
    by: tuple[str, ...]  # columns of the input
    windowed: ClassVar[bool] = True  # whether it goes by windows, or may as well do without

    @property
    def takes_back(self) -> bool:
        """Whether it could take rows back."""
        return False

    def __post_init__(self) -> None:
        if self.input.changes == "update":
            raise self.error(
                f"the rows of this stream replace earlier ones, so {self.verb} would count both",
                fix=of_updates(self.input, self.verb, takes_back=self.takes_back, windowed=self.windowed),
            )
        self.check_keys(self.input, self.by)

    @property
    def sides(self) -> tuple[tuple[Node, tuple[str, ...]], ...]:
        return ((self.input, self.by),)

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
    def state_keys(self) -> list[pa.Field]:
        """The key columns as state knows them."""
        return [pa.field(f.name, canonical_type(f.type)) for f in self.by_fields]

    def _layout(
        self, name: str, more: Sequence[pa.Field], values: Sequence[pa.Field] | None, *, expires: str | None = None, **growth: Any
    ) -> StateLayout:
        keys, held = self.state_keys, None if values is None else pa.schema(list(values))
        return StateLayout(name, pa.schema([*keys, *more]), held, len(keys), expires, **growth)

    def _keyed_text(self, what: str, window: str = "") -> str:
        keys = "all rows" if self.by == (ALL_COLUMN,) else f"key_by {', '.join(self.by)}"
        return f"{keys}{window} {what} name={self.name}"


# --- aggregates
# ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregating(KeyedRows):
    """Base of the two aggregates."""

    aggregates: tuple[tuple[str, AggregateExpr], ...]
    verb = "aggregate"

    @property
    def accumulators(self) -> Accumulators:
        """The vectorised form of the aggregates."""
        schema = pa.schema([*self.input.schema, *self.input.hidden])
        return Accumulators(self.aggregates, schema, retract=self.input.changes == "retract")

    @property
    def takes_back(self) -> bool:
        """Over all rows so far, with aggregates that can; of a window nobody knows whether it is still open."""
        try:
            Accumulators(self.aggregates, pa.schema([*self.input.schema, *self.input.hidden]), retract=True)
        except PlanError:
            return False
        return isinstance(getattr(self, "window", Running()), Running)

    def params(self) -> dict[str, Any] | None:
        keeps = self.accumulators.keeps
        return {"keeps": keeps} if keeps else None

    def _growth(self, *, endless: bool = False) -> dict[str, Any]:
        """How its accumulators may differ from older ones."""
        return {"grows": "aggregates", "fills": self._fills, "endless": endless, "from_start": self._from_start}

    def _from_start(self) -> dict[str, tuple[str, ...]]:
        """See `Wanted`: a count that begins late has rows taken from it that it never counted."""
        before = (node for node in walk((self.input,)) if isinstance(node, Stateful) and node.changes == "retract")
        return dict.fromkeys(self.accumulators.added_up, tuple(node.name for node in before))

    def _fills(self) -> dict[str, pa.Scalar]:
        """An aggregate that is added begins with no rows."""
        accumulators = self.accumulators
        empty = accumulators.empty()
        sent = zip(accumulators.results, accumulators.finish(empty), strict=True)
        fills = {f"{SENT}{result.name}": column[0] for result, column in sent}
        return {**{name: empty.column(name)[0] for name in empty.schema.names}, **fills}

    def _result_fields(self) -> list[pa.Field]:
        for name, _ in self.aggregates:
            check_column_name(name, self)
        try:
            return list(self.accumulators.results)
        except PlanError as error:
            raise self.error(error.message, fix=error.fix) from None

    def needs(self, used: Used) -> list[set[str]]:
        read = {c for _, aggregate in self.aggregates for c in aggregate.columns() if not c.startswith("__") or c == ALL_COLUMN}
        return [set(self.by) | read | used["late"]]

    def _partial(self, window: Sequence[pa.Field]) -> pa.Schema:
        rows = pa.field(ROWS_COLUMN, pa.int64(), nullable=False)
        return pa.schema([*self.by_fields, *window, *self.accumulators.fields, rows])

    def _lists(self, more: Sequence[pa.Field]) -> list[StateLayout]:
        """Where long lists of values stand, by the step's key and the columns of a window."""
        tables = [table for name, listed in self.accumulators.lists for table in tables_of(name, listed)]
        return [self._layout(name, [*more, *keys], values) for name, keys, values in tables]

    def _aggregates_text(self) -> str:
        return "aggregate " + ", ".join(f"{name}={aggregate.text()}" for name, aggregate in self.aggregates)


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Aggregating):
    """A running aggregate: an updated row per key whenever rows of that key came."""

    kind = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.input.changes == "append", "of rows that can be withdrawn a running aggregate is one over pen.running()"
        fields = [*self.key_fields, *self._result_fields()]
        self._set(schema=unique_schema(fields, self), changes="update", keys=tuple(f.name for f in self.key_fields))

    def partial(self) -> pa.Schema | None:
        return self._partial(())

    def states(self) -> Sequence[StateLayout]:
        return [self._layout("accumulators", (), self.accumulators.fields, **self._growth(endless=True)), *self._lists(())]

    def text(self) -> str:
        return self._keyed_text(self._aggregates_text())


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAggregate(Aggregating):
    """Aggregates per key and window: where (`window`), until when (`lateness`), when (`trigger`) and how (`emit`) they are sent."""

    window: Shape
    lateness: int = 0
    trigger: Trigger | None = None
    emit: str = "append"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()
        fields = [*self.key_fields, *self.bounds, *self._result_fields()]
        # What the clock of the machine says is no event time: nobody's watermark would ever pass it.
        timed = self.window.timed and self.window.clock == "event"
        self._set(schema=unique_schema(fields, self), timed=timed)
        changes = {"append": "append", "delta": "append", "retract": "retract"}.get(self.emit, "update")
        keys = (
            [f.name for f in (*self.key_fields, *self.bounds[: 1 if one_end(self.window) else 2])] if changes == "update" else []
        )
        goes_away = changes == "update" and (self.window.merging or self.input.changes == "retract")
        self._set(changes=changes, keys=tuple(keys), signed=changes == "retract" or goes_away)
        self._set(paned=self.operator == "pane_aggregate" and not isinstance(self.window, Running))
        self._set(retimed=changes == "retract" and self.window.merging)

    def _check(self) -> None:
        shape, window = self.window, self.window.text()
        if shape.clock == "event" and shape.timed and not self.input.timed:
            raise self.error(f"{window} needs event time, and this stream has none", fix=NEEDS_TIME)
        if self.emit not in EMITS:
            raise self.error(
                f"emit={self.emit!r} is not known", fix=Fix("emit.words", f"Write: {', or '.join(f'emit={e!r}' for e in EMITS)}")
            )
        if self.emit == "append" and self.trigger is not None:
            raise self.error(
                'emit="append" sends each result once, when nothing can change it, so there is nothing for trigger= to say',
                fix=Fix(
                    "emit.trigger",
                    "Leave the trigger out, or have a newer row replace or withdraw the earlier one, or send only what came since."
                    ' Write: emit="update", or emit="retract", or emit="delta"',
                ),
            )
        if self.emit == "append" and isinstance(shape, Running):
            raise self.error(
                'pen.running() never closes, so emit="append" would never send a row',
                fix=Fix("emit.running", 'Write: emit="update"'),
            )
        if self.emit == "complete" and not isinstance(shape, Running):
            raise self.error(
                f'emit="complete" sends the whole result each time: with {window} it grows for ever',
                fix=Fix("emit.complete", 'Write: emit="update"'),
            )
        if self.lateness < 0:
            raise self.error(
                f"lateness={duration_text(self.lateness)} is negative",
                fix=Fix("lateness.negative", f'Write: lateness="{duration_text(-self.lateness)}"'),
            )
        if self.lateness and (shape.clock != "event" or not shape.timed):
            raise self.error(
                f"lateness is about event time, and {window} does not go by it", fix=Fix("lateness.time", "Leave lateness= out")
            )
        if shape.by_rows and (self.emit not in ("append", "delta") or self.trigger is not None):
            raise self.error(
                f"{window} sends its result when it is full, once", fix=Fix("rows-window.options", "Leave trigger= and emit= out")
            )
        if shape.by_rows and self.input.changes == "retract":
            raise self.error(
                f"{window} counts rows as they come, and rows of this stream can be withdrawn",
                fix=Fix("rows-window.of-retractions", 'Use a window of time. Write: pen.running(), or pen.tumbling("1m")'),
            )
        if self.input.retimed and shape.clock == "event" and shape.timed and not self.lateness:
            raise self.error(
                "sessions before this step may grow after they were sent: what is withdrawn then has another time than what replaces it,"
                f" and {window} may find one of them late",
                fix=Fix(
                    "window.of-sessions",
                    'Wait for them, lateness="1m" and emit="retract", or take .window(pen.running()) here, or emit="append" there',
                ),
            )
        if shape.merging and self.input.changes == "retract":
            raise self.error(
                f"rows of this stream can be withdrawn, and {window} cannot tell any more which of its rows kept it together",
                fix=Fix(
                    "session.of-retractions",
                    "Use a window that does not depend on its rows, such as pen.tumbling, or let the step before send each result once."
                    ' Write: emit="append"',
                ),
            )
        if self.emit == "delta" and self.input.changes == "retract":
            raise self.error(
                'emit="delta" sends what came since, and rows of this stream can be withdrawn',
                fix=Fix("emit.delta", 'Write: emit="retract"'),
            )

    @property
    def bounds(self) -> tuple[pa.Field, ...]:
        """The columns that say which window a result is of."""
        if isinstance(self.window, Running):
            return ()
        return free_bounds(ROW_BOUNDS if self.window.by_rows else TIME_BOUNDS, [f.name for f in self.key_fields])

    @property
    def firing(self) -> Trigger:
        """When results are sent: as the user said, or at the watermark and then for each late row; without an end, for each row."""
        default = EACH_ROW if isinstance(self.window, Running) else after_watermark()
        return self.trigger if self.trigger is not None else default

    @property
    def operator(self) -> str:
        """Which operator does it: the general one, or a simpler one where results are sent once."""
        if self.window.by_rows:
            return "count_aggregate"
        simple = self.emit == "append" and self.window.clock == "event" and self.input.changes == "append"
        if simple and isinstance(self.window, Tumbling):
            return "window_aggregate"
        if simple and isinstance(self.window, Sliding):
            return "inverse_aggregate" if self.accumulators.can_unmerge else "sliding_aggregate"
        return "pane_aggregate"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.operator

    @property
    def slices(self) -> Tumbling | None:
        """What rows can be folded into before the exchange, if anything."""
        if self.operator == "window_aggregate":
            assert isinstance(self.window, Tumbling)
            return self.window
        if self.operator in ("sliding_aggregate", "inverse_aggregate"):
            assert isinstance(self.window, Sliding)
            return Tumbling(self.window.slice, self.window.offset)
        return None

    def partial(self) -> pa.Schema | None:
        return None if self.slices is None else self._partial([pa.field(WINDOW_COLUMN, pa.int64(), nullable=False)])

    def output(self, port: str) -> Node:
        return late_rows(self) if port == "late" else self

    def states(self) -> Sequence[StateLayout]:
        return window_states(self)

    def params(self) -> dict[str, Any] | None:
        more: dict[str, Any] = {"lateness": self.lateness} if self.lateness else {}
        if self.operator == "pane_aggregate":
            more |= {"emit": self.emit, "trigger": self.firing.params()}
        return {**self.window.params(), **more, **(super().params() or {})}

    def text(self) -> str:
        options = [f'lateness="{duration_text(self.lateness)}"'] if self.lateness else []
        options += [f"trigger={self.trigger.text()}"] if self.trigger is not None else []
        options += [f'emit="{self.emit}"'] if self.emit != "append" else []
        return self._keyed_text(self._aggregates_text(), f" window {', '.join([self.window.text(), *options])}")


def window_states(node: WindowAggregate) -> list[StateLayout]:
    """What the operators of a windowed aggregate keep."""
    start = pa.field(WINDOW_COLUMN, pa.int64())
    accumulators, growth = node.accumulators.fields, node._growth(endless=isinstance(node.window, Running))
    if node.operator == "count_aggregate":
        return [
            node._layout("accumulators", [start], accumulators, **growth),
            node._layout("counts", (), [pa.field("__count", pa.int64(), nullable=False)]),
            *node._lists([start]),
        ]
    if node.operator != "pane_aggregate":
        layouts = [node._layout("accumulators", [start], accumulators, **growth), node._layout("timers", [start], None)]
        if node.operator == "inverse_aggregate":
            totals = [pa.field("__start", pa.int64(), nullable=False), *accumulators]
            layouts.append(node._layout("totals", (), totals, **growth))
        return [*layouts, *node._lists([start])]
    window = [start] if one_end(node.window) else [start, pa.field(END_COLUMN, pa.int64())]
    layouts = [node._layout("panes", window, pane_fields(node), **growth), node._layout("timers", window, None)]
    if any(isinstance(part, AfterTime) for part in trigger_parts(node.firing)):
        layouts.append(node._layout("alarms", window, None))
    if node.window.merging:
        layouts.append(node._layout("sessions", (), SESSION_FIELDS))
    return [*layouts, *node._lists(window)]


def free_bounds(bounds: tuple[pa.Field, ...], taken: Collection[str]) -> tuple[pa.Field, ...]:
    """The columns of a window's bounds beside columns that may be those of an earlier window: then these are the second, the third…

    >>> [f.name for f in free_bounds(ROW_BOUNDS, ["user", "window_end"])]
    ['window_start_2', 'window_end_2']
    """
    number, found = 1, bounds
    while any(f.name in taken for f in found):
        number += 1
        found = tuple(f.with_name(f"{f.name}_{number}") for f in bounds)
    return found


def one_end(shape: Shape) -> bool:
    """Whether the start of a window says which one it is: of a user's own shape two windows may begin together."""
    return not isinstance(shape, Custom)


def trigger_parts(trigger: Trigger) -> Iterator[Trigger]:
    """A trigger and all it is made of."""
    yield trigger
    for part in trigger.parts:
        yield from trigger_parts(part)


def trigger_width(trigger: Trigger) -> int:
    """How many numbers the state of a trigger is: as `operators.triggering` compiles it."""
    return sum(isinstance(part, AfterCount | AfterTime | AfterEach | AfterWatermark) for part in trigger_parts(trigger))


def pane_fields(node: WindowAggregate) -> list[pa.Field]:
    """The state of one key and window in the general operator."""
    fields = [pa.field(f"__pane.{name}", pa.int64(), nullable=False) for name in PANE_NUMBERS]
    fields += [pa.field(f"__trigger.{i}", pa.int64(), nullable=False) for i in range(trigger_width(node.firing))]
    if node.emit == "retract":
        fields += [pa.field(f"{SENT}{f.name}", f.type) for f in node.accumulators.results]
    return [*fields, *node.accumulators.fields]


# --- reduce
# ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Reducing(KeyedRows):
    """Base of the two reduces: a function of two rows, folded over the rows of each key in the order they come."""

    function: ReduceFunction
    verb = "reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input.changes != "append":
            raise self.error(
                "reduce cannot take a row back, and rows of this stream can be withdrawn",
                fix=Fix("reduce.of-retractions", "Use aggregate instead of reduce"),
            )

    def needs(self, used: Used) -> list[set[str]]:
        return [set(self.input.schema.names)]

    @property
    def row_values(self) -> list[pa.Field]:
        """The folded row as state: named apart from the key columns."""
        return [pa.field(f"row.{f.name}", f.type) for f in self.row_schema]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(Reducing):
    """One folded row per key, for ever."""

    kind = "reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(schema=self.input.schema, changes="update", keys=self.by)

    def states(self) -> Sequence[StateLayout]:
        return [self._layout("rows", (), self.row_values)]

    def text(self) -> str:
        return self._keyed_text(f"reduce {self.function.name}")


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowReduce(Reducing):
    """One folded row per key and window."""

    window: Tumbling
    kind = "window_reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.input.timed:
            raise self.error(f"{self.window.text()} needs event time, and this stream has none", fix=NEEDS_TIME)
        # Of which earlier window a folded row was nobody can say, unless it is part of the key.
        away = {*self.by, ALL_COLUMN, *(f.name for f in self.bounds)}
        rest = [f for f in self.input.schema if f.name not in away]
        self._set(schema=unique_schema([*self.key_fields, *self.bounds, *rest], self), timed=True)

    @property
    def bounds(self) -> tuple[pa.Field, ...]:
        """The columns that say which window a result is of."""
        return free_bounds(TIME_BOUNDS, [f.name for f in self.key_fields])

    def output(self, port: str) -> Node:
        return late_rows(self) if port == "late" else self

    def states(self) -> Sequence[StateLayout]:
        start = pa.field(WINDOW_COLUMN, pa.int64())
        return [self._layout("rows", [start], self.row_values), self._layout("timers", [start], None)]

    def params(self) -> dict[str, Any] | None:
        return self.window.params()

    def text(self) -> str:
        return self._keyed_text(f"reduce {self.function.name}", f" window {self.window.text()}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Late(Node):
    """What rows that came too late are like: those of the step's input."""

    input: Node
    made: pa.Schema

    def __post_init__(self) -> None:
        self._like(self.input, self.made)


def late_rows(node: KeyedRows) -> Node:
    """The rows of a keyed step that came after their window had closed."""
    return Late(input=node.input, made=node.row_schema)
