"""The fixes of process functions and their states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from fixes.streams import Streams, applied
from penstock.api.stream import Stream


@dataclass
class Line:
    user: str


@dataclass
class Alert:
    user: str


class Echo(pen.ProcessFunction):
    def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Line]:
        yield row


class OnBatch(pen.ProcessFunction):
    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        return batch


def process(function: Any, **options: Any) -> Stream:
    return Streams().left.key_by("user").process(function, name="p", **options)


def both(function: pen.ProcessFunction, *, broadcast: bool) -> Stream:
    s = Streams()
    other: Any = s.right.broadcast() if broadcast else s.right.key_by("user")
    return s.left.key_by("user").connect(other).process(function, name="p")


def test_batches_have_columns_that_are_said() -> None:
    (code,) = code_of(shown("process.on_batch", lambda: process(OnBatch())))
    assert applied(Streams().left.key_by("user"), code, OnBatch=OnBatch).schema.names == ["user", "n"]


def test_a_class_becomes_an_object() -> None:
    (code,) = code_of(shown("process.class", lambda: process(Echo)))
    applied(Streams().left.key_by("user"), code, Echo=Echo)


def test_a_function_becomes_a_class_or_is_mapped() -> None:
    def echo(row: Line) -> Line:
        return row

    text = shown("process.kind", lambda: process(echo))
    assert "class MyProcess(pen.ProcessFunction)" in text
    process(Echo())
    Streams().left.map(echo)


def test_rows_go_to_one_callback() -> None:
    class Both(Echo, OnBatch):
        pass

    assert shown("process.both", lambda: process(Both())) == "Remove one of them"
    process(Echo())
    process(OnBatch(), schema="user string")


def test_a_callback_that_is_missing_is_defined() -> None:
    class Empty(pen.ProcessFunction):
        pass

    text = shown("process.callback", lambda: process(Empty()))
    scope: dict[str, Any] = {}
    exec(f"{text.partition(': ')[2]}: return None", scope)
    Empty.on_row = scope["on_row"]  # type: ignore[attr-defined]
    process(Empty())


class LeftRight(pen.ProcessFunction):
    def on_left(self, row: Line, ctx: pen.Context) -> None: ...

    def on_right(self, row: Line, ctx: pen.Context) -> None: ...


class Ruled(pen.ProcessFunction):
    rules = pen.BroadcastState(str, str)

    def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Line]:
        yield row

    def on_broadcast(self, row: Line, ctx: pen.Context) -> None:
        self.rules.set(row.user, row.user)


def test_a_callback_that_nothing_calls_gets_its_input() -> None:
    class All(Echo, LeftRight):
        pass

    class AllBatch(OnBatch, LeftRight):
        pass

    text = shown("process.unused", lambda: both(All(), broadcast=False))
    assert "write on_left and on_right" in text
    both(LeftRight(), broadcast=False)
    assert "write on_left and on_right" in shown("process.unused", lambda: both(AllBatch(), broadcast=False))
    assert ".connect(b.broadcast())" in shown("process.unused", lambda: process(Ruled()))
    both(Ruled(), broadcast=True)


def test_each_side_that_is_missing_is_connected() -> None:
    class OneMore(Echo):
        def on_left(self, row: Line, ctx: pen.Context) -> None: ...

    text = shown("process.unused", lambda: process(OneMore()))
    assert 'a.key_by("k").connect(b.key_by("k")).process(…)' in text
    both(LeftRight(), broadcast=False)


@pytest.mark.parametrize(("name", "id"), [("_hidden", "state.private"), ("_", "state.private"), ("open", "state.method")])
def test_a_state_has_a_name_of_its_own(name: str, id: str) -> None:
    def named(name: str) -> Any:
        return type("Named", (Echo,), {name: pen.ValueState(int)})()

    if id == "state.private":
        text = shown("state.private", lambda: process(named(name)))
    else:
        text = shown("state.method", lambda: process(named(name)))
    process(named(text.rpartition(" ")[2]))


def test_what_is_broadcast_is_kept_and_sent_by_the_other_callback() -> None:
    class Loud(Ruled):
        def on_broadcast(self, row: Line, ctx: pen.Context) -> Iterator[Line]:  # type: ignore[override]
            yield row

    assert "a BroadcastState" in shown("process.on_broadcast", lambda: both(Loud(), broadcast=True))
    both(Ruled(), broadcast=True)


def test_a_callback_takes_a_row_and_a_context() -> None:
    class Short(pen.ProcessFunction):
        def on_row(self, row: Line) -> None: ...

    text = shown("process.arguments", lambda: process(Short()))
    scope: dict[str, Any] = {}
    exec(f"{text.partition(': ')[2]}: return None", scope)
    Short.on_row = scope["on_row"]  # type: ignore[method-assign]
    process(Short())


def test_classes_of_annotations_stand_at_the_top() -> None:
    class Unknown(pen.ProcessFunction):
        def on_row(self, row: Nowhere, ctx: pen.Context) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert "at the top level of a module" in shown("process.hints", lambda: process(Unknown()))
    process(Echo())


def test_what_a_callback_sends_is_said_in_two_ways() -> None:
    class Silent(pen.ProcessFunction):
        def on_row(self, row: Line, ctx: pen.Context):  # type: ignore[no-untyped-def]
            yield Alert(row.user)

    class Annotated(pen.ProcessFunction):
        def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Alert]:
            yield Alert(row.user)

    text = shown("process.sends", lambda: process(Silent()))
    assert "-> Iterator[Alert]" in text
    assert "schema=Alert" in text
    process(Annotated())
    process(Silent(), schema=Alert)


def test_different_rows_go_to_different_outputs() -> None:
    class Other(pen.ProcessFunction):
        def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Line]:
            yield row

        def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[Late]:
            yield Late(1)

    class Sides(pen.ProcessFunction):
        late = pen.Output(Late)
        tardy = pen.Output(Late)

        def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Line]:
            ctx.emit(Late(1), to=self.tardy)
            yield row

    assert "side outputs: pen.Output(…), ctx.emit(row, to=…)" in shown("process.rows", lambda: process(Other()))
    Sides.late = Sides.tardy
    process(Sides()).side("tardy")


@dataclass
class Late:
    n: int


# States.


def test_an_aggregate_starts_from_a_savepoint_and_a_value_from_a_table() -> None:
    def starting(state: Any) -> Stream:
        function = type("Starting", (Echo,), {"mine": state})()
        return process(function, initial={"mine": [{"user": "a", "value": 1}]})

    text = shown("initial.aggregating", lambda: starting(pen.AggregatingState(pen.col("value").sum(), int)))
    assert text.startswith("Use a ValueState")
    starting(pen.ValueState(int))


def test_keys_of_a_map_are_plain() -> None:
    for value in (int, list[Line], Line, int | None):
        (code,) = code_of(shown("map-state.key", lambda value=value: pen.MapState(list[str], value)))  # type: ignore[misc, call-overload]
        assert evaluate(code).fields() == pen.MapState(str, value).fields()  # type: ignore[call-overload]
    (code,) = code_of(shown("broadcast-state.key", lambda: pen.BroadcastState(str | None, float)))
    assert isinstance(evaluate(code), pen.BroadcastState)


def test_states_that_fold_get_what_folds() -> None:
    (code,) = code_of(shown("reducing-state.function", lambda: pen.ReducingState(3, int)))  # type: ignore[arg-type]
    assert isinstance(evaluate(code), pen.ReducingState)
    (code,) = code_of(shown("aggregating-state.aggregate", lambda: pen.AggregatingState("sum(value)", int)))  # type: ignore[arg-type]
    assert isinstance(evaluate(code), pen.AggregatingState)


def test_a_state_forgets_by_a_clock_and_after_a_time() -> None:
    clocks = argument(shown("state.clock", lambda: pen.ValueState(int, ttl="1h", clock="sun")))
    assert clocks == ["event", "processing"]
    for clock in clocks:
        pen.ValueState(int, ttl="1h", clock=clock)
    (ttl,) = argument(shown("state.ttl", lambda: pen.ValueState(int, clock="event")))
    pen.ValueState(int, ttl=ttl, clock="event")
    (ttl,) = argument(shown("state.ttl-positive", lambda: pen.ValueState(int, ttl="0s")))
    pen.ValueState(int, ttl=ttl)
