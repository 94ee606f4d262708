"""The user's own keyed logic: a process function over one keyed stream, over two, or over one with something that is broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import Fix
from penstock.eventtime import NEEDS_TIME
from penstock.expr.listed import VALUES, tables_of
from penstock.plan.joins import BUCKET, NUMBER
from penstock.plan.keyed import Keyed, Late, StateLayout
from penstock.plan.logical import ALL_COLUMN, Node, Used, check_column_name
from penstock.processing.function import Spec
from penstock.processing.initial import Initial
from penstock.processing.states import VALUE, State
from penstock.schema import type_name
from penstock.state.keygroups import canonical_type

TIMER = "__timer"
DRAWS, ROWS, BUCKETS, DUE = "random-draws", "order-rows", "order-buckets", "order-due"
CLOCK = "processing-due"
"""Names with a hyphen: no state that a user declares can have one."""
ORDERS = ("event-time",)
SIDE = "side:"

_INT = pa.int64()


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Keyed):
    """A process function.

    State: a table per declared state (and two for its lists if they may be long), timers by clock, how often each key drew random
    numbers, and, with an order, rows that wait.
    """

    main: Node
    by: tuple[str, ...]
    other: Node | None = None
    other_by: tuple[str, ...] = ()  # none: it is broadcast
    spec: Spec
    order: str | None = None
    emits: str = "append"  # how rows it sends relate to earlier ones
    initial: Mapping[str, Initial] = field(default_factory=dict)
    wakes: tuple[str, str] | None = None  # the clock and name of a timer that keys with initial values start with
    kind = "process"
    verb = "process"

    def __post_init__(self) -> None:
        for node in self.inputs:
            if node.changes != "append":
                raise self.error(
                    "a process function cannot take a row back, and rows of this stream replace or withdraw earlier ones",
                    fix=Fix("process.of-changes", "Make rows of the changes, before key_by. Write: .as_rows()"),
                )
        self.check_keys(self.main, self.by)
        if self.other is not None and self.other_by:
            self._check_other(self.other)
        if self.order is not None and self.order not in ORDERS:
            raise self.error(
                f"order={self.order!r} is not known",
                fix=Fix("process.order", f"Leave it out, or go by event time. Write: order={ORDERS[0]!r}"),
            )
        if self.order is not None and not self.main.timed:
            raise self.error('order="event-time" needs event time', fix=NEEDS_TIME)
        if self.order is not None and self.spec.by_batch:
            raise self.error('order="event-time" takes rows one by one, so it needs on_row instead of on_batch')
        for name, state in self.spec.states.items():
            if state.ttl is not None and state.clock == "event" and not self.main.timed:
                raise self.error(
                    f"state {name!r} has a ttl by event time, and this stream has none",
                    fix=Fix("state.ttl-time", f'Go by the time of day, clock="processing", or: {NEEDS_TIME.text}'),
                )
        for output in (self.spec.schema, *(each.schema for each in self.spec.outputs.values())):
            for name in output.names:
                check_column_name(name, self)
        keys = self.by if self.emits == "update" else ()
        self._set(schema=self.spec.schema, timed=self.main.timed, changes=self.emits, keys=keys, signed=self.emits == "update")

    def _check_other(self, other: Node) -> None:
        self.check_keys(other, self.other_by)
        ours, theirs = ([canonical_type(n.schema.field(k).type) for k in by] for n, by in self.sides)
        if ours != theirs:
            raise self.error(
                f"the streams have different keys: {', '.join(map(type_name, ours))} and {', '.join(map(type_name, theirs))}",
                fix=Fix("connect.keys", "Key both by columns of the same types"),
            )
        if self.main.timed != other.timed:
            raise self.error(
                "one of the streams has event time and the other has none",
                fix=Fix("connect.time", 'Give it to both, or to none. Write: .with_watermark("at", delay="5s")'),
            )

    @property
    def sides(self) -> tuple[tuple[Node, tuple[str, ...]], ...]:
        return ((self.main, self.by), *(((self.other, self.other_by),) if self.other is not None else ()))

    @property
    def by_fields(self) -> list[pa.Field]:
        """The key columns."""
        return [self.main.schema.field(key) for key in self.by]

    def columns(self, input: int) -> tuple[str, ...]:
        """The columns the function gets of an input."""
        return self.spec.callbacks[input].columns

    def needs(self, used: Used) -> list[set[str]]:
        late = (used["late"], used["late_right"])
        return [{*by, *self.columns(i), *late[i]} for i, (_, by) in enumerate(self.sides)]

    def output(self, port: str) -> Node:
        if port.startswith(SIDE):
            return Side(step=self, made=self.spec.outputs[port.removeprefix(SIDE)].schema)
        if port == "late_right":
            assert self.other is not None
            return Late(input=self.other, made=self.other.schema)
        return Late(input=self.main, made=self.main.schema) if port == "late" else self

    def states(self) -> Sequence[StateLayout]:
        layouts = [self._layout(DRAWS, (), [pa.field("value", _INT, nullable=False)])]
        for name, state in self.spec.states.items():
            growth: dict[str, Any] = {"grows": "fields", "defaults": state.defaults}
            layouts.append(self._layout(name, (), state.columns(), expires=state.expires, **growth))
            layouts += self._apart(name, state)
        for name, broadcast in self.spec.broadcasts.items():
            key = pa.field("key", canonical_type(broadcast.key_field.type))
            keys, values = pa.schema([key]), pa.schema([broadcast.value_field])
            layouts.append(StateLayout(name, keys, values, 1, broadcast=True, grows="fields", defaults=broadcast.defaults))
        timer = [pa.field(TIMER, pa.string())]
        if not self.spec.timers:
            layouts.append(self._layout(CLOCK, timer, None))  # holds none, but knows how far the clock was
        else:
            values = [pa.field("due", _INT, nullable=False), pa.field("at", _INT, nullable=False), pa.field("time", _INT)]
            for clock in ("event", "processing") if self.main.timed else ("processing",):
                layouts += [self._layout(f"{clock}-timers", timer, values), self._layout(f"{clock}-due", timer, None)]
        if self.order is not None:
            layouts += self._order_states()
        return layouts

    def _apart(self, name: str, state: State) -> list[StateLayout]:
        """Where lists of a state stand that are too long for its rows."""
        if state.listed is None:
            return []
        (sizes, *size), (chunks, *chunk) = tables_of(name, state.listed)
        growth: dict[str, Any] = {"grows": "fields", "defaults": lambda: {VALUES: state.defaults()[VALUE]}}
        return [self._layout(sizes, *size), self._layout(chunks, *chunk, **growth)]

    def _order_states(self) -> list[StateLayout]:
        bucket, number = pa.field(BUCKET, _INT), pa.field(NUMBER, _INT)
        waiting = [pa.field("input", pa.int8(), nullable=False)]
        for i, (node, by) in enumerate(self.sides):
            if by:
                waiting += [pa.field(f"{i}.{name}", node.schema.field(name).type) for name in self.columns(i)]
        return [
            self._layout(BUCKETS, [bucket], [pa.field("__rows", _INT, nullable=False)]),
            self._layout(ROWS, [bucket, number], waiting),
            self._layout(DUE, [bucket], None),
        ]

    def _layout(
        self, name: str, more: Sequence[pa.Field], values: Sequence[pa.Field] | None, *, expires: str | None = None, **growth: Any
    ) -> StateLayout:
        keys = [pa.field(f.name, canonical_type(f.type)) for f in self.by_fields]
        schema = None if values is None else pa.schema(list(values))
        return StateLayout(name, pa.schema([*keys, *more]), schema, len(keys), expires=expires, **growth)

    def params(self) -> dict[str, Any] | None:
        keeps = {name: state.keeps for name, state in self.spec.states.items() if state.keeps}
        return {**({"order": self.order} if self.order else {}), **({"keeps": keeps} if keeps else {})} or None

    def text(self) -> str:
        keys = "all rows" if self.by == (ALL_COLUMN,) else f"key_by {', '.join(self.by)}"
        other = "" if self.other is None else f" and key_by {', '.join(self.other_by)}" if self.other_by else " with broadcast"
        order = "" if self.order is None else f" order={self.order}"
        return f"{keys}{other} process {self.spec.name} name={self.name}{order}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Side(Node):
    """The rows of a side output."""

    step: Process
    made: pa.Schema

    def __post_init__(self) -> None:
        self._set(schema=self.made, timed=self.step.timed)
