"""What the user chains after `key_by` and `window`: which rows belong together, until when, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import windows
from penstock.api import joins
from penstock.api import process as processing
from penstock.api.arguments import at_line, named_aggregates, need_name
from penstock.api.shortforms import FoldRows, InvertibleFold, window_of
from penstock.api.where import user_line
from penstock.errors import Fix, PlanError
from penstock.eventtime import micros
from penstock.expr import Aggregate, col, struct
from penstock.folding import ReduceFunction
from penstock.plan import keyed
from penstock.processing.states import ValueState
from penstock.schema import visible
from penstock.triggers import trigger_of
from penstock.windows import Running, Session, Shape, Tumbling, shape_of

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class KeyedStream(processing.Processable):
    """Rows by key: `aggregate`, `reduce`, `window`, `process`."""

    def __init__(self, stream: Stream, by: tuple[str, ...]) -> None:
        self._stream, self._by = stream, by

    def aggregate(self, *aliased: Aggregate, name: str | None = None, **aggregates: Aggregate | str) -> Stream:
        """Running aggregates: an updated row per key. `aggregate(n=pen.count(), total="sum(price)", name="totals")`."""
        return self.window(Running()).aggregate(*aliased, name=name, **aggregates)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """A function of two rows, folded over each key's rows in the order they come: an updated row per key."""
        folded = at_line(lambda: ReduceFunction.of(function, self._stream.schema))
        name = need_name(name, "reduce", function, self._by)
        return self._stream._then(
            keyed.Reduce(
                where=user_line(),
                input=self._stream._node,
                by=self._by,
                name=name,
                function=folded,
                on_error=self._stream._on_error,
            )
        )

    def top(self, count: int, *, by: joins.By, ascending: joins.Ascending | None = None, name: str | None = None) -> Stream:
        """The greatest rows of each key so far, with their `rank`: `top(3, by="score", name="best")`.

        A row is sent for each rank that changes hands; it replaces the earlier one of the same key and rank.

        Args:
            by: what to order by; of several, `by=["price", "at asc"]`, the second decides where the first is equal. Greater is
                better, unless a text ends with `asc`.
            ascending: True: the smallest first. Or for each of several: `ascending=[False, True]`. It says what `asc` and `desc`
                in texts say, so there is one or the other.
        """
        return joins.top(self._stream, self._by, count, by=by, ascending=ascending, window=None, name=name)

    def _sides(self) -> tuple[KeyedStream, None]:
        return self, None

    def connect(self, other: KeyedStream | processing.BroadcastStream) -> processing.ConnectedStreams:
        """A second input for a process function: keyed alike, or broadcast."""
        if not isinstance(other, KeyedStream | processing.BroadcastStream):
            raise PlanError(
                "connect needs a stream by key or one that is broadcast",
                fix=Fix("connect.stream", 'Write: .connect(other.key_by("user")), or .connect(other.broadcast())'),
                where=user_line(),
            )
        return processing.ConnectedStreams(self, other)

    def map_with_state(
        self,
        function: Callable[[Any, ValueState[Any]], Any],
        *,
        state: Any,
        timeout: Any = None,
        clock: str | None = None,
        initial: Any = None,
        schema: Any = None,
        name: str | None = None,
    ) -> Stream:
        """A function of each row and its key's state: `def visit(row: Click | None, state: pen.ValueState) -> Visit | None`.

        What it returns is sent, unless it is None. Cost grows with the rows, not with the state.

        Args:
            state: the type of the state.
            timeout: a key that was silent for so long is forgotten, after a last call with None as row and `state.timing_out`.
            clock: whose time that is: "event" (the default where there is event time) or "processing".
            initial: values to start from, as for `process`.
        """
        return processing.map_with_state(
            self, function, state=state, timeout=timeout, clock=clock, initial=initial, schema=schema, name=name
        )

    def update_state_by_key(
        self,
        function: Callable[[list[Any], Any], Any],
        *,
        state: Any,
        every: Any,
        initial: Any = None,
        name: str | None = None,
    ) -> Stream:
        """A function of a key's new rows and its old state gives the new one: `lambda rows, old: (old or 0) + len(rows)`.

        Called every so often (by the time of day) for each key that has a state or rows, so cost grows with the state. None forgets
        the key. The result is a table: a row per key with its state, which replaces the earlier one.
        """
        return processing.update_state_by_key(self, function, state=state, every=every, initial=initial, name=name)

    def reduce_by_window(
        self,
        function: Callable[[Any, Any], Any],
        size: Any,
        *,
        every: Any = None,
        inverse: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A function of two rows over each key's rows of a window (DStream's reduceByKeyAndWindow).

        Args:
            every: windows overlap, one begins at every step; left out, they stand side by side.
            inverse: `inverse(whole, part)` undoes `function`. A window then costs what changed since the last one.
        """
        return self.window(at_line(lambda: window_of(size, every))).reduce(function, inverse=inverse, name=name)

    def window(self, shape: Any, *, lateness: Any = None, trigger: Any = None, emit: str | None = None) -> WindowedStream:
        """Windows per key: `window(pen.tumbling("10s"))`.

        Args:
            shape: where windows begin and end: `pen.tumbling`, `pen.sliding`, `pen.session`, `pen.running`, or your own.
            lateness: for how long after its end a window still takes rows.
            trigger: when results are sent (`penstock.triggers`); a duration: every so long; a number: every so many rows. Left out:
                at the watermark, then for each late row.
            emit: how results that are sent again relate to the earlier ones: "append" (sent once, when nothing can change it),
                "update", "retract", "delta" or "complete".
        """
        return WindowedStream(self._stream, self._by, shape, lateness, trigger, emit)


class WindowedStream:
    """Rows by key and window: `aggregate`, `reduce`."""

    def __init__(
        self, stream: Stream, by: tuple[str, ...], shape: Any, lateness: Any = None, trigger: Any = None, emit: str | None = None
    ) -> None:
        self._stream, self._by = stream, by
        self._shape: Shape = at_line(lambda: shape_of(shape))
        self._lateness = 0 if lateness is None else at_line(lambda: micros(lateness, "lateness"))
        self._trigger = None if trigger is None else at_line(lambda: trigger_of(trigger))
        if emit is None and (self._lateness or self._trigger is not None):
            given = f"lateness={lateness!r}" if self._lateness else f"trigger={trigger!r}"
            raise PlanError(
                f"with {given} a result may be sent more than once, and nothing says how",
                fix=Fix(
                    "window.emit",
                    'A newer row replaces the earlier one ("update"), the earlier one is withdrawn ("retract"), only what came since is'
                    ' sent ("delta")'
                    + ("" if trigger is not None else ', or the result once, when nothing can change it any more ("append")')
                    + '. Write: emit="update", or emit="retract", or emit="delta"'
                    + ("" if trigger is not None else ', or emit="append"'),
                ),
                where=user_line(),
            )
        self._emit = emit or ("update" if isinstance(self._shape, Running) else "append")

    def aggregate(self, *aliased: Aggregate, name: str | None = None, **aggregates: Aggregate | str) -> Stream:
        """One row per key and window, with window_start and window_end, sent when and how `window` says."""
        built = at_line(lambda: named_aggregates(aliased, aggregates))
        name = need_name(name, "aggregate", built, self._by)
        stream = self._stream
        common: dict[str, Any] = {"where": user_line(), "input": stream._node, "by": self._by, "name": name, "aggregates": built}
        common["on_error"] = stream._on_error
        plain = isinstance(self._shape, Running) and self._emit == "update" and self._trigger is None and not self._lateness
        if plain and stream._node.changes != "retract":
            return stream._then(keyed.Aggregate(**common))
        options: dict[str, Any] = {
            "window": self._shape,
            "lateness": self._lateness,
            "trigger": self._trigger,
            "emit": self._emit,
        }
        return stream._then(keyed.WindowAggregate(**common, **options))

    def top(self, count: int, *, by: joins.By, ascending: joins.Ascending | None = None, name: str | None = None) -> Stream:
        """The greatest rows of each key and window, with their `rank`, when it closes: `top(10, by="n", name="trending")`.

        `by` and `ascending` as in `KeyedStream.top`.
        """
        shape = None if isinstance(self._shape, Running) else self._shape
        if self._lateness or self._trigger is not None or self._emit != ("update" if shape is None else "append"):
            raise PlanError(
                "top sends the rows of a window once, when it closes",
                fix=Fix("top.options", "Leave lateness=, trigger= and emit= out"),
                where=user_line(),
            )
        return joins.top(self._stream, self._by, count, by=by, ascending=ascending, window=shape, name=name)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        inverse: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A function of two rows, folded over each key's rows of a window.

        Where windows overlap or merge it must be associative. `inverse(whole, part)` undoes it: with it, windows that overlap cost
        what changed since the last one.
        """
        folded = at_line(lambda: ReduceFunction.of(function, visible(self._stream.schema)))
        name = need_name(name, "reduce", function, self._by)
        if not isinstance(self._shape, Tumbling) or self._shape.clock != "event" or self._lateness or self._emit != "append":
            undo = None if inverse is None else at_line(lambda: ReduceFunction.of(inverse, visible(self._stream.schema)))
            return self._reduce_any(folded, undo, name)
        return self._stream._then(
            keyed.WindowReduce(
                where=user_line(),
                input=self._stream._node,
                by=self._by,
                name=name,
                window=self._shape,
                function=folded,
                on_error=self._stream._on_error,
            )
        )

    def _reduce_any(self, folded: ReduceFunction, undo: ReduceFunction | None, name: str) -> Stream:
        """The same as an aggregate of whole rows, for any window: the folded row is then taken apart."""
        fold = FoldRows(folded) if undo is None else InvertibleFold(folded, undo)
        row = at_line(lambda: fold(struct(*(col(column) for column in folded.schema.names))).alias("folded.row"))
        rows = self.aggregate(row, name=name)
        there = [column for column in rows.schema.names if column != "folded.row"]
        rest = {column: col("folded.row")[column] for column in folded.schema.names if column not in there}
        return type(rows)(rows._pipeline, rows.select(*there, **rest)._node, late_of=rows._node)


# --- shapes
# ----------------------------------------------------------------------------------------------------------------------------------


def tumbling(
    size: Any = None, *, rows: int | None = None, offset: Any = "0s", timezone: str | None = None, clock: str = "event"
) -> Any:
    """Windows of one size, side by side: `tumbling("10s")`, `tumbling("1d", timezone="Europe/Berlin")`, `tumbling(rows=100)`."""
    return at_line(lambda: windows.tumbling(size, rows=rows, offset=offset, timezone=timezone, clock=clock))


def sliding(
    size: Any = None,
    *,
    every: Any,
    rows: int | None = None,
    offset: Any = "0s",
    timezone: str | None = None,
    clock: str = "event",
) -> Any:
    """Windows that overlap: `sliding("1h", every="1m")`; the last 100 rows of a key at every tenth: `sliding(rows=100, every=10)`."""
    return at_line(lambda: windows.sliding(size, every=every, rows=rows, offset=offset, timezone=timezone, clock=clock))


def session(gap: Any, *, clock: str = "event") -> Session:
    """Windows that end when a key is silent for the length of the gap: `session("30m")`."""
    return at_line(lambda: windows.session(gap, clock=clock))


def running() -> Running:
    """The window that never closes."""
    return Running()
