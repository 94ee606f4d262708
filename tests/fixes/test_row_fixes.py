"""The fixes of errors of single rows: what a function is given, what it says, and what it asks of its state and timers.

Such an error ends the job, and what to do is its second line; or the row is a dead letter, whose error has the same two lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from penstock import sinks, sources
from penstock.functions import RowFunction
from penstock.operators.function import BatchMap, RowMap
from penstock.operators.lookup import TableSource
from penstock.operators.operator import SET_ASIDE, TIME_COLUMN, Errors
from penstock.plan.logical import DEAD_SCHEMA
from processing.hands import Feed

Step = pen.ProcessFunction | Callable[[Any], pen.Stream]


def fed(step: Step, *rows: tuple[str, int | None, int], **options: Any) -> list[Any]:
    """What a step sends of rows (k, n, at), the first alone; the error of a row is raised."""
    return Feed(step, on_error="fail", **options).tick(1).rows(*rows or (("a", 1, 0),)).tick(10).end().sent()


def test_what_to_do_is_the_second_line_of_a_job_that_ends_and_of_a_dead_letter() -> None:
    def double(n: int) -> int:
        return 2 * n

    rows = sources.memory([{"n": None}], schema="n bigint")
    what = "Annotate it so, or filter first. Write: int | None"
    with pytest.raises(pen.JobError) as caught:
        pen.Pipeline("p").read(rows).map(double).write(sinks.memory("no")).run(pen.Local(restarts=0))
    first, second, third, *_ = str(caught.value).splitlines()
    assert "cannot process a row of source 'memory', split '0': RowError: n: null, and double takes none (by " in first
    assert first.endswith("The row: {'n': None}")
    assert (second, third) == (f"  {what}", f"  {SET_ASIDE.text}")

    p, letters = pen.Pipeline("p", on_error="dead-letter"), sinks.memory("row-fixes")
    p.read(rows).map(double).write(sinks.memory("no"))
    p.dead_letters.write(letters)
    p.run(pen.Local(restarts=0))
    (error,) = [row["error"] for row in letters.rows()]
    assert error.startswith("RowError: n: null, and double takes none (by ")
    assert error.endswith(f")\n  {what}")


# --- null


def first(text: str) -> str:
    """The fix without what may be done with any row."""
    assert text.endswith(f"\n  {SET_ASIDE.text}")
    return text.splitlines()[0]


def read(function: Any) -> list[Any]:
    """What a function of a row gives, in a job; the error of a row is raised as tasks raise it."""
    return fed(lambda keyed: counted(keyed, n="max(n)").map(function), ("a", None, 0))


def counted(keyed: Any, **aggregates: Any) -> pen.Stream:
    return keyed.window(pen.tumbling("1m")).aggregate(**aggregates, name="it").select("n")  # type: ignore[no-any-return]


@dataclass
class Line:
    n: int


def test_a_function_that_may_get_null_says_so() -> None:
    def length(n: int) -> str:
        return f"{n}"

    (code,) = code_of(first(shown("function.null", lambda: read(length))))
    length.__annotations__["n"] = evaluate(code)
    assert read(length) == ["None"]


def test_a_list_that_may_be_null_is_named_with_what_is_in_it() -> None:
    def count(ns: list[int]) -> int:
        return len(ns)

    def job(function: Any) -> Any:
        rows = sources.memory([{"ns": None}], schema="ns array<bigint>")
        pen.Pipeline("p").read(rows).map(function).write(sinks.memory("lists")).run(pen.Local(restarts=0))

    with pytest.raises(pen.JobError, match=r"\n  Annotate it so, or filter first\. Write: list\[int\] \| None\n"):
        job(count)


def test_a_field_that_may_be_null_says_so() -> None:
    def text(line: Line) -> str:
        return f"{line.n}"

    (code,) = code_of(first(shown("function.null-field", lambda: read(text))))
    name, _, annotation = code.partition(": ")

    @dataclass
    class Better:
        n: Any

    Better.__annotations__[name] = evaluate(annotation)

    def better(line) -> str:  # type: ignore[no-untyped-def]
        return f"{line.n}"

    better.__annotations__["line"] = Better
    assert read(better) == ["None"]


class Sets(pen.ProcessFunction):
    kept = pen.ValueState(int)

    def __init__(self, value: Any) -> None:
        self.value = value

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        self.kept.set(self.value)
        return f"{self.kept.get()}"


def test_a_state_that_may_be_none_says_so() -> None:
    class OrNone(Sets):
        kept = pen.ValueState(int | None)

    assert first(shown("value.none", lambda: fed(Sets(None)))) == "To allow it, declare it as T | None"
    assert fed(OrNone(None)) == ["None"]


def test_a_time_has_a_zone() -> None:
    class Times(Sets):
        kept = pen.ValueState(datetime)

    def at(time: Any) -> Any:
        return sources.memory([{"at": time}], schema="at timestamp")

    naive = datetime(2026, 1, 31)
    for text in (shown("value.zone", lambda: fed(Times(naive))), shown("value.zone", lambda: at(naive))):
        for code in code_of(text.splitlines()[0]):
            time = evaluate(code)
            assert time.tzinfo is UTC
            at(time)
            assert fed(Times(time)) == [f"{time}"]


class Many(pen.ProcessFunction):
    kept = pen.ValueState(int, default=0)

    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        self.change(keys)
        return batch.select(["n"])

    def change(self, keys: Any) -> None:
        self.kept.set_many(keys, [None] * len(keys))


def test_keys_are_forgotten_with_a_call_of_their_own() -> None:
    class Forgets(Many):
        def change(self, keys: Any) -> None:
            self.kept.clear_many(keys)

    text = shown("state.clear_many", lambda: fed(Many(), schema="n bigint"))
    assert text == "Forget a key with clear_many"
    assert fed(Forgets(), schema="n bigint") == [1]


# --- what is sent


class Emits(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        ctx.emit("x", to="suspects")
        return "sent"


def test_a_side_output_is_declared_in_the_class() -> None:
    name, _, call = first(shown("process.output", lambda: fed(Emits()))).partition(": ")[2].partition(" = ")
    declared = type("Declared", (Emits,), {name: evaluate(call.replace("…", "str"))})
    assert fed(declared()) == ["sent"]


class Silent(pen.ProcessFunction):
    def on_row(self, row, ctx):  # type: ignore[no-untyped-def]
        return {"n": 2}


def test_what_is_sent_is_annotated_or_said() -> None:
    class Said(Silent):
        def on_row(self, row, ctx) -> Iterator[Line]:  # type: ignore[no-untyped-def]
            yield Line(2)

    text = shown("process.silent", lambda: fed(Silent()))
    assert "-> Iterator[Alert]" in text
    assert ".process(…, schema=Alert)" in text
    assert fed(Said()) == [2]
    assert fed(Silent(), schema=Line) == [2]


class Shared(pen.ProcessFunction):
    shared = pen.BroadcastState(str, int)
    early = True

    def on_row(self, row: Line, ctx: pen.Context) -> Line:
        return row

    def on_broadcast(self, row: Line, ctx: pen.Context) -> None:
        if self.early:
            ctx.emit(row)


def test_rows_of_a_broadcast_are_sent_from_on_row() -> None:
    def run(early: bool) -> list[Any]:
        function = Shared()
        function.early = early
        feed = Feed(function, on_error="fail", second="broadcast")
        return feed.rows(("a", 1, 0), to="right").rows(("a", 1, 0)).sent()

    assert first(shown("process.broadcast-sends", lambda: run(early=True))) == "Send it from on_row"
    assert run(early=False) == [1]


def test_a_batch_is_returned() -> None:
    class Sends(Many):
        def change(self, keys: Any) -> None:
            self.ctx.emit({"n": 1})

        def open(self, ctx: pen.Context) -> None:
            self.ctx = ctx

    class Returns(Many):
        def change(self, keys: Any) -> None: ...

    assert shown("process.batch-sends", lambda: fed(Sends(), schema="n bigint")) == "Return from on_batch what it sends"
    assert fed(Returns(), schema="n bigint") == [1]


def test_a_batch_with_event_time_keeps_its_rows() -> None:
    class Fewer(Many):
        def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
            return batch.select(["n"]).slice(1)

    class AsMany(Many):
        def change(self, keys: Any) -> None: ...

    class OneByOne(pen.ProcessFunction):
        def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[Line]:
            yield from ()

    text = shown("process.batch-rows", lambda: fed(Fewer(), schema="n bigint"))
    assert text == "Give as many rows, or use on_row"
    assert fed(AsMany(), schema="n bigint") == [1]
    assert fed(OneByOne()) == []


def test_map_batches_with_event_time_keeps_its_rows() -> None:
    def fewer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(1)

    def as_many(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def no_rows(row: pen.Row) -> list[Line]:
        return []

    def with_time(step: Any) -> int:
        """How many rows leave a step that one row with event time enters."""
        rows = pa.record_batch({"n": [1], TIME_COLUMN: [0]})
        return sum(out.num_rows for _, out in step.process(rows, None))

    def batches(function: Any) -> BatchMap:
        return BatchMap("b", function, pa.schema({"n": pa.int64()}))

    text = shown("map_batches.rows", lambda: with_time(batches(fewer)))
    assert text == "Return as many rows, or use flat_map"
    assert with_time(batches(as_many)) == 1
    function = RowFunction.of(no_rows, "flat_map", pa.schema({"n": pa.int64()}))
    assert with_time(RowMap("f", function, Errors("f", "fail", DEAD_SCHEMA))) == 0


# --- timers


class Timed(pen.ProcessFunction):
    def __init__(self, **options: Any) -> None:
        self.options = options

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        ctx.set_timer("t", **self.options)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str:
        return timer.name


class Untimed(pen.ProcessFunction):
    on_row = Timed.on_row
    __init__ = Timed.__init__


def test_a_timer_needs_somebody_to_call() -> None:
    text = first(shown("timer.callback", lambda: fed(Untimed(after="1s"))))
    scope: dict[str, Any] = {}
    exec(f"{text.partition(': ')[2]}: return None", scope)
    defined = type("Defined", (Untimed,), {"on_timer": scope["on_timer"]})
    assert fed(defined(after="1s")) == []


def test_a_timer_of_event_time_needs_event_time() -> None:
    text = first(shown("timer.event-time", lambda: fed(Timed(after="1s"), timed=False)))
    clock, watermark = code_of(text)
    assert fed(Timed(after="1s", **evaluate(f"dict({clock})")), timed=False) == ["t"]
    rows = pen.Pipeline("p").read(sources.memory([{"k": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}]))
    out = sinks.memory("timers")
    out.clear()
    timed: Any = evaluate(f"rows{watermark.removesuffix(' before key_by')}", rows=rows)
    timed.key_by("k").process(Timed(after="1s"), name="t").write(out).run(pen.Local(restarts=0))
    assert out.rows() == [{"value": "t"}]


@pytest.mark.parametrize("options", [{}, {"after": "1s", "at": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_a_timer_is_told_when(options: dict[str, Any]) -> None:
    (code,) = code_of(first(shown("timer.when", lambda: fed(Timed(**options)))))
    assert fed(Timed(**evaluate(f"dict({code})"))) == ["t"]


def test_a_timer_goes_by_a_clock_that_there_is() -> None:
    codes = code_of(first(shown("timer.clock", lambda: fed(Timed(after="1s", clock="sun")))))
    assert [fed(Timed(after="1s", **evaluate(f"dict({code})"))) for code in codes] == [["t"], ["t"]]


# --- tables, aggregates and folds


def test_a_table_has_one_row_of_each_key(tmp_path: Path) -> None:
    twice = [{"id": 7, "city": "a"}, {"id": 7, "city": "b"}]

    def load(rows: list[dict[str, Any]], key: str) -> Any:
        table = TableSource("users", f"{tmp_path} {key} {len(rows)}", sources.memory(rows), (key,), ("id",), None, tmp_path)
        return table.load(0)

    assert shown("lookup.unique", lambda: load(twice, "id")) == "Make its rows unique, or give it another key="
    assert len(load(twice[:1], "id").index) == 1
    assert len(load(twice, "city").index) == 2


class Forgets(pen.Aggregate):
    def create(self) -> list[int]:
        return []

    def add(self, acc: list[int], n: int) -> list[int]:
        acc.append(n)  # and nothing is returned

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> int:
        return len(acc)


def test_an_accumulator_is_returned() -> None:
    class Returns(Forgets):
        def add(self, acc: list[int], n: int) -> list[int]:
            return [*acc, n]

    def aggregated(kind: Any) -> list[Any]:
        return fed(lambda keyed: counted(keyed, n=kind()(pen.col("n"))))

    assert shown("user-aggregate.returned", lambda: aggregated(Forgets)) == "Return the accumulator from add"
    assert aggregated(Returns) == [1]


def test_a_fold_takes_whole_rows() -> None:
    def of_part(a: Line, b: Line) -> Line:
        return a

    def of_rows(a: pen.Row, b: pen.Row) -> pen.Row:
        return a

    @dataclass
    class Whole:
        k: str | None
        n: int | None
        at: datetime | None

    def of_class(a, b):  # type: ignore[no-untyped-def]
        return a

    of_class.__annotations__.update(a=Whole, b=Whole)
    text = shown("reduce.whole-rows", lambda: fed(lambda keyed: keyed.reduce(of_part, name="it")))
    assert text == "Take a pen.Row, or a class with all columns"
    for good in (of_rows, of_class):
        assert len(fed(lambda keyed, good=good: keyed.reduce(good, name="it"))) == 1  # type: ignore[misc]
