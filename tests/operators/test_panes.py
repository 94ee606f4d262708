"""Cases that once went wrong in panes, sessions and what surrounds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

import penstock as pen
from penstock import col, sinks, sources, triggers
from penstock.protocol.messages import TimeReached
from runtime.rig import Collect, Rig, hand, table

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = count()
S = 1_000_000
Row = tuple[str, int, float]


def rows_of(
    build: Callable[[pen.Stream], pen.Stream], rows: list[Row], *, delay: str = "0s", **options: Any
) -> list[dict[str, Any]]:
    """What is left in a sink after all rows, one by one."""
    made = [{"k": k, "v": v, "at": START + timedelta(seconds=at)} for k, v, at in rows]
    p = pen.Pipeline("test", **options)
    stream = p.read(sources.memory(made, schema="k string, v bigint, at timestamp", batch=1)).with_watermark("at", delay=delay)
    out = sinks.memory(f"panes-{next(NAMES)}")
    build(stream).write(out)
    if options:
        p.dead_letters.write(sinks.memory(f"panes-dead-{next(NAMES)}"))
    p.run(pen.Local(restarts=0))
    return out.rows()


def test_a_session_that_ends_grows_and_ends_again_is_sent_once_each_time() -> None:
    rows = [("a", 1, 10.0), ("b", 1, 110.0)]
    rows += [("a", 1, float(t)) for t in (15, 24, 33, 42, 51, 60, 69, 78, 87, 96, 105, 110)]
    rows += [("b", 1, 125.0), ("b", 1, 250.0)]
    for emit in ("retract", "delta"):
        changes = rows_of(
            lambda s, emit=emit: (
                s.key_by("k")  # type: ignore[misc]
                .window(pen.session("10s"), lateness="100s", emit=emit)
                .aggregate(n=pen.count(), name="sessions")
                .as_rows()
            ),
            rows,
            delay="90s",
        )
        assert max(Counter((row["k"], row["n"], row["op"]) for row in changes if row["k"] == "a").values()) == 1, emit


@pytest.mark.parametrize(("emit", "expected"), [("delta", [2, 1]), ("update", [2, 3])])
def test_an_alarm_that_moved_forward_and_back_rings_once(emit: str, expected: list[int]) -> None:
    both = triggers.repeatedly(triggers.after_all(triggers.after_count(2), triggers.after_time("3s")))
    trigger = triggers.after_any(both, triggers.repeatedly(triggers.after_time("10s")))
    p, sink = pen.Pipeline("test"), Collect()
    window = hand(p).with_watermark("at", delay="0s").key_by("k").window(pen.tumbling("1h"), trigger=trigger, emit=emit)
    window.aggregate(n=pen.count(), name="w").write(sink)
    rig = Rig(p.plan(), own_time=True)
    for clock, fed in ((100, 1), (101, 1), (103, 0), (104, 1), (110, 0), (130, 0)):
        for task in rig.tasks.values():
            rig.tell(task, TimeReached(clock * S))
        if fed:
            rig.feed(table([{"k": "a", "at": 5 * S}]))
    assert [row["n"] for row in sink.rows] == expected


def test_keys_without_rows_are_forgotten_also_where_time_fires() -> None:
    p, sink = pen.Pipeline("test"), Collect()
    keyed = hand(p).with_watermark("at", delay="0s").key_by("k")
    last = keyed.window(pen.running(), emit="retract").aggregate(s=col("s").last(), name="last")
    last.key_by("s").window(pen.running(), trigger="10s", emit="update").aggregate(n=pen.count(), name="counts").write(sink)
    rig = Rig(p.plan(), own_time=True)
    for turn in range(20):
        for task in rig.tasks.values():
            rig.tell(task, TimeReached((100 + 20 * turn) * S))
        rig.feed(table([{"k": "a", "s": f"variant-{turn}", "at": turn * S}]))
    for task in rig.tasks.values():
        rig.tell(task, TimeReached(10_000 * S))
    panes = [op for task in rig.tasks.values() for op in task._ops.values() if op.name == "counts" and "panes" in op.states]
    assert sum(batch.num_rows for op in panes for batch in op.states["panes"].scan()) == 1


class Total(pen.Aggregate):
    def create(self) -> int:
        return 0

    def add(self, acc: int, x: int) -> int:
        return acc + x

    def merge(self, a: int, b: int) -> int:
        return a + b

    def unmerge(self, a: int, b: int) -> int:
        return a - b

    def result(self, acc: int) -> int | None:
        return acc or None


def test_an_aggregate_of_the_users_own_may_have_nothing_to_say_of_a_window() -> None:
    found = rows_of(
        lambda s: s.key_by("k").window(pen.sliding("10s", every="5s")).aggregate(n=Total()(col("v")), name="t"),
        [("a", 5, 1.0), ("a", -5, 6.0), ("a", 3, 300.0)],
    )
    assert [row["n"] for row in found] == [5, None, -5, 3, 3]


def test_a_delete_is_not_computed_with() -> None:
    def shares(s: pen.Stream) -> pen.Stream:
        last = s.key_by("k").window(pen.running(), emit="retract").aggregate(v=col("v").last(), name="last")
        counts = last.key_by("v").window(pen.running(), emit="update").aggregate(n=pen.count(), name="counts")
        return counts.with_columns(share=pen.lit(100) / col("n")).filter("100 / n > 1")

    assert [(row["v"], row["share"]) for row in rows_of(shares, [("a", 1, 0.0), ("a", 2, 1.0)])] == [(2, 100.0)]


def test_what_fails_is_told_once_and_not_again_when_it_is_withdrawn() -> None:
    def ratios(s: pen.Stream) -> pen.Stream:
        last = s.key_by("k").window(pen.running(), emit="retract").aggregate(v=col("v").last(), name="last")
        return last.select("k", ratio="100 / v")

    assert rows_of(ratios, [("a", 0, 0.0), ("a", 4, 1.0)], on_error="dead-letter") == [{"k": "a", "ratio": 25.0}]
    assert sinks.memory(f"panes-dead-{next(NAMES) - 1}").rows()[0]["record"] == "{'k': 'a', 'v': 0}"
    assert len(sinks.memory(f"panes-dead-{next(NAMES) - 2}").rows()) == 1


def test_a_column_called_change_is_the_users_where_nothing_is_withdrawn() -> None:
    sums = rows_of(lambda s: s.key_by("k").aggregate(change=col("v").sum(), name="sums"), [("a", 5, 0.0), ("b", -7, 1.0)])
    assert sums == [{"k": "a", "change": 5}, {"k": "b", "change": -7}]


@pytest.mark.parametrize("name", ["sent", "trigger", "pane", "start", "end", "rows"])
def test_results_and_keys_may_be_called_like_what_is_kept(name: str) -> None:
    def build(s: pen.Stream) -> pen.Stream:
        keyed = s.with_columns(**{f"{name}_key": "k"}).rename({f"{name}_key": f"{name}.n"}).key_by(col(f"{name}.n"))
        window = keyed.window(pen.session("5s"), lateness="1h", emit="retract")
        return window.aggregate(col("v").sum().alias(name), n=pen.count(), name="w")

    assert [row[name] for row in rows_of(build, [("a", 1, 0.0), ("a", 2, 1.0)])] == [3]
    sizes = rows_of(
        lambda s: s.rename({"k": name}).key_by(name).window(pen.tumbling(rows=2)).aggregate(n=pen.count(), name="w"),
        [("a", 1, 0.0), ("a", 2, 1.0)],
    )
    assert [row["n"] for row in sizes] == [2]


def test_a_time_that_no_calendar_has_is_a_bad_row() -> None:
    p = pen.Pipeline("test", on_error="dead-letter")
    seconds = sources.memory([{"s": 10**13}, {"s": 5}, {"s": None}], schema="s bigint", name="wild")
    timed = p.read(seconds).with_columns(at=col("s").cast("timestamp")).with_watermark("at", delay="0s")
    out, dead = sinks.memory(f"panes-{next(NAMES)}"), sinks.memory(f"panes-{next(NAMES)}")
    timed.window(pen.tumbling("1d", timezone="Europe/Berlin")).aggregate(n=pen.count(), name="days").write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local(restarts=0))
    assert [row["n"] for row in out.rows()] == [1]
    assert len(dead.rows()) == 2


def test_a_duration_longer_than_time_is_refused() -> None:
    with pytest.raises(pen.PlanError, match="longer than all of time"):
        pen.session(timedelta(days=999_999_999))


def test_a_row_within_of_one_that_passed_is_a_duplicate_even_if_the_watermark_is_further() -> None:
    rows = [("a", 1, 0.0), ("z", 1, 10.000001), ("a", 2, 5.0)]
    assert [row["v"] for row in rows_of(lambda s: s.drop_duplicates("k", within="10s", name="d"), rows)] == [1, 1]
