"""Every method of a stream, and every mistake a user can make with it: word for word, at the user's own line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import col, sinks, sources
from penstock.errors import BadNameError, PlanError
from runtime.rig import Collect

SCHEMA = "ad_id string, event_type string, n bigint, price double, flag boolean, at timestamp"
ROWS: list[dict[str, Any]] = [
    {"ad_id": "a", "event_type": "view", "n": 1, "price": 0.5, "flag": True, "at": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)},
    {"ad_id": "b", "event_type": "click", "n": -2, "price": None, "flag": False, "at": datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)},
    {"ad_id": "a", "event_type": None, "n": 3, "price": 2.0, "flag": None, "at": datetime(2026, 1, 1, 0, 0, 12, tzinfo=UTC)},
]
NAMES = ["ad_id", "event_type", "n", "price", "flag", "at"]


def events(pipeline: pen.Pipeline | None = None) -> pen.Stream:
    return (pipeline or pen.Pipeline("test")).read(sources.memory(ROWS, schema=SCHEMA))


def timed() -> pen.Stream:
    return events().with_watermark("at", delay="5s")


def result(build: Callable[[pen.Stream], pen.Stream]) -> list[dict[str, Any]]:
    """The rows a stream gives when it runs."""
    out = sinks.memory("test-stream")
    out.clear()
    build(events()).write(out).run(pen.Local())
    return out.rows()


def raised(build: Callable[[], Any]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        build()
    return caught.value


def here(offset: int = 0) -> str:
    """The line of the caller, as errors name it."""
    frame = sys._getframe(1)
    return f"test_stream.py:{frame.f_lineno + offset}"


# --- what methods do ---------------------------------------------------------------------------------------------------


@dataclass
class Ad:
    ad_id: str
    n: int


@dataclass
class Doubled:
    ad_id: str
    twice: int


def double(ad: Ad) -> Doubled:
    return Doubled(ad.ad_id, ad.n * 2)


def repeat(ad: Ad) -> Iterator[Doubled]:
    for _ in range(max(ad.n, 0)):
        yield Doubled(ad.ad_id, ad.n)


def is_a(row: pen.Row) -> bool:
    return bool(row.ad_id == "a")


def test_map_makes_one_row_of_each() -> None:
    assert [row["twice"] for row in result(lambda s: s.map(double))] == [2, -4, 6]
    assert result(lambda s: s.map(lambda row: row.n + 1, schema=int)) == [{"value": 2}, {"value": -1}, {"value": 4}]


def test_flat_map_makes_any_number_of_rows_of_each() -> None:
    assert [row["twice"] for row in result(lambda s: s.flat_map(repeat))] == [1, 3, 3, 3]


def test_filter_takes_sql_an_expression_or_a_function() -> None:
    for condition in ("ad_id = 'a'", col("ad_id") == "a", is_a, lambda row: row.ad_id == "a"):
        assert [row["n"] for row in result(lambda s, c=condition: s.filter(c))] == [1, 3]


def test_a_condition_that_is_null_keeps_nothing() -> None:
    assert [row["n"] for row in result(lambda s: s.filter("event_type = 'view'"))] == [1]
    assert [row["n"] for row in result(lambda s: s.filter(~(col("event_type") == "view")))] == [-2]


def test_map_batches_gets_arrow_and_gives_arrow() -> None:
    def double_n(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"m": pa.compute.multiply(batch.column("n"), 2)})

    assert result(lambda s: s.map_batches(double_n, schema="m bigint")) == [{"m": 2}, {"m": -4}, {"m": 6}]


def test_select_chooses_and_computes_columns_in_order() -> None:
    stream = events().select("n", col("ad_id"), (col("n") * 2).alias("twice"), total="price * n")
    assert stream.schema.names == ["n", "ad_id", "twice", "total"]
    assert result(lambda s: s.select("n", total="price * n"))[0] == {"n": 1, "total": 0.5}


def test_with_columns_adds_at_the_end_and_replaces_in_place() -> None:
    stream = events().with_columns(n="n + 1", m=pen.lit("x"))
    assert stream.schema.names == [*NAMES, "m"]
    assert [row["n"] for row in result(lambda s: s.with_columns(n="n + 1"))] == [2, -1, 4]


def test_drop_and_rename_keep_the_other_columns() -> None:
    assert events().drop("n", "flag").schema.names == ["ad_id", "event_type", "price", "at"]
    assert events().rename({"n": "views"}).schema.names == ["ad_id", "event_type", "views", "price", "flag", "at"]
    assert events().rename({"n": "price", "price": "n"}).schema.names == ["ad_id", "event_type", "price", "n", "flag", "at"]


def test_union_gives_the_rows_of_all() -> None:
    rows = result(lambda s: s.filter("n > 0").select("n").union(s.select("n"), s.filter("n < 0").select("n")))
    assert sorted(row["n"] for row in rows) == [-2, -2, 1, 1, 3, 3]


def test_a_union_is_nullable_where_any_of_its_streams_is() -> None:
    p = pen.Pipeline("test")
    left = p.read(sources.memory([{"a": 1}], schema="a bigint not null", name="left"))
    right = p.read(sources.memory([{"a": None}], schema="a bigint", name="right"))
    assert left.union(right).schema.field("a").nullable


def test_split_sends_each_row_to_the_first_condition_that_is_true() -> None:
    def part(tag: str | None) -> list[int]:
        def build(s: pen.Stream) -> pen.Stream:
            parts = s.split({"positive": "n > 0", "small": col("n") < 2})
            return parts.rest if tag is None else parts[tag]

        return [row["n"] for row in result(build)]

    assert part("positive") == [1, 3]
    assert part("small") == [-2]
    assert part(None) == []


def test_key_by_takes_columns_and_named_expressions() -> None:
    assert events().key_by("ad_id").aggregate(n=pen.count(), name="a").schema.names == ["ad_id", "n"]
    assert events().key_by(kind="upper(event_type)").aggregate(n=pen.count(), name="a").schema.names == ["kind", "n"]
    assert events().key_by("ad_id", day=col("at").dt.truncate("1d")).aggregate(n=pen.count(), name="a").schema.names[:2] == [
        "ad_id",
        "day",
    ]


def test_a_running_aggregate_replaces_the_row_of_its_key() -> None:
    rows = result(lambda s: s.key_by("ad_id").aggregate(n=pen.count(), total="sum(price)", name="totals"))
    assert rows == [{"ad_id": "a", "n": 2, "total": 2.5}, {"ad_id": "b", "n": 1, "total": None}]


def test_an_aggregate_may_have_an_alias_instead_of_a_keyword() -> None:
    assert events().key_by("ad_id").aggregate(pen.count().alias("name"), name="a").schema.names == ["ad_id", "name"]


def test_a_window_gives_one_row_per_key_and_window() -> None:
    rows = result(
        lambda s: (
            s.with_watermark("at", delay="1s").key_by("ad_id").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="w")
        )
    )
    assert sorted((row["ad_id"], row["window_start"].second, row["window_end"].second, row["n"]) for row in rows) == [
        ("a", 0, 10, 1),
        ("a", 10, 20, 1),
        ("b", 0, 10, 1),
    ]


def test_windows_chain_because_a_result_has_the_last_moment_of_its_window_as_event_time() -> None:
    def build(s: pen.Stream) -> pen.Stream:
        fine = (
            s.with_watermark("at", delay="0s").key_by("ad_id").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="fine")
        )
        return fine.window(pen.tumbling("20s")).aggregate(total="sum(n)", parts=pen.count(), name="coarse")

    (row,) = result(build)
    assert (row["total"], row["parts"]) == (3, 3)
    assert list(row) == ["window_start", "window_end", "total", "parts"]


def most(left: pen.Row, right: pen.Row) -> pen.Row:
    return left if left.n >= right.n else right


def greater(left: Ad, right: Ad) -> Ad:
    return left if left.n >= right.n else right


def test_reduce_folds_the_rows_of_a_key() -> None:
    rows = result(lambda s: s.select("ad_id", "n").key_by("ad_id").reduce(most, name="most"))
    assert sorted(row["n"] for row in rows) == [-2, 3]


def test_reduce_in_windows_keeps_key_and_window_in_front() -> None:
    rows = result(
        lambda s: (
            s.with_watermark("at", delay="0s")
            .select("n", "ad_id")
            .key_by("ad_id")
            .window(pen.tumbling("1m"))
            .reduce(most, name="m")
        )
    )
    assert [list(row) for row in rows] == [["ad_id", "window_start", "window_end", "n"]] * 2


@pytest.mark.parametrize("function", [most, greater])
def test_reduce_in_windows_over_all_rows(function: Callable[..., Any]) -> None:
    def build(s: pen.Stream) -> pen.Stream:
        return s.with_watermark("at", delay="0s").select("ad_id", "n").window(pen.tumbling("1m")).reduce(function, name="m")

    (row,) = result(build)
    assert list(row) == ["window_start", "window_end", "ad_id", "n"]
    assert row["n"] == 3


def test_late_rows_of_windows_over_all_rows_can_be_windowed_again() -> None:
    def build(s: pen.Stream) -> pen.Stream:
        first = s.with_watermark("at", delay="0s").window(pen.tumbling("1s")).aggregate(n=pen.count(), name="first")
        return first.late.window(pen.tumbling("1m")).aggregate(n=pen.count(), name="second")

    assert result(build) == []
    out = sinks.memory("late-again")
    out.clear()
    p = pen.Pipeline("test")
    rows = [ROWS[2], ROWS[0]]
    s = p.read(sources.memory(rows, schema=SCHEMA, batch=1)).with_watermark("at", delay="0s")
    first = s.window(pen.tumbling("1s")).aggregate(n=pen.count(), name="first")
    first.late.window(pen.tumbling("1m")).aggregate(n=pen.count(), name="second").write(out).run(pen.Local())
    assert [row["n"] for row in out.rows()] == [1], "late for its second, and in time for its minute"


def test_event_time_belongs_to_the_row_even_if_its_column_is_dropped() -> None:
    rows = result(lambda s: s.with_watermark("at", delay="1s").drop("at").select("n", t=pen.event_time()))
    assert [row["t"] for row in rows] == [row["at"] for row in ROWS]


def test_a_delay_may_be_a_timedelta_or_words() -> None:
    for delay in ("5s", "5 seconds", timedelta(seconds=5)):
        assert "watermark at - 5s" in events().with_watermark("at", delay=delay).explain()


def test_a_stream_knows_its_schema_and_explains_itself() -> None:
    assert events().schema.names == NAMES
    assert events().filter("n > 0").explain().splitlines()[-1].startswith(" 1 filter n > 0 <- 0")


def test_methods_do_not_change_the_stream_they_are_called_on() -> None:
    stream = events()
    stream.select("n")
    stream.with_columns(m="n")
    assert stream.schema.names == NAMES


def test_write_returns_the_pipeline() -> None:
    p = pen.Pipeline("test")
    assert events(p).write(Collect()) is p


# --- errors of API.md, word for word ------------------------------------------------------------------------------------


def test_a_step_that_keeps_state_without_a_name() -> None:
    line = here(1)
    error = raised(lambda: events().key_by(campaign="ad_id").aggregate(n=pen.count()))
    assert str(error) == (
        f"{line}: this aggregate keeps state, so it needs a name: savepoints find its state by it\n"
        '  Write: .aggregate(n=pen.count(), name="campaign-counts")'
    )
    windowed = raised(lambda: timed().key_by("ad_id").window(pen.tumbling("1s")).aggregate(total="sum(n)", n=pen.count()))
    assert str(windowed).endswith('Write: .aggregate(total="sum(n)", n=pen.count(), name="ad-id-counts")')
    reduced = raised(lambda: events().key_by("ad_id").reduce(most))
    assert str(reduced).partition(": ")[2] == (
        "this reduce keeps state, so it needs a name: savepoints find its state by it\n"
        '  Write: .reduce(most, name="ad-id-reduce")'
    )
    over_all = raised(lambda: timed().window(pen.tumbling("1s")).aggregate(n=pen.count()))
    assert str(over_all).endswith('Write: .aggregate(n=pen.count(), name="all-counts")')


def test_a_column_that_is_not_there() -> None:
    line = here(1)
    error = raised(lambda: events().select("ad_id", "event_type", "at").filter(col("evnt_type") == "view"))
    assert (
        str(error) == f"{line}: there is no column 'evnt_type' here. Columns: ad_id, event_type, at. Did you mean 'event_type'?"
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.select("evnt_type"),
        lambda s: s.select(x=col("evnt_type")),
        lambda s: s.filter("evnt_type = 'view'"),
        lambda s: s.with_columns(x="upper(evnt_type)"),
        lambda s: s.drop("evnt_type"),
        lambda s: s.rename({"evnt_type": "x"}),
        lambda s: s.split({"a": "evnt_type = 'a'"}),
        lambda s: s.with_watermark("evnt_type", delay="1s"),
        lambda s: s.key_by("evnt_type").aggregate(n=pen.count(), name="a"),
        lambda s: s.key_by(x="upper(evnt_type)"),
        lambda s: s.key_by("ad_id").aggregate(x=col("evnt_type").max(), name="a"),
        lambda s: s.key_by("ad_id").aggregate(x="max(evnt_type)", name="a"),
        lambda s: s.key_by("ad_id").aggregate(x=pen.count(where=col("evnt_type") == "a"), name="a"),
    ],
)
def test_every_method_says_which_columns_there_are(build: Callable[[pen.Stream], Any]) -> None:
    error = raised(lambda: build(events()))
    assert error.where is not None
    assert error.where.startswith("test_stream.py:")
    assert error.message == (
        "there is no column 'evnt_type' here. Columns: ad_id, event_type, n, price, flag, at. Did you mean 'event_type'?"
    )


def test_a_window_without_event_time() -> None:
    line = here(1)
    error = raised(lambda: events().key_by("ad_id").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts"))
    assert str(error) == (
        f'{line}: tumbling("10s") needs event time, and this stream has none\n'
        '  Give the stream event time, right after read. Write: .with_watermark("at", delay="5s")'
    )
    over_all = raised(lambda: events().window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts"))
    assert 'tumbling("10s") needs event time' in over_all.message


def test_a_duration_without_a_unit() -> None:
    line = here(1)
    error = raised(lambda: events().with_watermark("at", delay=5))
    seconds = "If seconds are meant, say so. Write:"
    assert str(error) == f'{line}: delay=5 has no unit\n  {seconds} delay="5s"'
    assert str(raised(lambda: pen.tumbling(10))) == f'{here()}: size=10 has no unit\n  {seconds} size="10s"'
    idle = raised(lambda: events().with_watermark("at", delay="5s", idle_after=30))
    assert str(idle).endswith(f'idle_after=30 has no unit\n  {seconds} idle_after="30s"')


@pytest.mark.parametrize("use", [lambda e: e and e, lambda e: e or e, lambda e: not e, lambda e: 1 if e else 2])
def test_python_logic_on_an_expression(use: Callable[[Any], Any]) -> None:
    error = raised(lambda: use(col("a") > 1))
    assert str(error) == (
        "an expression is neither true nor false until it runs, so 'and', 'or', 'not' and 'if' cannot use it\n"
        '  Use &, | and ~, with each part in parentheses. Write: (col("a") > 1) & (col("b") < 2)'
    )


def test_a_lambda_without_a_schema() -> None:
    line = here(1)
    error = raised(lambda: events().map(lambda row: row.price))
    assert str(error) == (
        f"{line}: cannot tell what <lambda> returns\n"
        "  Use a function with a return annotation (-> float, or a class with fields), or say it: .map(…, schema=float)"
    )
    several = raised(lambda: events().flat_map(lambda row: [row.price]))
    assert str(several).endswith(".flat_map(…, schema=float)")


def test_rows_that_replace_others_into_a_sink_that_can_only_add() -> None:
    totals = events().key_by("ad_id").aggregate(n=pen.count(), name="totals")
    line = here(1)
    error = raised(lambda: totals.select("ad_id", "n").write(sinks.files("out/trending", format="json")))
    assert str(error) == (
        f"{line}: sink 'trending' (files) can only add rows, and the rows of step 'totals' replace earlier ones"
        ' (emit="update")\n'
        "  Use a sink that takes them (sinks.memory, sinks.console, sinks.foreach_batch, or sinks.files with change='change'),"
        ' or emit="append" before. Write: .as_rows(op="op")'
    )


# --- other mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda s: s.key_by("price").aggregate(n=pen.count(), name="a"),
            "the key 'price': a column of type double cannot be a key",
        ),
        (lambda s: s.filter("n"), "filter needs a condition, and n is bigint\n  Compare it"),
        (lambda s: s.split({"a": "n + 1"}), "split needs conditions, and n + 1 is not one"),
        (lambda s: s.split({"late": "n > 1"}), "the tag 'late' is taken\n  Choose another"),
        (lambda s: s.split({"rest": "n > 1"}), "the tag 'rest' is taken\n  Choose another"),
        (lambda s: s.split({"a": "n > 1"})["b"], "this split has no part 'b'. Its parts: a, and .rest"),
        (lambda s: s.select("n", n="n + 1"), "the column 'n' is made twice"),
        (lambda s: s.rename({"n": "price"}), "the column 'price' is made twice"),
        (lambda s: s.select(__x="n"), "the column name '__x' starts with two underscores, which are kept for Penstock"),
        (lambda s: s.with_columns(__time="at"), "the column name '__time' starts with two underscores"),
        (lambda s: s.rename({"n": "__n"}), "the column name '__n' starts with two underscores"),
        (lambda s: s.key_by("ad_id").aggregate(__n=pen.count(), name="a"), "the column name '__n' starts with two underscores"),
        (lambda s: s.key_by(__k="ad_id"), "the column name '__k' starts with two underscores"),
        (lambda s: s.select("n + 1"), "n + 1 has no name\n  Name the column. Write: total='n + 1'"),
        (
            lambda s: s.select(5),
            "expected an expression or SQL text, and got 5\n  If a literal is meant, write it so. Write: pen.lit(5)",
        ),
        (lambda s: s.select(x=None), "expected an expression or SQL text, and got None"),
        (lambda s: s.key_by(), "key_by needs a column"),
        (lambda s: s.key_by("ad_id").aggregate(name="a"), "aggregate needs something to compute"),
        (lambda s: s.key_by("ad_id").aggregate(n="n + 1", name="a"), "n + 1"),
        (lambda s: s.key_by("ad_id").aggregate(n=col("n"), name="a"), "is no aggregate\n  Write: n=pen.count()"),
        (lambda s: s.key_by("ad_id").aggregate(pen.count(), name="a"), "an aggregate needs a name\n  Write: n=pen.count()"),
        (lambda s: s.key_by("ad_id").aggregate(x=col("ad_id").sum(), name="a"), "sum needs numbers, and found string (ad_id)"),
        (lambda s: s.key_by("n").aggregate(n=pen.count(), name="a"), "the result would have two columns 'n'\n  Rename one"),
        (lambda s: s.key_by("ad_id").window("10s"), "window needs a shape, and '10s' is none"),
        (lambda s: pen.tumbling("0s"), "holds nothing\n  Give a positive size"),
        (lambda s: pen.tumbling("ten"), "size='ten' is not a duration"),
        (lambda s: s.with_watermark("n", delay="1s"), "event time needs a timestamp, and 'n' is bigint"),
        (lambda s: s.with_watermark("at", delay="-1s"), "delay=-1s is negative"),
        (lambda s: s.with_watermark("at", delay="soon"), "delay='soon' is not a duration"),
        (lambda s: s.with_watermark("at", delay="1s").with_watermark("at", delay="1s"), "this stream has event time already"),
        (lambda s: s.late, "only the result of a window has late rows"),
        (lambda s: s.key_by("ad_id").aggregate(n=pen.count(), name="a").late, "only the result of a window has late rows"),
        (lambda s: s.union(s.select("n")), "union needs equal columns. Left: ad_id string"),
        (lambda s: s.union(s.with_columns(n="price")), "union needs equal columns"),
        (lambda s: s.union(s.with_watermark("at", delay="1s")), "union needs streams of one kind"),
        (lambda s: s.with_columns(x="n + ad_id"), "ad_id"),
        (lambda s: s.filter("n >"), "n >"),
    ],
)
def test_mistakes_are_named_at_the_line_that_made_them(build: Callable[[pen.Stream], Any], text: str) -> None:
    error = raised(lambda: build(events()))
    assert text in str(error)
    assert (error.where or "").startswith("test_stream.py:")


def test_aggregating_rows_that_replace_others_is_refused() -> None:
    totals = events().key_by("ad_id").aggregate(n=pen.count(), name="totals")
    for again in (
        lambda: totals.key_by("n").aggregate(m=pen.count(), name="again"),
        lambda: totals.key_by("n").reduce(most, name="again"),
    ):
        assert "the rows of this stream replace earlier ones, so" in raised(again).message
    assert 'emit="retract"' in str(raised(lambda: totals.key_by("n").aggregate(m=pen.count(), name="again")))


def test_steps_that_would_lose_the_key_by_which_rows_replace_others_are_refused() -> None:
    totals = events().key_by("ad_id").aggregate(n=pen.count(), name="totals")
    assert "and 'ad_id' is left out here\n  Keep it. Write: .select('ad_id', …)" in str(raised(lambda: totals.select("n")))
    assert "'ad_id' is left out" in raised(lambda: totals.drop("ad_id")).message
    assert "a function may change the key" in raised(lambda: totals.map(double)).message
    assert "map_batches needs final rows" in raised(lambda: totals.map_batches(lambda b: b, schema=totals.schema)).message
    assert "with_watermark needs final rows" in raised(lambda: totals.with_watermark("at", delay="1s")).message
    assert "union needs streams of one kind" in raised(lambda: totals.union(events().select("ad_id", "n"))).message


def test_a_key_of_updates_that_is_computed_anew_is_refused() -> None:
    totals = events().key_by("ad_id").aggregate(n=pen.count(), name="totals")
    assert "'ad_id'" in raised(lambda: totals.with_columns(ad_id="upper(ad_id)")).message


def test_updates_by_different_keys_cannot_be_united() -> None:
    one = events().key_by("ad_id").aggregate(n=pen.count(), name="one").select("ad_id", "n")
    other = events().key_by("n").aggregate(ad_id="max(ad_id)", name="other").select("ad_id", "n")
    assert "union needs streams of one kind" in raised(lambda: one.union(other)).message


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".hidden", "a b", "-x", "ü", "x" * 129, "a:partial", "a\n"])
def test_the_name_of_a_step_can_be_a_file_name(name: str) -> None:
    for build in (
        lambda: events().key_by("ad_id").aggregate(n=pen.count(), name=name),
        lambda: events().key_by("ad_id").reduce(most, name=name),
        lambda: timed().window(pen.tumbling("1s")).aggregate(n=pen.count(), name=name),
    ):
        error = raised(build)
        assert isinstance(error, BadNameError)
        assert f"{name!r} cannot be the name of a step" in error.message
        assert (error.where or "").startswith("test_stream.py:")


def test_errors_of_a_chain_over_many_lines_name_the_line_of_the_call() -> None:
    line = here(2)
    error = raised(
        lambda: events().select(
            "nothing",
        )
    )
    assert error.where == line
