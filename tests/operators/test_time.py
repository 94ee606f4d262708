"""Event time and watermarks: where rows get their time, how far it is, and which rows are refused."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import col, sinks, sources
from penstock.errors import PlanError, RowError
from penstock.protocol.messages import TIME_MIN, SplitIdle, TimeReached
from runtime.rig import Collect, Rig, hand, table

S = 1_000_000
HOUR = 3600 * S


def timed(at: Any = "at", *, on_error: str = "fail", splits: tuple[str, ...] = ("s0",), **options: Any) -> tuple[Rig, Any, Any]:
    """A pipeline that shows each row's event time; its output and its dead letters."""
    out, dead = Collect("out"), Collect("dead")
    p = pen.Pipeline("timed", on_error=on_error)
    hand(p, names=splits).with_watermark(at, **options).select("k", "i", when=pen.event_time()).write(out)
    if on_error == "dead-letter":
        p.dead_letters.write(dead)
    return Rig(p.plan()), out, dead


def rows(*times: float | None, **more: Any) -> pa.RecordBatch:
    """Rows at these seconds, numbered."""
    return table({"k": "a", "i": i, "at": None if t is None else int(t * S), **more} for i, t in enumerate(times))


def reached(rig: Rig, split: str = "s0") -> int:
    return rig.reader("hand", split).split_time("hand", split)


def whens(out: Collect) -> list[float]:
    return [row["when"].timestamp() for row in out.rows]


# --- where a row gets its time ----------------------------------------------------------------------------------------


def test_the_watermark_is_the_greatest_time_less_the_delay_and_a_microsecond() -> None:
    rig, out, _ = timed(delay="5s")
    rig.feed(rows(100, 90, 95))
    assert reached(rig) == 95 * S - 1
    assert whens(out) == [100, 90, 95]
    rig.feed(rows(20))
    assert reached(rig) == 95 * S - 1


def test_a_delay_of_zero_is_for_times_that_never_go_back_and_may_be_equal() -> None:
    rig, _, _ = timed(delay="0s")
    rig.feed(rows(100))
    assert reached(rig) == 100 * S - 1  # another row at 100 would not be late


@pytest.mark.parametrize(
    "at",
    [
        col("at") + timedelta(seconds=60),
        "cast(cast(at as bigint) + 60 as timestamp)",
        lambda row: row.at + timedelta(seconds=60),
    ],
    ids=["expression", "sql", "function"],
)
def test_time_comes_from_an_expression_or_a_function_of_the_row(at: Any) -> None:
    rig, out, _ = timed(at, delay="0s")
    rig.feed(rows(40, 10))
    assert whens(out) == [100, 70]
    assert reached(rig) == 100 * S - 1


def test_a_function_may_be_the_only_reader_of_a_column() -> None:
    p, out = pen.Pipeline("only"), Collect()
    at = hand(p).with_watermark(lambda row: datetime.fromtimestamp(row.j, UTC), delay="0s")
    at.select(when=pen.event_time()).write(out)
    rig = Rig(p.plan())
    rig.feed(table([{"j": 7}]))
    assert whens(out) == [7]


def returns(value: Any) -> Any:
    return lambda row: row.at if row.i == 0 else value(row)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("at", "the event time 'at' is null"),
        ("cast(s as timestamp)", "a string that is no timestamp"),
        (returns(lambda row: None), "is null"),
        (returns(lambda row: 1 // 0), "ZeroDivisionError"),
        (returns(lambda row: datetime(2026, 1, 1)), "a datetime without time zone"),
        (returns(lambda row: 12), "expected timestamp, and found int"),
    ],
    ids=["null column", "failing expression", "None", "raises", "naive", "no time"],
)
def test_a_row_without_a_time_is_a_bad_row_and_the_others_are_unaffected(at: Any, why: str) -> None:
    made = table([{"i": 0, "at": 100 * S, "s": "1970-01-01 00:01:40"}, {"i": 1, "at": None, "s": "yesterday"}])
    rig, out, dead = timed(at, delay="0s", on_error="dead-letter")
    rig.feed(made)
    assert [row["i"] for row in out.rows] == [0]
    assert reached(rig) == 100 * S - 1
    (letter,) = dead.rows
    assert why in letter["error"]
    assert (letter["source"], letter["split"]) == ("hand", "s0")
    strict, _, _ = timed(at, delay="0s")
    with pytest.raises(RowError, match="cannot process a row of source 'hand'"):
        strict.feed(made)


def test_a_batch_of_bad_rows_moves_nothing() -> None:
    rig, out, dead = timed(delay="0s", on_error="dead-letter")
    rig.feed(rows(None, None))
    assert (len(out.rows), len(dead.rows), reached(rig)) == (0, 2, TIME_MIN)


def test_times_before_1970_and_at_the_ends_of_the_calendar() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    rig, out, _ = timed(delay="1d")
    rig.feed(table([{"at": first}]))
    early = reached(rig)
    assert TIME_MIN < early < -62_135_596_800 * S
    rig.feed(table([{"at": last}]))
    assert reached(rig) == 253_402_300_800 * S - 1 - 86_400 * S - 1
    assert [row["when"] for row in out.rows[1:]] == [last]


# --- rows that say themselves how far time is ---------------------------------------------------------------------------


def marked(*times: tuple[float, bool]) -> pa.RecordBatch:
    return table({"i": i, "at": int(t * S), "b": last} for i, (t, last) in enumerate(times))


@pytest.mark.parametrize(
    "punctuated",
    [lambda row: row.at if row.b else None, "case when b then at end", pen.when(col("b"), col("at"))],
    ids=["function", "sql", "expression"],
)
def test_a_punctuation_moves_the_watermark_to_its_time_and_nothing_else_does(punctuated: Any) -> None:
    rig, out, _ = timed(punctuated=punctuated)
    rig.feed(marked((10, False), (50, False)))
    assert reached(rig) == TIME_MIN
    rig.feed(marked((20, True), (60, False)))
    assert reached(rig) == 20 * S
    rig.feed(marked((15, True)))
    assert reached(rig) == 20 * S  # never back
    assert whens(out) == [10, 50, 20, 60, 15]


def test_rows_behind_a_punctuation_in_the_same_batch_are_not_late_and_in_the_next_they_are() -> None:
    p, out, late = pen.Pipeline("marks"), Collect("out"), Collect("late")
    counts = (
        hand(p)
        .with_watermark("at", punctuated="case when b then at end")
        .key_by("k")
        .window(pen.tumbling("10s"))
        .aggregate(n=pen.count(), name="counts")
    )
    counts.write(out)
    counts.late.write(late)
    rig = Rig(p.plan())
    rig.feed(marked((1, False), (15, True), (2, False)))
    assert [row["n"] for row in out.rows] == [2]
    rig.feed(marked((3, False)))
    assert [row["at"].timestamp() for row in late.rows] == [3]


def test_a_window_closes_by_a_punctuation_at_its_last_moment_and_not_a_microsecond_earlier() -> None:
    p, out = pen.Pipeline("edge"), Collect()
    shape = hand(p).with_watermark("at", punctuated="case when b then at end").key_by("k").window(pen.tumbling("10s"))
    shape.aggregate(n=pen.count(), name="counts").write(out)
    rig = Rig(p.plan())
    rig.feed(table([{"k": "a", "at": 10 * S - 2, "b": True}]))
    assert out.rows == []
    rig.feed(table([{"k": "a", "at": 10 * S - 1, "b": True}]))
    assert [row["n"] for row in out.rows] == [2]


def test_a_punctuation_that_fails_is_a_bad_row() -> None:
    rig, out, dead = timed(punctuated=lambda row: row.at if row.i else 1 // 0, on_error="dead-letter")
    rig.feed(rows(10, 20))
    assert ([row["i"] for row in out.rows], reached(rig)) == ([1], 20 * S)
    assert "ZeroDivisionError" in dead.rows[0]["error"]


# --- too far ahead ----------------------------------------------------------------------------------------------------


def tell_time(rig: Rig, now: float) -> None:
    for task in rig.tasks.values():
        rig.tell(task, TimeReached(int(now * S)))


def test_a_row_too_far_in_the_future_is_a_bad_row_and_does_not_move_the_watermark() -> None:
    rig, out, dead = timed(delay="0s", max_ahead="1h", on_error="dead-letter")
    tell_time(rig, 1000)
    rig.feed(rows(900, 4600, 4600.000001, 1_700_000_000_000))
    # An hour is not more than an hour; the last are milliseconds taken for seconds, a year that Python does not know.
    assert whens(out) == [900, 4600]
    assert reached(rig) == 4600 * S - 1
    assert dead.rows[0]["error"] == "the event time 'at' is 3600 s in the future, and max_ahead is 1h"
    assert len(dead.rows) == 2
    tell_time(rig, 1001)
    rig.feed(rows(4601))
    assert reached(rig) == 4601 * S - 1


def test_a_row_too_far_in_the_future_stops_a_job_that_does_not_set_bad_rows_aside() -> None:
    rig, _, _ = timed(delay="0s", max_ahead="1h")
    tell_time(rig, 1000)
    with pytest.raises(RowError, match="max_ahead is 1h"):
        rig.feed(rows(4602))


def test_a_punctuation_too_far_in_the_future_is_a_bad_row_too() -> None:
    rig, out, dead = timed(punctuated=lambda row: row.at + timedelta(hours=row.i), max_ahead="90m", on_error="dead-letter")
    tell_time(rig, 1000)
    rig.feed(rows(1000, 1000, 1000))
    assert ([row["i"] for row in out.rows], len(dead.rows)) == ([0, 1], 1)
    assert reached(rig) == 1000 * S + HOUR


def test_a_runner_tells_the_time_of_day_before_the_first_row() -> None:
    now = datetime.now(UTC)
    made = [{"at": now - timedelta(days=1)}, {"at": now + timedelta(minutes=30)}, {"at": now + timedelta(days=1)}]
    p, out, dead = pen.Pipeline("today", on_error="dead-letter"), sinks.memory("today"), sinks.memory("tomorrow")
    p.read(sources.memory(made, schema="at timestamp")).with_watermark("at", delay="0s", max_ahead="1h").write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local())
    assert [row["at"] for row in out.rows()] == [made[0]["at"], made[1]["at"]]
    assert len(dead.rows()) == 1


def test_without_max_ahead_one_clock_that_runs_fast_makes_the_others_late() -> None:
    p, out, late = pen.Pipeline("fast"), Collect("out"), Collect("late")
    counts = hand(p).with_watermark("at", delay="0s").key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="c")
    counts.write(out)
    counts.late.write(late)
    rig = Rig(p.plan())
    rig.feed(rows(10**9))
    rig.feed(rows(5))
    assert len(late.rows) == 1


# --- several splits ---------------------------------------------------------------------------------------------------


def counting(splits: int, *, late: Collect | None = None, out: Collect | None = None) -> Any:
    p = pen.Pipeline("counting")
    stream = hand(p, names=tuple(f"s{n}" for n in range(splits))).with_watermark("at", delay="2s", idle_after="1s")
    counts = stream.key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts")
    counts.write(out or Collect("out"))
    counts.late.write(late or Collect("late"))
    return p.plan()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_one_lagging_split_of_ten_never_loses_a_row(parallelism: int) -> None:
    out, late = Collect("out"), Collect("late")
    rig = Rig(counting(10, out=out, late=late), parallelism)
    for second in range(200):
        for split in range(9):
            rig.feed(rows(1000 + second), split=f"s{split}")
        if second % 3 == 0:  # ever further behind
            rig.feed(rows(second / 3), split="s9")
    rig.end()
    assert late.rows == []
    assert sum(row["n"] for row in out.rows) == 200 * 9 + 67


def test_an_idle_split_holds_nobody_back_and_a_resumed_one_counts_once_it_is_not_behind() -> None:
    out, late = Collect("out"), Collect("late")
    rig = Rig(counting(2, out=out, late=late))
    rig.feed(rows(5), split="s1")
    rig.feed(rows(25), split="s0")
    assert out.rows == []  # s1 may still have rows of the first window
    rig.tell(rig.reader("hand", "s1"), SplitIdle("hand", "s1"))
    assert [row["n"] for row in out.rows] == [1]
    rig.feed(rows(6, 24), split="s1")  # back, with a row that is late now
    assert [row["at"].timestamp() for row in late.rows] == [6]
    assert rig.reader("hand", "s1").split_time("hand", "s1") == 22 * S - 1
    rig.feed(rows(45), split="s0")
    assert [row["n"] for row in out.rows] == [1]  # it counts again: the time is 22, and the second window is open
    rig.feed(rows(33), split="s1")
    assert [row["n"] for row in out.rows] == [1, 2]
    rig.end()
    assert sum(row["n"] for row in out.rows) + len(late.rows) == 6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 3, 5]))
def test_time_never_goes_back_whatever_happens_to_splits_and_whoever_reads_them(seed: int, splits: int) -> None:
    """Random reads, idleness and restores at another parallelism: no split and no key group ever hears an earlier time, and every
    row is in the result or in `late`, once."""
    rng = random.Random(seed)
    out, late = Collect("out"), Collect("late")
    plan = counting(splits, out=out, late=late)
    rig, fed, epoch = Rig(plan, rng.randrange(1, 4)), 0, 0
    of_splits: dict[str, int] = {}
    of_groups = [TIME_MIN] * plan.max_parallelism
    for _ in range(40):
        split = f"s{rng.randrange(splits)}"
        match rng.choices(["feed", "idle", "restore"], [6, 2, 1])[0]:
            case "feed":
                times = [rng.randrange(0, 200) for _ in range(rng.randrange(1, 4))]
                rig.feed(table({"k": rng.choice("abcd"), "at": t * S} for t in times), split=split)
                fed += len(times)
            case "idle":
                rig.tell(rig.reader("hand", split), SplitIdle("hand", split))
            case "restore":
                epoch += 1
                cut = rig.barrier(epoch)
                rig = Rig(plan, rng.randrange(1, 4), cut=cut, files=rig.files)
        for name in (f"s{n}" for n in range(splits)):
            time = rig.reader("hand", name).split_time("hand", name)
            assert time >= of_splits.get(name, TIME_MIN), f"split {name} went back"
            of_splits[name] = time
        for task in (t for t in rig.tasks.values() if not t.stage.sources):
            op = next(op for op in task.stage.ops if op.name == "counts")
            for group in task.site.groups:
                assert task._times[op.id].time >= of_groups[group], f"key group {group} went back"
                of_groups[group] = task._times[op.id].time
    rig.end()
    assert sum(row["n"] for row in out.rows) + len(late.rows) == fed


# --- what cannot be meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "options", "message"),
    [
        ("at", {}, 'Write: delay="5s", or delay="0s"'),
        ("at", {"delay": "5s", "punctuated": lambda row: row.at}, "Leave one of them out"),
        ("at", {"delay": "-5s"}, 'delay=-5s is negative\n  Write: delay="5s"'),
        ("at", {"delay": "5s", "idle_after": "-1s"}, "idle_after=-1s is negative"),
        ("at", {"delay": "5s", "max_ahead": "-1s"}, "max_ahead=-1s is negative"),
        ("at", {"delay": "5s", "align": "g", "drift": "-1s"}, "drift=-1s is negative"),
        ("at", {"delay": "5s", "drift": "1m"}, 'no group is named\n  Name it. Write: align="group"'),
        ("at", {"delay": "5s", "align": "g"}, "align='g' needs to know how far apart splits may be\n  Write: drift=\"1m\""),
        ("at", {"delay": 5}, 'delay=5 has no unit\n  If seconds are meant, say so. Write: delay="5s"'),
        (
            "i",
            {"delay": "5s"},
            "event time needs a timestamp, and 'i' is bigint\n  Make one of it. Write: .with_columns(i=\"cast(i as timestamp)\")",
        ),
        ("i + 1", {"delay": "5s"}, 'Write: "cast(i + 1 as timestamp)"'),
        ("at", {"punctuated": "i"}, "a punctuation needs a timestamp, and 'i' is bigint"),
        ("nowhere", {"delay": "5s"}, "nowhere"),
        (7, {"delay": "5s"}, "7 is neither a column, an expression nor a function"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_fix(at: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        hand(pen.Pipeline("wrong")).with_watermark(at, **options)
    assert message in str(error.value)
    assert "test_time.py" in str(error.value)


def test_explain_says_how_time_is_told() -> None:
    def mark(row: pen.Row) -> datetime | None:
        return None

    stream = hand(pen.Pipeline("told"))
    told = stream.with_watermark("at", delay="5s", max_ahead="1h", align="both", drift="1m").explain()
    assert "watermark at - 5s, at most 1h ahead, within 1m of 'both'" in told
    assert "watermark at, punctuated by mark" in stream.with_watermark("at", punctuated=mark).explain()
