"""What is read off a process function before anything runs, and the texts of what is refused then."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import PlanError
from penstock.processing.function import read_spec, row_type
from processing.hands import Feed

INPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


@dataclass
class In:
    k: str | None
    n: int | None


@dataclass
class Out:
    k: str | None


@dataclass
class Other:
    k: str | None


class Base(pen.ProcessFunction):
    n = pen.ValueState(int)
    gone = pen.ValueState(int)

    def on_row(self, row: In, ctx: pen.Context) -> Iterator[Out]:
        yield Out(row.k)


class Derived(Base):
    gone = None  # type: ignore[assignment]
    side = pen.Output(Other)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Out | None:
        return None


def test_a_class_says_what_it_needs() -> None:
    spec = read_spec(Derived(), [INPUT], ["row"])
    assert list(spec.states) == ["n"]
    assert list(spec.outputs) == ["side"]
    assert (spec.schema.names, spec.timers, spec.by_batch, spec.name) == (["k"], True, False, "Derived")
    assert [callback.columns for callback in spec.callbacks] == [("k", "n")]


@pytest.mark.parametrize(
    ("returns", "row"),
    [(None, None), (Out, Out), (Out | None, Out), (Iterator[Out], Out), (list[Out], Out), (dict[str, int], dict[str, int])],
)
def test_annotations_say_what_a_row_is(returns: Any, row: Any) -> None:
    assert row_type(returns) == row


class NoRow(pen.ProcessFunction):
    pass


class Both(pen.ProcessFunction):
    def on_row(self, row: In, ctx: pen.Context) -> None: ...

    def on_batch(self, keys: Any, batch: Any, ctx: pen.Context) -> None: ...


class OneInput(pen.ProcessFunction):
    def on_row(self, row: In, ctx: pen.Context) -> None: ...


class TwoInputs(pen.ProcessFunction):
    def on_left(self, row: In, ctx: pen.Context) -> None: ...

    def on_right(self, row: In, ctx: pen.Context) -> None: ...


class Broadcast(OneInput):
    def on_broadcast(self, row: In, ctx: pen.Context) -> None: ...


class Loud(OneInput):
    def on_broadcast(self, row: In, ctx: pen.Context) -> Iterator[Out]:
        yield Out(row.k)


class ThreeArguments(pen.ProcessFunction):
    def on_row(self, row: In, key: str, ctx: pen.Context) -> None: ...


class Unsaid(pen.ProcessFunction):
    def on_row(self, row, ctx):  # type: ignore[no-untyped-def]
        yield row


class Disagree(pen.ProcessFunction):
    def on_row(self, row: In, ctx: pen.Context) -> Iterator[Out]:
        yield Out(row.k)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Other:
        return Other("")


class Vectorised(pen.ProcessFunction):
    def on_batch(self, keys: Any, batch: Any, ctx: pen.Context) -> Any: ...


class Hidden(OneInput):
    _n = pen.ValueState(int)


class Shadow(OneInput):
    close = pen.ValueState(int)  # type: ignore[assignment]


class Missing(pen.ProcessFunction):
    def on_row(self, row: Nowhere, ctx: pen.Context) -> None: ...  # type: ignore[name-defined] # noqa: F821


class Elsewhere(pen.ProcessFunction):
    def on_row(self, row: Elsewhere.Row, ctx: pen.Context) -> None: ...

    @dataclass
    class Row:
        z: int


ROW, TWO, CAST = ["row"], ["left", "right"], ["row", "broadcast"]


@pytest.mark.parametrize(
    ("function", "kinds", "text"),
    [
        (
            Derived,
            ROW,
            'process needs an object, and got the class Derived\n  Make one of it. Write: .process(Derived(), name="derived")',
        ),
        (len, ROW, "process needs a pen.ProcessFunction, and got <built-in function len>"),
        (
            NoRow(),
            ROW,
            "NoRow has no on_row, which takes the rows of this input\n  Define it in the class: def on_row(self, row, ctx)",
        ),
        (OneInput(), TWO, "OneInput has no on_left, which takes the rows of this input"),
        (OneInput(), CAST, "OneInput has no on_broadcast, which takes the rows of this input"),
        (Both(), ROW, "Both has both on_row and on_batch, and rows go to one of them\n  Remove one of them"),
        (TwoInputs(), ROW, "TwoInputs has no on_row"),
        (
            Broadcast(),
            ROW,
            "Broadcast has on_broadcast, and nothing would call it: this step calls on_row\n  It needs a broadcast",
        ),
        (
            Loud(),
            CAST,
            "Loud.on_broadcast runs on every task, so each would send its rows\n  Keep what it learns in a BroadcastState",
        ),
        (
            ThreeArguments(),
            ROW,
            "ThreeArguments.on_row takes 3 arguments, and is given a row and a context\n  Let it take both: def on_row(self, row, ctx)",
        ),
        (Unsaid(), ROW, "cannot tell what Unsaid.on_row sends\n  Annotate it, def on_row(self, …) -> Iterator[Alert]"),
        (
            Disagree(),
            ROW,
            "the callbacks of Disagree send different rows: Out, Other\n  Send one kind with yield, and others to side outputs",
        ),
        (
            Vectorised(),
            ROW,
            "Vectorised.on_batch gives batches, and nobody says of which columns\n  Say them. Write: .process(Vectorised(), schema=",
        ),
        (Hidden(), ROW, "a state cannot be called '_n': names that start with _ are private\n  Choose another name, such as n"),
        (Shadow(), ROW, "a state cannot be called 'close': that is a method of process functions"),
        (
            Missing(),
            ROW,
            "cannot read the annotations of Missing.on_row: name 'Nowhere' is not defined\n  Define the classes they mention",
        ),
        (Elsewhere(), ROW, "there is no column 'z'"),
    ],
)
def test_a_class_that_cannot_work_is_refused(function: Any, kinds: list[str], text: str) -> None:
    with pytest.raises(PlanError) as raised:
        read_spec(function, [INPUT] * len(kinds), kinds)
    assert text in str(raised.value)


def stream(timed: bool = True) -> pen.Stream:
    made = pen.Pipeline("p").read(sources.memory([], schema="k string, n bigint, at timestamp", name="rows"))
    return made.with_watermark("at", delay="1s") if timed else made


class EventTtl(OneInput):
    n = pen.ValueState(int, ttl="1m", clock="event")


Plan = Callable[[], Any]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: stream().key_by("k").process(OneInput()), "name="),
        (
            lambda: stream(False).key_by("k").process(OneInput(), name="x", order="event-time"),
            'order="event-time" needs event time',
        ),
        (
            lambda: stream().key_by("k").process(OneInput(), name="x", order="time"),
            "order='time' is not known\n  Leave it out, or go by event time. Write: order='event-time'",
        ),
        (
            lambda: stream().key_by("k").process(Vectorised(), name="x", schema="a int", order="event-time"),
            'order="event-time" takes rows one by one, so it needs on_row instead of on_batch',
        ),
        (
            lambda: stream(False).key_by("k").process(EventTtl(), name="x"),
            "state 'n' has a ttl by event time, and this stream has none",
        ),
        (lambda: stream().key_by("k").connect(stream()), "connect needs a stream by key or one that is broadcast"),
        (
            lambda: stream().key_by("k").connect(stream().key_by("n")).process(TwoInputs(), name="x"),
            "the streams have different keys: string and bigint\n  Key both by columns of the same types",
        ),
        (
            lambda: stream().key_by("k").connect(stream(False).key_by("k")).process(TwoInputs(), name="x"),
            "one of the streams has event time and the other has none",
        ),
        (
            lambda: stream().key_by("k").aggregate(n=pen.count(), name="n").key_by("k").process(OneInput(), name="x"),
            "a process function cannot take a row back",
        ),
        (
            lambda: stream().key_by("k").process(OneInput(), name="x").side("odd"),
            "this step has no side output 'odd'; it has none\n  Declare it",
        ),
        (lambda: stream().key_by("k").process(OneInput(), name="x").late, "only the result of a window has late rows"),
        (
            lambda: stream().key_by("k").process(OneInput(), name="x", initial={"n": []}),
            "initial= names a state 'n', and OneInput declares none",
        ),
    ],
)
def test_a_step_that_cannot_work_is_refused(build: Plan, text: str) -> None:
    with pytest.raises(PlanError) as raised:
        build()
    assert text in str(raised.value)


MODULE = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
import penstock as pen

@dataclass
class Seen:
    k: str | None
    at: datetime

class Last(NamedTuple):
    at: datetime

class Told(pen.ProcessFunction):
    last = pen.ValueState(Last)
    all = pen.ListState(Seen)
    rules = pen.BroadcastState(str, Last)
    side = pen.Output(Seen)

    def on_row(self, row: Seen, ctx: pen.Context) -> Seen:
        self.last.set(Last(row.at))
        self.all.append(row)
        ctx.emit(self.all.get()[0], to=self.side)
        return Seen(row.k, self.last.get().at)

    def on_broadcast(self, row: Seen, ctx: pen.Context) -> None:
        self.rules.set("x", Last(row.at))
"""


def test_a_worker_need_not_know_what_annotations_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("told")
    monkeypatch.setitem(sys.modules, "told", module)
    exec(MODULE, module.__dict__)
    feed = Feed(module.Told(), second="broadcast")
    del module.datetime  # as where a class came by value, without its module
    feed.restore(2).rows(("a", 1, 7), to="right").rows(("a", 1, 5))
    assert [row[0] for row in feed.sent() + feed.sent("side")] == ["a", "a"]
    assert feed.dead() == []


def test_a_step_is_explained() -> None:
    p = pen.Pipeline("p")
    rows = p.read(sources.memory([], schema="k string, n bigint, at timestamp", name="rows")).with_watermark("at", delay="1s")
    out = rows.key_by("k").process(Derived(), name="mine", order="event-time")
    out.write(sinks.memory("explained"))
    assert "key_by k process Derived name=mine order=event-time" in p.explain()
