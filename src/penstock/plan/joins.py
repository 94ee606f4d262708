"""Two streams, row by row: joins over windows, within bounds of time, as of a time, and of what changes for ever.

All joins have in common:

1. Rows meet where their keys (`on`) are equal. Keys have equal canonical types on both sides; a null equals nothing, as in SQL.
2. The result has the left side's columns, then the right side's without its key; a name that is on both sides gets a suffix. In a
   row that has no left side the key is the right side's.
3. `how` says what becomes of rows without a match: "inner" (left out), "left", "right", "full" (sent with nulls in place of the
   other side), "semi" (left rows with a match, once, without the right side), "anti" (left rows without one).
4. Only columns that somebody uses are kept in state. Which those are is known once the plan is made (`needs` notes it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from penstock.errors import Fix
from penstock.eventtime import NEEDS_TIME, duration_text
from penstock.plan.keyed import TIME_BOUNDS, WINDOW_COLUMN, Keyed, Late, StateLayout, free_bounds
from penstock.plan.logical import Node, Used, casting, check_column_name, unique_schema
from penstock.plan.replaced import of_updates
from penstock.schema import type_name
from penstock.state.keygroups import canonical_type
from penstock.windows import Shape, Sliding, Tumbling

BUCKET, NUMBER, SIDE = "__bucket", "__n", "__side"
SIDES = ("left", "right")
LATE_PORTS = ("late", "late_right")
BOUND_MAX = 400_000 * 86_400_000_000
"""A bound of a thousand years is a mistake, and sums of times must stay within 64 bits."""

_INT = pa.int64()


@dataclass(frozen=True, eq=False, kw_only=True)
class Joining(Keyed):
    """Base of the joins of two streams."""

    left: Node
    right: Node
    on: tuple[tuple[str, str], ...]  # (column of the left side, column of the right side)
    how: str = "inner"
    suffix: str = "_right"
    kept: tuple[tuple[str, ...], tuple[str, ...]] = field(init=False)  # besides the key, in state: of each side

    hows: ClassVar[tuple[str, ...]] = ("inner", "left", "right", "full", "semi", "anti")
    verb = "join"

    def __post_init__(self) -> None:
        if self.how not in self.hows:
            raise self.error(
                f"how={self.how!r} is not known here",
                fix=Fix("join.how", f"Write: {', or '.join(f'how={how!r}' for how in self.hows)}"),
            )
        self._check_kinds()
        self._check_on()
        self._set(schema=self._result_schema(), timed=self.left.timed and self.right.timed)
        self._keep(set(self.left.schema.names), set(self.right.schema.names))

    # -- checks

    def _check_kinds(self) -> None:
        for side, node in zip(SIDES, self.inputs):
            if node.changes == "update":
                fix = of_updates(node, "a join", takes_back=False)
                if fix.id == "keyed.of-running":
                    fix = Fix(
                        "join.of-updates",
                        'Let the step before withdraw what it replaces, .window(pen.running(), emit="retract").aggregate(…), and join'
                        ' for ever. Write: within="forever"',
                    )
                raise self.error(f"rows of the {side} side replace earlier ones, so this join would match both", fix=fix)
            self._check_kind(side, node)

    def _check_kind(self, side: str, node: Node) -> None:
        if node.changes == "retract":
            raise self.error(
                f"rows of the {side} side can be withdrawn, and this join sends what it finds once and for all",
                fix=Fix("join.of-retractions", 'Write: within="forever"'),
            )

    def _need_time(self, what: str) -> None:
        for side, node in zip(SIDES, (self.left, self.right)):
            if not node.timed:
                raise self.error(f"{what} needs event time, and the {side} side has none", fix=NEEDS_TIME)

    def _check_on(self) -> None:
        for node, names in ((self.left, self.left_keys), (self.right, self.right_keys)):
            self.check_keys(node, names)
        for left, right in self.on:
            ours, theirs = self.left.schema.field(left).type, self.right.schema.field(right).type
            if canonical_type(ours) != canonical_type(theirs):
                raise self.error(
                    f"{left!r} is {type_name(ours)} on the left side and {right!r} is {type_name(theirs)} on the right: no row would"
                    " match",
                    fix=Fix("join.types", f"On the right side, cast it first. Write: {casting(right, ours)}"),
                )
        for names in (self.left_keys, self.right_keys):
            if len(set(names)) < len(names):
                raise self.error(f"on= names a column twice: {', '.join(names)}")

    # -- columns

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The key on the left side; the result calls it by these names."""
        return tuple(left for left, _ in self.on)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The key on the right side."""
        return tuple(right for _, right in self.on)

    @property
    def sides(self) -> tuple[tuple[Node, tuple[str, ...]], ...]:
        return ((self.left, self.left_keys), (self.right, self.right_keys))

    @property
    def named(self) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """By side: (column of the result, column of the side), without the key."""
        ours = tuple((name, name) for name in self.left.schema.names if name not in self.left_keys)
        if self.how in ("semi", "anti"):
            return ours, ()
        taken = {*self.left.schema.names, *(f.name for f in self._more_fields())}
        rest = [name for name in self.right.schema.names if name not in self.right_keys]
        return ours, tuple((name + self.suffix if name in taken else name, name) for name in rest)

    def _result_schema(self) -> pa.Schema:
        left_missing, right_missing = self.how in ("right", "full"), self.how in ("left", "full")
        keys = {}
        for left, right in self.on:
            ours, theirs = self.left.schema.field(left), self.right.schema.field(right)
            same = ours.type == theirs.type or not left_missing
            nullable = ours.nullable or (left_missing and theirs.nullable)
            keys[left] = pa.field(left, ours.type if same else canonical_type(ours.type), nullable)
        fields = [keys.get(f.name) or pa.field(f.name, f.type, f.nullable or left_missing) for f in self.left.schema]
        for name, column in self.named[1]:
            check_column_name(name, self)
            f = self.right.schema.field(column)
            fields.append(pa.field(name, f.type, f.nullable or right_missing))
        return unique_schema([*fields, *self._more_fields()], self)

    def _more_fields(self) -> Sequence[pa.Field]:
        return ()

    def needs(self, used: Used) -> list[set[str]]:
        ours, theirs = ({column for name, column in side if name in used["main"]} for side in self.named)
        self._keep(ours, theirs)
        return [ours | set(self.left_keys) | used["late"], theirs | set(self.right_keys) | used["late_right"]]

    def _keep(self, ours: set[str], theirs: set[str]) -> None:
        wanted = zip(self.named, (ours, theirs))
        self._set(kept=tuple(tuple(column for _, column in side if column in used) for side, used in wanted))

    def output(self, port: str) -> Node:
        if port not in LATE_PORTS:
            return self
        input = self.inputs[LATE_PORTS.index(port)]
        return Late(input=input, made=input.schema)

    # -- state

    @property
    def state_keys(self) -> list[pa.Field]:
        """The key columns as state knows them."""
        return [pa.field(name, canonical_type(self.left.schema.field(name).type)) for name in self.left_keys]

    def _layout(
        self, name: str, more: Sequence[pa.Field], values: Sequence[pa.Field] | None, *, expires: str | None = None
    ) -> StateLayout:
        keys, held = self.state_keys, None if values is None else pa.schema(list(values))
        return StateLayout(name, pa.schema([*keys, *more]), held, len(keys), expires)

    def row_fields(self, side: int) -> list[pa.Field]:
        """A row of one side in state, named apart from the key; and its event time."""
        schema = self.inputs[side].schema
        return [*(pa.field(f"row.{name}", schema.field(name).type) for name in self.kept[side]), pa.field("__time", _INT)]

    def _buffer(self, side: int, *more: pa.Field) -> list[StateLayout]:
        """Rows of one side by key and bucket: how many there are, and each by its number."""
        bucket, number = pa.field(BUCKET, _INT), pa.field(NUMBER, _INT)
        return [
            self._layout(f"{SIDES[side]}_buckets", [bucket], [pa.field("__rows", _INT, nullable=False)]),
            self._layout(f"{SIDES[side]}_rows", [bucket, number], [*self.row_fields(side), *more]),
        ]

    def params(self) -> dict[str, Any] | None:
        return {"join": self.kind, "how": self.how, "on": [list(pair) for pair in self.on], **self._more_params()}

    def _more_params(self) -> dict[str, Any]:
        return {}

    def text(self) -> str:
        on = ", ".join(left if left == right else f"{left}={right}" for left, right in self.on)
        return f"join on {on}{self._how_text()} {self.how} name={self.name}"

    def _how_text(self) -> str:
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class IntervalJoin(Joining):
    """Rows whose times lie within bounds of each other: lower <= right's time - left's time <= upper."""

    lower: int
    upper: int
    kind = "interval_join"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need_time("a join within bounds of time")
        if self.lower > self.upper:
            low, high = duration_text(self.lower), duration_text(self.upper)
            raise self.error(
                f'within=("{low}", "{high}") holds no time',
                fix=Fix("join.order-of-bounds", f'The lower bound comes first. Write: within=("{high}", "{low}")'),
            )
        if max(abs(self.lower), abs(self.upper)) > BOUND_MAX:
            raise self.error(
                "a bound of within= is longer than a thousand years",
                fix=Fix("join.longest", 'Keep rows for ever. Write: within="forever"'),
            )

    def states(self) -> Sequence[StateLayout]:
        layouts = []
        number = [pa.field(BUCKET, _INT), pa.field(NUMBER, _INT)]
        for side in (0, 1):
            flagged = self.how in (SIDES[side], "full")
            layouts += self._buffer(side, *([pa.field("__open", pa.bool_(), nullable=False)] if flagged else []))
            if flagged:
                layouts.append(self._layout(f"{SIDES[side]}_matched", number, []))
        return [*layouts, self._layout("timers", [pa.field(SIDE, _INT), *number], None)]

    def _more_params(self) -> dict[str, Any]:
        return {"lower": self.lower, "upper": self.upper}

    def _how_text(self) -> str:
        return f" within {duration_text(self.lower)}..{duration_text(self.upper)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJoin(Joining):
    """Rows that lie in the same window, sent when it closes."""

    window: Shape
    kind = "window_join"

    def __post_init__(self) -> None:
        if not isinstance(self.window, Tumbling | Sliding) or self.window.clock != "event":
            raise self.error(
                f"a join over {self.window.text()} is not there: both sides must agree where windows begin and end",
                fix=Fix(
                    "join.window",
                    'Write: window=pen.tumbling("1m"), or window=pen.sliding("1h", every="1m"), or within=("-5m", "30m")',
                ),
            )
        super().__post_init__()
        self._need_time(self.window.text())

    @property
    def bounds(self) -> tuple[pa.Field, ...]:
        """The columns that say which window a result is of."""
        return free_bounds(TIME_BOUNDS, self.left.schema.names)

    def _more_fields(self) -> Sequence[pa.Field]:
        return self.bounds

    def states(self) -> Sequence[StateLayout]:
        return [*self._buffer(0), *self._buffer(1), self._layout("timers", [pa.field(WINDOW_COLUMN, _INT)], None)]

    def _more_params(self) -> dict[str, Any]:
        return self.window.params()

    def _how_text(self) -> str:
        return f" window {self.window.text()}"


@dataclass(frozen=True, eq=False, kw_only=True)
class AsofJoin(Joining):
    """Each left row with the last right row at or before its time."""

    tolerance: int | None  # how old that may be; None: any age
    kind = "asof_join"
    hows = ("left", "inner")
    verb = "join_asof"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need_time("join_asof")
        if self.tolerance is not None and not 0 <= self.tolerance <= BOUND_MAX:
            raise self.error(
                f'tolerance="{duration_text(self.tolerance)}" is no age', fix=Fix("join.tolerance", 'Write: tolerance="5s"')
            )

    def states(self) -> Sequence[StateLayout]:
        timers = self._layout("timers", [pa.field(SIDE, _INT), pa.field(BUCKET, _INT)], None)
        return [*self._buffer(0), *self._buffer(1), self._layout("versions", (), self.row_fields(1)), timers]

    def _more_params(self) -> dict[str, Any]:
        return {"tolerance": self.tolerance}

    def _how_text(self) -> str:
        return " as of" + ("" if self.tolerance is None else f" within {duration_text(self.tolerance)}")


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeverJoin(Joining):
    """Rows with equal keys, whenever they come; where rows are withdrawn, so is what they were part of."""

    kind = "forever_join"
    hows = ("inner", "left", "right", "full")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how != "inner" or "retract" in (self.left.changes, self.right.changes):
            self._set(changes="retract", signed=True)
        self._set(retimed=self.left.retimed or self.right.retimed)

    def _check_kind(self, side: str, node: Node) -> None:
        pass

    def states(self) -> Sequence[StateLayout]:
        return [*self._buffer(0), *self._buffer(1)]

    def _how_text(self) -> str:
        return " forever"


HAS_LATE_RIGHT = IntervalJoin | WindowJoin | AsofJoin
"""The joins that set rows aside which came too late: of both sides."""
