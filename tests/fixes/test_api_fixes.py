"""The fixes of `penstock.api`: what was written where a stream, a table, an expression or a name was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from fixes.streams import Streams, applied, arguments
from penstock import sinks, sources
from penstock.api.stream import Stream


@pytest.fixture
def s() -> Streams:
    return Streams()


# Expressions and names.


def test_a_number_where_an_expression_is_expected_is_a_literal(s: Streams) -> None:
    (code,) = code_of(shown("expr.literal", lambda: s.left.with_columns(one=1)))  # type: ignore[arg-type]
    assert s.left.with_columns(one=evaluate(code)).schema.names[-1] == "one"


@pytest.mark.parametrize("value", ["price * 2", 'concat(user, "x")'])
def test_an_expression_in_sql_gets_a_name(s: Streams, value: str) -> None:
    (code,) = code_of(shown("expr.name", lambda: s.left.select(value)))
    assert s.left.select(**arguments(code)).schema.names == ["total"]


def test_an_expression_gets_a_name(s: Streams) -> None:
    double = pen.col("price") * 2
    (code,) = code_of(shown("expr.name", lambda: s.left.select(double)))
    assert s.left.select(applied(double, code)).schema.names == ["total"]


def test_an_aggregate_gets_a_name_in_both_ways(s: Streams) -> None:
    named, aliased = code_of(shown("aggregate.name", lambda: s.left.key_by("user").aggregate(pen.count(), name="n")))
    assert "n" in s.left.key_by("user").aggregate(**arguments(named), name="n").schema.names
    assert "n" in s.left.key_by("user").aggregate(evaluate(aliased), name="n").schema.names


def test_what_is_no_aggregate_becomes_one(s: Streams) -> None:
    for code in code_of(shown("aggregate.kind", lambda: s.left.key_by("user").aggregate(n=3, name="n"))):  # type: ignore[arg-type]
        given = arguments(code.replace('"x"', '"price"'))
        assert "n" in s.left.key_by("user").aggregate(**given, name="n").schema.names


def test_an_aggregate_of_nothing_counts(s: Streams) -> None:
    (code,) = code_of(shown("aggregate.empty", lambda: s.left.key_by("user").aggregate(name="n")))
    assert applied(s.left.key_by("user"), code).schema.names == ["user", "n"]


@pytest.mark.parametrize("key", ["user", "the user", "straße", "_x"])
def test_the_line_that_names_a_step_can_be_copied(s: Streams, key: str) -> None:
    keyed = s.left.key_by(**{key: "user"})
    named = {"n": pen.count(), "total": "sum(price)", "last": 'max(concat(user, "\'"))'}
    (code,) = code_of(shown("step.name", lambda: keyed.aggregate(**named)))
    assert applied(keyed, code).schema.names == [key, "n", "total", "last"]


def test_the_line_that_names_a_fold_leaves_room_for_a_lambda(s: Streams) -> None:
    keyed = s.left.select("price").key_by("price")
    (code,) = code_of(shown("step.name", lambda: keyed.reduce(lambda a, b: a)))
    applied(keyed, code.replace("…", "lambda a, b: a"))


def test_the_line_that_names_a_join_can_be_copied(s: Streams) -> None:
    (code,) = code_of(shown("step.name", lambda: s.left.join(s.right, on="id", within="forever")))
    applied(s.left, code.replace("…", "right, within='forever'"), right=s.right)


# Joins and tables.


def test_a_join_has_one_bound(s: Streams) -> None:
    def join(**bound: Any) -> Stream:
        return s.timed.join(s.timed_right, on="id", name="j", **bound)

    bounds: dict[str, Any] = {"window": pen.tumbling("1m"), "within": ("0s", "1m")}
    assert shown("join.two-bounds", lambda: join(**bounds)) == "Leave one of them out"
    for name, bound in bounds.items():
        join(**{name: bound})


def test_a_join_is_bounded_in_each_of_three_ways(s: Streams) -> None:
    codes = code_of(shown("join.bounds", lambda: s.timed.join(s.timed_right, on="id", name="j")))
    assert len(codes) == 3
    for code in codes:
        s.timed.join(s.timed_right, on="id", name="j", **arguments(code))


def test_a_table_without_end_is_read_as_a_stream_and_joined(s: Streams) -> None:
    endless = sources.generate(lambda index, seed: {"id": index}, schema="id bigint, at timestamp")
    text = shown("table.unbounded", lambda: s.p.table(endless, key="id"))
    assert "p.read(...)" in text
    assert ".join_asof(stream, on=..., name=...)" in text
    s.timed.join_asof(s.p.read(endless).with_watermark("at", delay="1s"), on="id", name="newest")


def test_the_key_of_a_table_is_a_column_that_it_has(s: Streams) -> None:
    rows = sources.memory([{"code": "x", "name": "y"}])
    (key,) = argument(shown("table.key", lambda: s.p.table(rows, key=[])))
    s.p.table(rows, key=key)


def test_a_table_is_read_again_after_a_time(s: Streams) -> None:
    rows = sources.memory([{"id": 1}])
    (refresh,) = argument(shown("table.refresh", lambda: s.p.table(rows, key="id", refresh="0s")))
    s.p.table(rows, key="id", refresh=refresh)


def test_rows_become_a_table_through_a_source(s: Streams) -> None:
    rows = [{"id": 1}]
    assert "sources.memory(rows)" in shown("table.source", lambda: s.p.table(rows, key="id"))
    s.p.table(sources.memory(rows), key="id")
    s.p.table(pa.table({"id": [1]}), key="id")


def test_a_lookup_gets_a_table(s: Streams) -> None:
    source = sources.memory([{"id": 1, "name": "a"}])
    (code,) = code_of(shown("lookup.table", lambda: s.left.lookup(source, on="id")))  # type: ignore[arg-type]
    applied(s.left, code, p=s.p, source=source)


def test_a_source_or_a_table_is_no_side_of_a_join(s: Streams) -> None:
    source = sources.memory([{"id": 1, "name": "a"}])
    text = shown("join.stream", lambda: s.left.join(source, on="id", within="forever", name="j"))  # type: ignore[arg-type]
    assert "p.read(source)" in text
    s.left.join(s.p.read(source), on="id", within="forever", name="j")
    applied(s.left, code_of(text)[0].replace("...", "'id'"), table=s.p.table(source, key="id"))


def test_both_sides_are_read_from_one_pipeline(s: Streams) -> None:
    other = Streams()
    assert "same pen.Pipeline" in shown("join.pipeline", lambda: s.left.join(other.right, on="id", within="forever", name="j"))
    s.left.join(s.right, on="id", within="forever", name="j")


def test_each_way_to_name_columns_of_a_join_is_taken(s: Streams) -> None:
    names = argument(shown("join.on", lambda: s.left.join(s.right, on=[], within="forever", name="j")))
    left = s.left.select("id", order_id="id", x="price", y="price")
    right = s.right.select("id", x="price", y="price")
    assert len(names) == 3
    for on in names:
        left.join(right, on=on, within="forever", name="j")


def test_how_far_apart_rows_may_be_is_said_in_two_ways(s: Streams) -> None:
    found = argument(shown("join.within", lambda: s.timed.join(s.timed_right, on="id", within="5m", name="j")))
    assert found == [("-5m", "5m"), ("0s", "5m")]
    for within in found:
        s.timed.join(s.timed_right, on="id", within=within, name="j")


def test_what_is_connected_is_keyed_or_broadcast(s: Streams) -> None:
    codes = code_of(shown("connect.stream", lambda: s.left.key_by("user").connect(s.right)))  # type: ignore[arg-type]
    assert len(codes) == 2
    for code in codes:
        applied(s.left.key_by("user"), code, other=s.right)


# Windows, processes and calls.


@pytest.mark.parametrize(("option", "ways"), [({"lateness": "1m"}, 4), ({"trigger": 100}, 3)])
def test_each_word_for_how_results_are_sent_again_is_taken(s: Streams, option: dict[str, Any], ways: int) -> None:
    words = argument(
        shown(
            "window.emit", lambda: s.timed.key_by("user").window(pen.tumbling("1m"), **option).aggregate(n=pen.count(), name="n")
        )
    )
    assert len(words) == ways
    for emit in words:
        timed = Streams().timed
        out = timed.key_by("user").window(pen.tumbling("1m"), emit=emit, **option).aggregate(n=pen.count(), name="n")
        out.write(sinks.console()).plan()


def test_top_of_a_window_has_no_options(s: Streams) -> None:
    keyed = s.timed.key_by("user")
    late = keyed.window(pen.tumbling("1m"), lateness="1m", emit="update")
    assert "Leave lateness=, trigger= and emit= out" in shown("top.options", lambda: late.top(3, by="price", name="t"))
    keyed.window(pen.tumbling("1m")).top(3, by="price", name="t")


@dataclass
class Visit:
    user: str


def test_what_a_function_with_state_returns_is_said_in_two_ways(s: Streams) -> None:
    def visit(row, state):  # type: ignore[no-untyped-def]
        return None

    text = shown("state-function.returns", lambda: s.left.key_by("user").map_with_state(visit, state=int, name="v"))
    assert "-> Visit | None" in text
    assert "schema=Visit" in text
    s.left.key_by("user").map_with_state(visit, state=int, name="v", schema=Visit)
    visit.__annotations__["return"] = Visit | None
    s.left.key_by("user").map_with_state(visit, state=int, name="v")


def test_a_side_output_is_declared(s: Streams) -> None:
    class Quiet(pen.ProcessFunction):
        def on_row(self, row: Visit, ctx: pen.Context) -> None: ...

    class Speaking(Quiet):
        suspects = pen.Output(Visit)

    text = shown("process.side", lambda: s.left.key_by("user").process(Quiet(), name="q").side("suspects"))
    assert text.endswith("suspects = pen.Output(…)")
    s.left.key_by("user").process(Speaking(), name="q").side("suspects")


def test_late_rows_are_those_of_the_step(s: Streams) -> None:
    counts = s.timed.key_by("user").window(pen.tumbling("1m")).aggregate(n=pen.count(), name="n")
    assert "counts.late" in shown("late.of", lambda: s.left.late)
    assert counts.late


def test_late_rows_of_the_right_side_are_those_of_the_join(s: Streams) -> None:
    both = s.timed.join(s.timed_right, on="id", within=("0s", "1m"), name="j")
    assert "both.late_right" in shown("late.right-of", lambda: both.select("id").late_right)
    assert both.late_right


def test_a_key_is_named_or_left_out_altogether(s: Streams) -> None:
    key, window = code_of(shown("key_by.empty", lambda: s.timed.key_by()))
    applied(s.timed, key)
    applied(s.timed, window).aggregate(n=pen.count(), name="n")


def test_the_time_of_a_row_is_a_column(s: Streams) -> None:
    (code,) = code_of(shown("watermark.time", lambda: s.left.with_watermark(5, delay="5s")))  # type: ignore[arg-type]
    applied(s.left, code)


def test_a_function_that_is_awaited_is_async_and_another_is_mapped(s: Streams) -> None:
    def quick(price: int) -> int:
        return price

    async def quick_async(price: int) -> int:
        return price

    text = shown("async.function", lambda: s.left.select("price").map_async(quick, capacity=10))
    assert "async def quick(…)" in text
    assert "map instead of map_async" in text
    s.left.select("price").map(quick)
    s.left.select("price").map_async(quick_async, capacity=10)


def test_the_number_of_calls_is_a_number(s: Streams) -> None:
    async def call(price: int) -> int:
        return price

    (capacity,) = argument(shown("async.capacity", lambda: s.left.select("price").map_async(call, capacity="many")))  # type: ignore[arg-type]
    s.left.select("price").map_async(call, capacity=capacity)


# Pipelines.


def test_rows_or_a_path_become_a_source(s: Streams, tmp_path: Any) -> None:
    rows = [{"n": 1}]
    text = shown("read.source", lambda: s.p.read(rows))  # type: ignore[arg-type]
    for code, value in [("sources.memory(rows)", rows), ("sources.files(path)", str(tmp_path))]:
        assert code in text
        assert value is not None
    s.p.read(sources.memory(rows))
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    s.p.read(sources.files(tmp_path, schema="n bigint"))


def test_a_pipeline_ends_in_a_sink(s: Streams) -> None:
    (code,) = code_of(shown("pipeline.sink", lambda: s.p.plan()))
    applied(s.left, code).plan()


def test_each_runner_that_is_proposed_runs(s: Streams) -> None:
    codes = code_of(shown("run.runner", lambda: s.left.write(sinks.discard()).run("local")))
    for code in codes:
        assert hasattr(evaluate(code), "start")
