"""What the API says about windows, triggers and changes: errors with their fix, and small pipelines run to their end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import col, sinks, sources, triggers

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [("ann", 1, 10), ("bob", 2, 20), ("ann", 3, 30), ("ann", 12, 40), ("bob", 14, 50)]


def events(rows: list[tuple[str, int, int]] = ROWS, *, batch: int = 1) -> pen.Stream:
    made = [{"user": user, "at": START + timedelta(seconds=at), "v": v} for user, at, v in rows]
    source = sources.memory(made, schema="user string, at timestamp, v bigint", batch=batch)
    return pen.Pipeline("test").read(source).with_watermark("at", delay="0s")


def sessions(emit: str) -> pen.Stream:
    window = events().key_by("user").window(pen.session("5s"), trigger=triggers.after_watermark(early=2), emit=emit)
    return window.aggregate(n=pen.count(), name="sessions")


def ever(emit: str = "retract") -> pen.Stream:
    return events().key_by("user").window(pen.running(), emit=emit).aggregate(n=pen.count(), high=col("v").max(), name="ever")


def rows_of(stream: pen.Stream, name: str) -> list[dict[str, Any]]:
    sink = sinks.memory(f"event-time-{name}")
    sink.clear()
    stream.write(sink).run(pen.Local())
    return sink.rows()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lateness without emit": (lambda: events().key_by("user").window(pen.tumbling("10s"), lateness="1s"), 'Write: emit="update"'),
    "a trigger without emit": (lambda: events().key_by("user").window(pen.tumbling("10s"), trigger="1s"), 'Write: emit="update"'),
    "append with a trigger": (
        lambda: events().window(pen.tumbling("10s"), trigger=2, emit="append").aggregate(n=pen.count(), name="x"),
        "nothing for trigger= to say",
    ),
    "running and append": (
        lambda: events().window(pen.running(), emit="append").aggregate(n=pen.count(), name="x"),
        "never closes",
    ),
    "complete windows": (
        lambda: events().window(pen.tumbling("10s"), emit="complete").aggregate(n=pen.count(), name="x"),
        "grows for ever",
    ),
    "an unknown emit": (
        lambda: events().window(pen.tumbling("10s"), emit="upsert").aggregate(n=pen.count(), name="x"),
        "is not known",
    ),
    "lateness by the clock": (
        lambda: (
            events()
            .window(pen.tumbling("10s", clock="processing"), lateness="1s", emit="update")
            .aggregate(n=pen.count(), name="x")
        ),
        "lateness is about event time",
    ),
    "a trigger for a window of rows": (
        lambda: events().window(pen.tumbling(rows=3), trigger=2, emit="update").aggregate(n=pen.count(), name="x"),
        "when it is full",
    ),
    "parts of what is withdrawn": (
        lambda: ever().window(pen.running(), emit="delta").aggregate(n=pen.count(), name="x"),
        'Write: emit="retract"',
    ),
    "windows of rows that are withdrawn": (
        lambda: ever().window(pen.tumbling(rows=3)).aggregate(n=pen.count(), name="x"),
        "can be withdrawn",
    ),
    "aggregating what replaces": (
        lambda: ever("update").window(pen.running()).aggregate(n=pen.count(), name="x"),
        'emit="retract"',
    ),
    "sessions that move": (
        lambda: sessions("retract").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="x"),
        "may find one of them late",
    ),
    "sketches of what is withdrawn": (
        lambda: ever().window(pen.running()).aggregate(u=col("user").count_distinct(approx=True), name="x"),
        "count_distinct()",
    ),
    "the clock's windows have no event time": (
        lambda: (
            events()
            .window(pen.tumbling("10s", clock="processing"))
            .aggregate(n=pen.count(), name="x")
            .window(pen.tumbling("10s"))
            .aggregate(n=pen.count(), name="y")
        ),
        "needs event time",
    ),
    "a pane of no window": (lambda: events().with_columns(i=pen.pane("index")), "pane() tells"),
    "an unknown part of a pane": (lambda: pen.pane("colour"), "a firing has 'index'"),
    "op of rows that stay": (lambda: events().with_columns(o=pen.op()), "op() tells"),
    "splitting what replaces": (lambda: ever("update").split({"a": "n > 1"}), "Use filter"),
    "a change column of the user": (
        lambda: ever().rename({"n": "change"}).write(sinks.memory("event-time-none")),
        "which rows are withdrawn",
    ),
    "a zone for sliding windows": (lambda: pen.sliding("1h", every="1m", timezone="Europe/Berlin"), "timezone"),
    "not a shape": (lambda: events().key_by("user").window("10s"), "pen.tumbling"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_with_a_fix(name: str) -> None:
    build, fix = REFUSED[name]
    with pytest.raises(pen.PlanError) as refused:
        build()
    assert fix in str(refused.value)


def test_the_whole_result_leaves_out_what_is_gone() -> None:
    per_user = events().key_by("user").window(pen.running(), emit="retract").aggregate(high=col("v").max(), name="high")
    counts = per_user.key_by("high").window(pen.running(), emit="complete").aggregate(users=pen.count(), name="users")
    assert sorted((row["high"], row["users"]) for row in rows_of(counts, "complete")) == [(40, 1), (50, 1)]


def test_a_filter_deletes_what_no_longer_fits() -> None:
    counts = events().key_by("user").aggregate(n=pen.count(), name="n")
    assert rows_of(counts.filter("n < 3"), "filter") == [{"user": "bob", "n": 2}]
    by_function = events().key_by("user").aggregate(n=pen.count(), name="n").filter(lambda row: row.n < 3)
    assert rows_of(by_function, "filter-function") == [{"user": "bob", "n": 2}]


def test_streams_of_which_one_can_withdraw_unite() -> None:
    counts = events().key_by("user").aggregate(n=pen.count(), name="n")
    few, many = counts.filter("n < 3").select("user", "n"), counts.select("user", "n")
    assert few.union(many).schema.names == ["user", "n"]


def test_changes_become_rows() -> None:
    changes = [(row["user"], row["n"], row["op"]) for row in rows_of(ever().select("user", "n").as_rows(), "as-rows")]
    assert changes[:3] == [("ann", 1, "insert"), ("bob", 1, "insert"), ("ann", 1, "delete")]
    assert changes.count(("ann", 3, "insert")) == 1
    assert {op for _, _, op in changes} == {"insert", "delete"}


def test_files_say_which_rows_are_withdrawn_in_a_column_of_the_users_choice(tmp_path: Path) -> None:
    stream = ever().rename({"n": "change"})
    stream.write(sinks.files(tmp_path / "out", format="json", change="kind")).run(pen.Local())
    lines = [json.loads(line) for path in tmp_path.glob("out/epoch=*/part-*") for line in path.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {1, -1}
    assert sum(line["kind"] for line in lines if line["user"] == "ann") == 1
    with pytest.raises(pen.PlanError, match="column 'high'"):
        ever().write(sinks.files(tmp_path / "other", format="json", change="high"))


def test_panes_are_numbered_and_timed() -> None:
    window = events().key_by("user").window(pen.tumbling("10s"), trigger=triggers.after_watermark(early=1), emit="delta")
    panes = window.aggregate(n=pen.count(), name="panes").select(
        "user", i=pen.pane("index"), timing=pen.pane("timing"), first=pen.pane("first"), last=pen.pane("last")
    )
    found = [tuple(row.values()) for row in rows_of(panes, "panes") if row["user"] == "ann"]
    assert found == [("ann", 0, "early", True, False), ("ann", 1, "early", False, False), ("ann", 0, "early", True, False)]


def test_short_forms_are_windows() -> None:
    assert [row["n"] for row in rows_of(events().count_by_window("10s", name="n"), "count")] == [3, 2]
    values = events().select("user").count_by_value_and_window("10s", name="values")
    assert sorted((row["user"], row["n"]) for row in rows_of(values, "values")) == [
        ("ann", 1),
        ("ann", 2),
        ("bob", 1),
        ("bob", 1),
    ]
    sums = events().select("v").reduce_by_window(lambda a, b: a.replace(v=a.v + b.v), "10s", every="5s", name="sums")
    assert [row["v"] for row in rows_of(sums, "sums")] == [60, 60, 90, 90]
    plus, minus = (lambda a, b: a.replace(v=a.v + b.v)), (lambda a, b: a.replace(v=a.v - b.v))
    for inverse in (None, minus):
        by_user = (
            events()
            .select("user", "v")
            .reduce_by_key_and_window(plus, "10s", by="user", every="5s", inverse=inverse, name="by-user")
        )
        assert sorted((row["user"], row["v"]) for row in rows_of(by_user, "by-user")) == [
            ("ann", 40), ("ann", 40), ("ann", 40), ("ann", 40), ("bob", 20), ("bob", 20), ("bob", 50), ("bob", 50),
        ]  # fmt: skip


def test_late_rows_of_a_reduce_are_there_for_every_window() -> None:
    stream = events([("ann", 1, 1), ("ann", 30, 2), ("ann", 2, 3)])
    best = stream.key_by("user").window(pen.session("5s")).reduce(lambda a, b: a if a.v > b.v else b, name="best")
    assert rows_of(best.late.select("v"), "late") == [{"v": 3}]
