"""The fixes of `penstock.plan`: steps that do not fit their rows, and of a pipeline as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, code_of, shown
from fixes.streams import Streams, applied, arguments, planned
from penstock import sinks, sources
from penstock.api.stream import Stream
from penstock.errors import PenstockError


@pytest.fixture
def s() -> Streams:
    return Streams()


@dataclass
class Line:
    user: str


class Echo(pen.ProcessFunction):
    def on_row(self, row: Line, ctx: pen.Context) -> Iterator[Line]:
        yield row


class Forgetful(Echo):
    seen = pen.ValueState(int, ttl="1h")


# The pipeline as a whole.


def test_of_two_sinks_of_one_name_one_gets_another() -> None:
    def pipeline(**other: str) -> pen.Pipeline:
        p = pen.Pipeline("p")
        rows = p.read(sources.memory([{"n": 1}], schema="n bigint"))
        rows.write(sinks.discard(name="out"))
        return rows.write(sinks.discard(name="out"), **other)

    (name,) = argument(shown("plan.same-name", lambda: pipeline().plan()))
    pipeline(name=name).plan()


def test_dead_letters_that_nobody_sends_are_asked_for() -> None:
    def pipeline(**options: str) -> pen.Pipeline:
        p = pen.Pipeline("p", **options)
        p.read(sources.memory([{"n": 1}], schema="n bigint")).select(m="1 / n").write(sinks.discard())
        return p.dead_letters.write(sinks.discard(name="dead"))

    (code,) = code_of(shown("dead-letters.none", lambda: pipeline().plan()))
    pipeline(**arguments(code)).plan()


def test_dead_letters_that_are_sent_are_read() -> None:
    def pipeline() -> pen.Pipeline:
        p = pen.Pipeline("p", on_error="dead-letter")
        return p.read(sources.memory([{"n": 1}], schema="n bigint")).select(m="1 / n").write(sinks.discard(name="out"))

    codes = code_of(shown("dead-letters.unread", lambda: pipeline().plan()))
    assert len(codes) == 2
    for code in codes:
        p = pipeline()
        eval(code, {"pipeline": p, "sinks": sinks})
        p.plan()


def test_the_watermark_is_said_right_after_read(s: Streams) -> None:
    joined = s.left.join(s.right, on="id", within="forever", name="j")
    text = shown("watermark.late", lambda: planned(joined.with_watermark("at", delay="5s")))
    assert text == "Say it right after read"
    planned(Streams().timed)


def test_a_source_with_two_watermarks_is_read_twice_or_has_one(s: Streams) -> None:
    def two(other: Stream) -> Stream:
        return planned(s.timed.select("id").union(other.with_watermark("at", delay="9s").select("id")))

    (name,) = argument(shown("watermark.two", lambda: two(s.left)))
    s.p = pen.Pipeline("again")
    s.left = s.read("left")
    s.timed = s.left.with_watermark("at", delay="5s")
    two(s.read(name))
    s = Streams()
    planned(s.timed.select("id").union(s.timed.select(id="price")))


# Event time.


@pytest.mark.parametrize(
    "step",
    [
        lambda rows, right: rows.key_by("user").window(pen.tumbling("1m")).aggregate(n=pen.count(), name="n"),
        lambda rows, right: rows.key_by("user").window(pen.tumbling("1m")).reduce(lambda a, b: a, name="r"),
        lambda rows, right: rows.join_asof(right, on="id", name="j"),
        lambda rows, right: rows.join(right, on="id", within=("0s", "1m"), name="j"),
        lambda rows, right: rows.key_by("user").process(Echo(), order="event-time", name="e"),
        lambda rows, right: rows.key_by("user").window(pen.tumbling("1m")).top(3, by="price", name="t"),
    ],
)
def test_a_step_that_needs_event_time_has_it_after_the_line_that_is_proposed(
    s: Streams, step: Callable[[Stream, Stream], Stream]
) -> None:
    (code,) = code_of(shown("time.none", lambda: step(s.left, s.timed_right)))
    planned(step(applied(s.left, code), s.timed_right))


def test_duplicates_are_remembered_for_ever_or_by_event_time(s: Streams) -> None:
    text = shown("dedupe.time", lambda: s.left.drop_duplicates("id", within="1h", name="d"))
    assert text.startswith("Leave within= out")
    s.left.drop_duplicates("id", name="d")
    applied(s.left, code_of(text)[0]).drop_duplicates("id", within="1h", name="d")


def test_for_how_long_duplicates_are_remembered_is_positive(s: Streams) -> None:
    (within,) = argument(shown("dedupe.within", lambda: s.timed.drop_duplicates("id", within="-1s", name="d")))
    s.timed.drop_duplicates("id", within=within, name="d")


def test_what_changes_is_counted_instead_of_remembered(s: Streams) -> None:
    (code,) = code_of(shown("dedupe.of-changes", lambda: s.retractions.drop_duplicates("user", name="d")))
    assert applied(s.retractions, code).schema.names == ["user", "n"]


def test_a_watermark_says_how_late_rows_are(s: Streams) -> None:
    delays = argument(shown("watermark.delay", lambda: s.left.with_watermark("at")))
    assert delays == ["5s", "0s"]
    for delay in delays:
        s.left.with_watermark("at", delay=delay)


def test_a_watermark_goes_by_one_thing(s: Streams) -> None:
    both = {"delay": "5s", "punctuated": "at"}
    assert shown("watermark.two-ways", lambda: s.left.with_watermark("at", **both)) == "Leave one of them out"
    for name, value in both.items():
        s.left.with_watermark("at", **{name: value})


def test_a_negative_length_is_proposed_without_its_sign(s: Streams) -> None:
    (code,) = code_of(shown("watermark.negative", lambda: s.left.with_watermark("at", delay="-5s")))
    s.left.with_watermark("at", **arguments(code))


def test_splits_are_aligned_in_a_group_and_by_a_length(s: Streams) -> None:
    (align,) = argument(shown("watermark.align", lambda: s.left.with_watermark("at", delay="5s", drift="1m")))
    (drift,) = argument(shown("watermark.drift", lambda: s.left.with_watermark("at", delay="5s", align="group")))
    s.left.with_watermark("at", delay="5s", align=align, drift=drift)


def test_event_time_is_said_once(s: Streams) -> None:
    assert "once" in shown("watermark.again", lambda: s.timed.with_watermark("at", delay="5s"))
    planned(s.timed)


def test_event_time_is_said_before_rows_are_aggregated(s: Streams) -> None:
    latest = s.left.key_by("user").aggregate(at="max(at)", name="latest")
    assert "right after read" in shown("watermark.of-changes", lambda: latest.with_watermark("at", delay="5s"))
    planned(s.timed.key_by("user").aggregate(at="max(at)", name="latest"))


def test_a_column_becomes_a_timestamp(s: Streams) -> None:
    text = s.left.select("id", at="user")
    (code,) = code_of(shown("watermark.type", lambda: text.with_watermark("at", delay="5s")))
    applied(text, code).with_watermark("at", delay="5s")


@pytest.mark.parametrize("at", ["concat(user, 'Z')", 'concat("", user)'])
def test_an_expression_becomes_a_timestamp(s: Streams, at: str) -> None:
    (code,) = code_of(shown("watermark.type", lambda: s.left.with_watermark(at, delay="5s")))
    s.left.with_watermark(eval(code), delay="5s")


# Calls and functions over changes.


async def call(row: Line) -> Line:
    return row


def test_a_call_may_begin_and_has_time(s: Streams) -> None:
    (capacity,) = argument(shown("async.no-call", lambda: s.left.map_async(call, capacity=0)))
    (timeout,) = argument(shown("async.timeout", lambda: s.left.map_async(call, capacity=capacity, timeout="0s")))
    s.left.map_async(call, capacity=capacity, timeout=timeout)


def test_calls_come_before_the_aggregate(s: Streams) -> None:
    text = shown("async.of-updates", lambda: s.updates.map_async(call, capacity=1))
    assert "before the rows are aggregated" in text
    s.left.map_async(call, capacity=1).key_by("user").aggregate(n=pen.count(), name="n").with_columns(m="n + 1")


def test_calls_about_what_is_withdrawn_are_answered_in_order(s: Streams) -> None:
    assert shown("async.ordered", lambda: s.retractions.map_async(call, capacity=1, ordered=False)) == "Leave ordered=False out"
    s.retractions.map_async(call, capacity=1)


def test_expressions_take_the_place_of_a_function(s: Streams) -> None:
    @pen.udf
    def double(n: int) -> int:
        return 2 * n

    def twice(row: Line) -> Line:
        return row

    text = shown("map.of-updates", lambda: s.updates.map(twice))
    assert "with_columns, select or filter" in text
    planned(s.updates.with_columns(double=double(pen.col("n"))).filter("n > 1").select("user", "double"))


# Steps by key over changes.


def test_what_is_replaced_is_withdrawn_first(s: Streams) -> None:
    (code,) = code_of(shown("keyed.of-updates", lambda: s.updates.key_by("n").aggregate(users=pen.count(), name="c")))
    withdrawn = applied(s.left.key_by("user"), code).aggregate(n=pen.count(), name="u")
    planned(withdrawn.key_by("n").aggregate(users=pen.count(), name="c"))


def later(a: Any, b: Any) -> Any:
    return b


def states(rows: Any, window: str) -> Any:
    made = rows.update_state_by_key(lambda new, old: (old or 0) + len(new), state=int, every="1s", name="first")
    return applied(made, window)


def early(rows: Any, emit: str) -> Any:
    options = {"emit": "update", "trigger": 1} | (arguments(emit) if emit else {})
    if options["emit"] == "append":
        del options["trigger"]  # as the text says
    return rows.window(pen.tumbling("1m"), **options).aggregate(price=pen.count(), name="first")


def best(rows: Any, window: str) -> Any:
    found = applied(rows, window).top(2, by="price", name="first")
    return found.rename({"rank": "price_rank"}) if window else found


FIRST: dict[str, Callable[[Any, str], Any]] = {
    "aggregate": lambda rows, window: applied(rows, window).aggregate(price=pen.count(), name="first"),
    "reduce": lambda rows, window: applied(rows, window).reduce(later, name="first"),
    "top": best,
    "early": early,
    "states": states,
}
NEXT: dict[str, Callable[[Any], Any]] = {
    "aggregate": lambda rows: rows.aggregate(n=pen.count(), name="second"),
    "reduce": lambda rows: rows.reduce(later, name="second"),
    "top": lambda rows: rows.top(2, by="user", name="second"),
    "top of windows": lambda rows: rows.window(pen.tumbling("1h")).top(2, by="user", name="second"),
    "drop_duplicates": lambda rows: rows.drop_duplicates(name="second"),
    "sessions": lambda rows: rows.window(pen.session("1m")).aggregate(n=pen.count(), name="second"),
    "sketch": lambda rows: rows.aggregate(n="approx_count_distinct(user)", name="second"),
}
IDS = {
    "aggregate": ("keyed.of-updates", "keyed.of-running"),
    "reduce": ("keyed.of-updates", "keyed.of-running"),
    "top": ("keyed.of-top", "keyed.of-top"),
    "early": ("keyed.of-early-results", "keyed.of-early-rows"),
    "states": ("keyed.of-states", "keyed.of-states"),
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("after", NEXT)
def test_what_is_proposed_for_rows_that_replace_others_fits_the_steps_on_both_sides(first: str, after: str) -> None:
    def steps(rows: Stream, code: str = "") -> Any:
        found = FIRST[first](rows.drop("each").key_by("user"), code)
        both = "and in this one" in text and after == "top"
        return NEXT[after](applied(found, code) if both else found)

    text = ""
    with pytest.raises(PenstockError) as caught:
        sold(steps)
    assert caught.value.fix is not None
    assert caught.value.fix.id == IDS[first][after != "aggregate"]
    text = caught.value.fix.text
    (code,) = code_of(text)
    assert sold(lambda rows: steps(rows, code))


def test_what_is_hot_is_counted_in_windows(s: Streams) -> None:
    def hot(rows: Any, window: str) -> Any:
        counts = applied(rows.key_by("user"), window).aggregate(n=pen.count(), name="counts")
        return applied(counts, window).top(2, by=["n", "user asc"], name="hot").select("rank", "user", "n")

    text = shown("keyed.of-running", lambda: sold(lambda rows: hot(rows, "")))
    assert "in the step before, and in this one" in text
    assert [tuple(row.values()) for row in sold(lambda rows: hot(rows, code_of(text)[0]))] == [(1, "ann", 2), (2, "bob", 1)]
    untimed = shown("keyed.of-running", lambda: hot(s.left, ""))
    assert '.with_watermark("at", delay="5s")' in untimed
    hot(s.left.with_watermark("at", delay="5s"), code_of(untimed)[0])


def test_the_greatest_rows_are_those_of_windows_once_somebody_counts_them(s: Streams) -> None:
    text = shown("keyed.of-top", lambda: s.left.top(2, by="price", name="t").aggregate(n=pen.count(), name="n"))
    assert '.with_watermark("at", delay="5s")' in text
    rows = applied(s.left.with_watermark("at", delay="5s"), code_of(text)[0]).top(2, by="price", name="t")
    planned(rows.aggregate(n=pen.count(), name="n"))


def test_results_that_are_sent_early_are_sent_once_or_withdrawn() -> None:
    def rows(**options: Any) -> Any:
        return Streams().timed.window(pen.tumbling("1m"), **{"emit": "update", **options}).aggregate(n=pen.count(), name="n")

    (code,) = code_of(shown("keyed.of-early-results", lambda: rows().aggregate(m="max(n)", name="m")))
    planned(rows(**arguments(code)).aggregate(m="max(n)", name="m"))
    text = shown("keyed.of-early-rows", lambda: rows(lateness="1m").top(2, by="n", name="t"))
    assert "trigger=" not in text, "there is none"
    planned(rows(lateness="1m", **arguments(code_of(text)[0])).top(2, by="n", name="t"))


def test_states_that_are_sent_again_are_rows_of_their_own(s: Streams) -> None:
    def counts() -> Any:
        return s.left.key_by("user").update_state_by_key(lambda new, old: len(new), state=int, every="1s", name="s")

    (code,) = code_of(shown("keyed.of-states", lambda: counts().drop_duplicates(name="d")))
    planned(applied(counts(), code).drop_duplicates(name="d"))


@pytest.mark.parametrize("trigger", [None, 100])
def test_each_word_for_emit_is_one(s: Streams, trigger: int | None) -> None:
    def aggregate(shape: Any, emit: str) -> Stream:
        return s.left.key_by("user").window(shape, emit=emit, trigger=trigger).aggregate(n=pen.count(), name="n")

    words = argument(shown("emit.words", lambda: aggregate(pen.running(), "updates")))
    assert len(words) == 5
    for emit in set(words) - {"append"}:
        aggregate(pen.running(), emit)


def test_a_trigger_goes_with_each_word_that_is_proposed(s: Streams) -> None:
    def aggregate(**options: Any) -> Stream:
        return s.timed.key_by("user").window(pen.tumbling("1m"), **options).aggregate(n=pen.count(), name="n")

    words = argument(shown("emit.trigger", lambda: aggregate(trigger=100, emit="append")))
    assert words == ["update", "retract", "delta"]
    for emit in words:
        aggregate(trigger=100, emit=emit)
    aggregate(emit="append")


def test_what_never_closes_sends_updates(s: Streams) -> None:
    def aggregate(emit: str) -> Stream:
        return s.left.key_by("user").window(pen.running(), emit=emit).aggregate(n=pen.count(), name="n")

    (emit,) = argument(shown("emit.running", lambda: aggregate("append")))
    aggregate(emit)


def test_what_would_grow_for_ever_sends_updates(s: Streams) -> None:
    def aggregate(emit: str) -> Stream:
        return s.timed.key_by("user").window(pen.tumbling("1m"), emit=emit).aggregate(n=pen.count(), name="n")

    (emit,) = argument(shown("emit.complete", lambda: aggregate("complete")))
    aggregate(emit)


def test_lateness_is_positive_and_of_event_time(s: Streams) -> None:
    def aggregate(shape: Any, **options: Any) -> Stream:
        return s.timed.key_by("user").window(shape, emit="update", **options).aggregate(n=pen.count(), name="n")

    (lateness,) = argument(shown("lateness.negative", lambda: aggregate(pen.tumbling("1m"), lateness="-3s")))
    aggregate(pen.tumbling("1m"), lateness=lateness)
    assert shown("lateness.time", lambda: aggregate(pen.running(), lateness="3s")) == "Leave lateness= out"
    aggregate(pen.running())


def test_a_window_of_rows_has_no_options(s: Streams) -> None:
    keyed = s.left.key_by("user")
    broken = keyed.window(pen.tumbling(rows=3), emit="update")
    assert "Leave trigger= and emit= out" in shown("rows-window.options", lambda: broken.aggregate(n=pen.count(), name="n"))
    keyed.window(pen.tumbling(rows=3)).aggregate(n=pen.count(), name="n")


def test_rows_that_can_be_withdrawn_are_not_counted_into_windows(s: Streams) -> None:
    def aggregate(stream: Stream, shape: Any) -> Stream:
        return stream.key_by("n").window(shape, emit="retract").aggregate(rows=pen.count(), name="r")

    def by_rows() -> Stream:
        return s.retractions.key_by("n").window(pen.tumbling(rows=3)).aggregate(rows=pen.count(), name="r")

    running, tumbling = code_of(shown("rows-window.of-retractions", by_rows))
    aggregate(s.retractions, eval(running, {"pen": pen}))
    windows = s.timed.key_by("user").window(pen.tumbling("1m"), lateness="1m", emit="retract")
    aggregate(windows.aggregate(n=pen.count(), name="timed").select("user", "n"), eval(tumbling, {"pen": pen}))


def test_a_window_over_sessions_waits_for_them_or_has_no_need_to(s: Streams) -> None:
    def over(stream: Stream, **options: Any) -> Stream:
        stream = stream.select("user", "n")
        return stream.key_by("n").window(options.pop("shape", pen.tumbling("1m")), **options).aggregate(r=pen.count(), name="r")

    text = shown("window.of-sessions", lambda: over(s.sessions))
    for part in ('lateness="1m" and emit="retract"', ".window(pen.running())", 'emit="append" there'):
        assert part in text
    over(s.sessions, lateness="1m", emit="retract")
    over(s.sessions, shape=pen.running())
    once = s.timed.key_by("user").window(pen.session("1m"), lateness="1m", emit="append").aggregate(n=pen.count(), name="once")
    over(once)


def test_sessions_over_what_can_be_withdrawn_take_another_window_or_results_sent_once(s: Streams) -> None:
    def results(emit: str) -> Stream:
        windows = s.timed.key_by("user").window(pen.tumbling("1m"), lateness="1m", emit=emit)
        return windows.aggregate(n=pen.count(), name="n").select("user", "n")

    def over(stream: Stream, shape: Any) -> Stream:
        return stream.key_by("n").window(shape, lateness="1m", emit="retract").aggregate(r=pen.count(), name="r")

    text = shown("session.of-retractions", lambda: over(results("retract"), pen.session("5m")))
    assert "pen.tumbling" in text
    over(results("retract"), pen.tumbling("5m"))
    (emit,) = argument(text)
    over(results(emit), pen.session("5m"))


def test_what_came_since_of_rows_that_can_be_withdrawn_is_said_by_withdrawing(s: Streams) -> None:
    def over(emit: str) -> Stream:
        return s.retractions.key_by("n").window(pen.running(), emit=emit).aggregate(r=pen.count(), name="r")

    (emit,) = argument(shown("emit.delta", lambda: over("delta")))
    over(emit)


def test_rows_that_can_be_withdrawn_are_aggregated_instead_of_reduced(s: Streams) -> None:
    keyed = s.retractions.key_by("n")
    assert "Use aggregate" in shown("reduce.of-retractions", lambda: keyed.reduce(lambda a, b: a, name="r"))
    keyed.aggregate(r=pen.count(), name="r")


# The greatest rows.

SOLD = [
    {"user": user, "price": price, "at": datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC)}
    for second, (user, price) in enumerate([("ann", 3), ("bob", 5), ("ann", 7), ("cid", 1)])
]


def sold(steps: Callable[[Stream], Stream]) -> list[dict[str, Any]]:
    """What a job sends of what was sold, after these steps."""
    p, out = pen.Pipeline("sold"), sinks.memory("sold")
    out.clear()
    rows = p.read(sources.memory(SOLD, schema="user string, price bigint, at timestamp"))
    steps(rows.with_watermark("at", delay="0s").with_columns(each="struct(price as price, user as user)")).write(out)
    p.run(pen.Local(parallelism=1, restarts=0))
    return out.rows()


@pytest.mark.parametrize("count", [0, -3, 2.5, "3", True, None])
def test_the_greatest_are_counted(count: Any) -> None:
    (proposed,) = argument(shown("top.count", lambda: sold(lambda rows: rows.top(count, by="price", name="t"))))
    found = sold(lambda rows: rows.top(count=proposed, by="price", name="t"))
    assert [(row["rank"], row["price"]) for row in found] == [(1, 7), (2, 5), (3, 3), (4, 1)]


def test_the_greatest_go_by_a_part_that_has_an_order() -> None:
    (by,) = argument(shown("top.order", lambda: sold(lambda rows: rows.top(2, by="each", name="t"))))
    assert [row["price"] for row in sold(lambda rows: rows.top(2, by=by, name="t"))] == [7, 5]
    several = ["user", "each"]
    (by,) = argument(shown("top.order", lambda: sold(lambda rows: rows.top(2, by=several, ascending=[True, False], name="t"))))
    assert [row["price"] for row in sold(lambda rows: rows.top(2, by=by, ascending=[True, False], name="t"))] == [7, 3]
    (by,) = argument(shown("top.order", lambda: sold(lambda rows: rows.top(2, by=["user asc", "each"], name="t"))))
    assert [row["price"] for row in sold(lambda rows: rows.top(2, by=by, name="t"))] == [7, 3]


@pytest.mark.parametrize(
    "schema",
    ["v array<bigint>", "v array<struct<a: map<string, int>>>", "v map<string, int>", "v map<int, int>", "v struct<`a b`: int>"],
)
def test_each_type_has_something_that_has_an_order(schema: str) -> None:
    rows = pen.Pipeline("p").read(sources.memory([], schema=schema))
    (by,) = argument(shown("top.order", lambda: rows.top(3, by="v", name="t")))
    planned(rows.top(3, by=by, name="t"))


def test_null_has_an_order_once_it_has_a_type(s: Streams) -> None:
    (by,) = argument(shown("top.order", lambda: s.left.top(3, by="null", name="t")))
    planned(s.left.top(3, by=by, name="t"))


def counted(rows: Stream) -> Any:
    """How many each user bought; a row is withdrawn before the next."""
    return rows.key_by("user").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="n")


@pytest.mark.parametrize(("options", "best"), [({}, [2, 1]), ({"ascending": True}, 1)])
def test_the_greatest_of_rows_that_are_withdrawn_are_aggregated(options: dict[str, bool], best: Any) -> None:
    (code,) = code_of(shown("top.of-retractions", lambda: sold(lambda rows: counted(rows).top(2, by="n", name="t", **options))))
    assert sold(lambda rows: applied(counted(rows), code)) == [{"best": best}]
    by_user = sold(lambda rows: applied(counted(rows).key_by("user"), code))
    assert sorted(row["user"] for row in by_user) == ["ann", "bob", "cid"]


@pytest.mark.parametrize("window", [pen.session("1m"), pen.tumbling("1m", clock="processing")])
def test_the_greatest_are_those_of_a_window_that_is_proposed(window: Any) -> None:
    codes = code_of(shown("top.window", lambda: sold(lambda rows: rows.window(window).top(1, by="price", name="t"))))
    assert len(codes) == 2
    for code in codes:
        found = sold(lambda rows, code=code: applied(rows, code).top(1, by="price", name="t"))
        assert {row["price"] for row in found} == {7}


# Process functions.


def test_a_process_function_gets_changes_as_rows(s: Streams) -> None:
    (code,) = code_of(shown("process.of-changes", lambda: s.updates.key_by("user").process(Echo(), name="e")))
    applied(s.updates, code).key_by("user").process(Echo(), name="e")


def test_the_order_of_rows_is_event_time(s: Streams) -> None:
    (order,) = argument(shown("process.order", lambda: s.timed.key_by("user").process(Echo(), order="time", name="e")))
    s.timed.key_by("user").process(Echo(), order=order, name="e")


def test_a_state_forgets_by_the_time_of_day_or_by_event_time(s: Streams) -> None:
    class ByEvent(Echo):
        seen = pen.ValueState(int, ttl="1h", clock="event")

    class ByDay(Echo):
        seen = pen.ValueState(int, ttl="1h", clock="processing")

    text = shown("state.ttl-time", lambda: s.left.key_by("user").process(ByEvent(), name="e"))
    assert 'clock="processing"' in text
    s.left.key_by("user").process(ByDay(), name="e")
    (code,) = code_of(text)
    applied(s.left, code).key_by("user").process(ByEvent(), name="e")


class Both(pen.ProcessFunction):
    def on_left(self, row: Line, ctx: pen.Context) -> None: ...

    def on_right(self, row: Line, ctx: pen.Context) -> None: ...


def test_connected_streams_have_keys_and_time_alike(s: Streams) -> None:
    def connect(left: Any, right: Any) -> Stream:
        return left.connect(right).process(Both(), name="b")

    left, right = s.left.key_by("user"), s.right.key_by("user")
    assert "columns of the same types" in shown("connect.keys", lambda: connect(left, s.right.key_by("id")))
    (code,) = code_of(shown("connect.time", lambda: connect(left, s.timed_right.key_by("user"))))
    connect(left, right)
    connect(applied(s.left, code).key_by("user"), s.timed_right.key_by("user"))


# Joins and lookups.


def test_each_way_to_join_is_one(s: Streams) -> None:
    for within, ways in (("forever", 4), (("0s", "1m"), 6)):

        def join(how: str, within: Any = within) -> Stream:
            return s.timed.join(s.timed_right, on="id", within=within, how=how, name="j")

        hows = argument(shown("join.how", lambda join=join: join("outer")))  # type: ignore[misc]
        assert len(hows) == ways
        for how in hows:
            join(how)


def test_rows_that_are_replaced_are_withdrawn_and_joined_for_ever(s: Streams) -> None:
    top = s.left.top(2, by="price", name="best")
    (code,) = code_of(shown("keyed.of-top", lambda: top.join(s.right, on="user", within=("0s", "1m"), name="j")))
    applied(s.timed, code).top(2, by="price", name="top").join(s.timed_right, on="user", within=("0s", "1m"), name="j")
    text = shown("join.of-updates", lambda: s.updates.join(s.right, on="user", within=("0s", "1m"), name="j"))
    assert '.window(pen.running(), emit="retract")' in text
    (within,) = argument(text)
    s.retractions.join(s.right, on="user", within=within, name="j")


def test_rows_that_can_be_withdrawn_are_joined_for_ever(s: Streams) -> None:
    (within,) = argument(
        shown("join.of-retractions", lambda: s.retractions.join(s.right, on="user", within=("0s", "1m"), name="j"))
    )
    s.retractions.join(s.right, on="user", within=within, name="j")


@pytest.mark.parametrize(("left", "right"), [("id", "user"), ("user", "price"), ("at", "user")])
def test_a_key_of_another_type_is_cast(s: Streams, left: str, right: str) -> None:
    def join(stream: Stream) -> Stream:
        return s.left.join(stream, on={left: right}, within="forever", name="j")

    (code,) = code_of(shown("join.types", lambda: join(s.right)))
    join(applied(s.right, code))


def test_the_lower_bound_of_a_join_comes_first(s: Streams) -> None:
    (within,) = argument(
        shown("join.order-of-bounds", lambda: s.timed.join(s.timed_right, on="id", within=("5m", "-5m"), name="j"))
    )
    s.timed.join(s.timed_right, on="id", within=within, name="j")


def test_a_bound_of_a_thousand_years_is_for_ever(s: Streams) -> None:
    (within,) = argument(shown("join.longest", lambda: s.timed.join(s.timed_right, on="id", within=("0s", "999999d"), name="j")))
    s.timed.join(s.timed_right, on="id", within=within, name="j")


def test_both_sides_of_a_join_agree_on_windows(s: Streams) -> None:
    codes = code_of(shown("join.window", lambda: s.timed.join(s.timed_right, on="id", window=pen.session("1m"), name="j")))
    assert len(codes) == 3
    for code in codes:
        s.timed.join(s.timed_right, on="id", name="j", **arguments(code, pen=pen))


def test_the_age_of_the_other_row_is_positive(s: Streams) -> None:
    (tolerance,) = argument(shown("join.tolerance", lambda: s.timed.join_asof(s.timed_right, on="id", tolerance="-1s", name="j")))
    s.timed.join_asof(s.timed_right, on="id", tolerance=tolerance, name="j")


def users(s: Streams, **options: Any) -> Any:
    return s.p.table(sources.memory([{"id": 1, "code": "x"}]), key="id", **options)


def test_a_lookup_is_inner_or_left(s: Streams) -> None:
    hows = argument(shown("lookup.how", lambda: s.left.lookup(users(s), on="id", how="full")))
    assert hows == ["inner", "left"]
    for how in hows:
        s.left.lookup(users(s), on="id", how=how)


def test_a_lookup_names_a_column_for_each_of_the_key(s: Streams) -> None:
    (on,) = argument(shown("lookup.on", lambda: s.left.lookup(users(s), on={"price": "code"})))
    assert on == {"price": "id"}
    s.left.lookup(users(s), on=on)


def test_a_key_of_another_type_than_the_table_is_cast(s: Streams) -> None:
    def lookup(stream: Stream) -> Stream:
        return stream.lookup(users(s), on={"user": "id"})

    (code,) = code_of(shown("lookup.types", lambda: lookup(s.left)))
    lookup(applied(s.left, code))


def test_rows_that_are_replaced_are_kept_when_they_are_not_found(s: Streams) -> None:
    table = s.p.table(sources.memory([{"user": "a", "code": "x"}]), key="user")
    (how,) = argument(shown("lookup.of-updates", lambda: s.updates.lookup(table, on="user")))
    s.updates.lookup(table, on="user", how=how)


def test_rows_that_can_be_withdrawn_are_looked_up_in_a_table_that_stays(s: Streams) -> None:
    def lookup(**options: Any) -> Stream:
        table = s.p.table(sources.memory([{"user": "a", "code": "x"}]), key="user", **options)
        return s.retractions.lookup(table, on="user")

    assert "Leave refresh= of the table out" in shown("lookup.refresh", lambda: lookup(refresh="1m"))
    lookup()


# Columns and conditions.


def test_a_column_that_is_made_twice_has_two_names(s: Streams) -> None:
    (code,) = code_of(shown("column.twice", lambda: s.left.select("id", "price", "price")))
    assert s.left.select("id", "price", **arguments(code, col=pen.col)).schema.names == ["id", "price", "price_2"]


def test_the_key_by_which_rows_are_replaced_is_kept(s: Streams) -> None:
    (code,) = code_of(shown("column.key-lost", lambda: s.updates.select("n")))
    applied(s.updates, code.replace("…", '"n"'))


def test_the_key_by_which_rows_are_replaced_stays_what_it_is(s: Streams) -> None:
    text = shown("column.key-altered", lambda: s.updates.with_columns(user="upper(user)"))
    assert "user_2" in text
    s.updates.with_columns(user_2="upper(user)")


@pytest.mark.parametrize("condition", ["price", "price + 1", "user", "concat(user, 'x')", "at"])
def test_a_value_becomes_a_condition(s: Streams, condition: str) -> None:
    (code,) = code_of(shown("filter.condition", lambda: s.left.filter(condition)))
    applied(s.left, code)


def test_a_part_has_a_tag_of_its_own(s: Streams) -> None:
    (tag,) = code_of(shown("split.tag", lambda: s.left.split({"late": "price > 1"})))
    assert s.left.split({tag: "price > 1"})[tag]


def test_rows_that_are_replaced_are_filtered_into_parts(s: Streams) -> None:
    assert "Use filter" in shown("split.of-updates", lambda: s.updates.split({"many": "n > 1"}))
    s.updates.filter("n > 1")
    s.updates.filter("n <= 1")


def test_what_a_change_is_stands_in_a_column_of_another_name(s: Streams) -> None:
    (code,) = code_of(shown("as_rows.column", lambda: s.updates.as_rows(op="n")))
    assert applied(s.updates, code).schema.names == ["user", "n", "n_2"]


def test_a_sink_that_cannot_take_changes_has_three_ways_out(s: Streams, tmp_path: Any) -> None:
    files = sinks.files(tmp_path / "out")
    text = shown("write.of-changes", lambda: s.updates.write(files))
    for sink in (
        sinks.memory("m"),
        sinks.console(),
        sinks.foreach_batch(lambda rows, epoch: None),
        sinks.files(tmp_path / "changes", change="change"),
    ):
        assert type(sink).__name__[:5].lower() in text.replace("_", "")
        s.updates.write(sink)
    (code,) = code_of(text)
    applied(s.updates, code).write(files)
    assert 'emit="append"' in text
    s.timed.key_by("user").window(pen.tumbling("1m"), emit="append").aggregate(n=pen.count(), name="n").write(files)


def test_a_column_in_the_way_of_what_the_sink_is_told_is_renamed(s: Streams) -> None:
    named = s.retractions.rename({"n": "change"})
    (code,) = code_of(shown("write.change-column", lambda: named.write(sinks.console())))
    applied(named, code).write(sinks.console())


def test_whether_a_row_is_withdrawn_is_asked_of_plain_rows(s: Streams) -> None:
    (code,) = code_of(shown("op.of-retractions", lambda: s.retractions.with_columns(what=pen.op())))
    assert applied(s.retractions, code).schema.names[-1] == "op"


@pytest.mark.parametrize("name", ["__secret", "__"])
def test_a_reserved_name_is_proposed_without_its_underscores(s: Streams, name: str) -> None:
    text = shown("column.reserved", lambda: s.left.with_columns(**{name: "price"}))
    assert s.left.with_columns(**{text.rpartition(" ")[2]: "price"})


def test_a_column_that_the_result_would_have_twice_is_renamed_before(s: Streams) -> None:
    keyed = s.left.with_columns(n="price").key_by("n")
    text = shown("column.two", lambda: keyed.aggregate(n=pen.count(), name="c"))
    assert "n_2" in text
    s.left.with_columns(n_2="price").key_by("n_2").aggregate(n=pen.count(), name="c")
