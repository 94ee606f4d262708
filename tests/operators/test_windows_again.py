"""Windows of windows: what was made of a window is keyed by its bounds and windowed again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import penstock as pen
from penstock import sinks, sources

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ITEMS = "aabacbbbc"  # one a second
MOST = {2: ("a", 2), 4: ("a", 3), 6: ("b", 2), 8: ("b", 3), 10: ("b", 2), 12: ("c", 1)}  # of the four seconds up to then


def counts() -> pen.Stream:
    rows = [{"item": item, "at": NOON + timedelta(seconds=second)} for second, item in enumerate(ITEMS)]
    stream = pen.Pipeline("again").read(sources.memory(rows, schema="item string, at timestamp", batch=2))
    keyed = stream.with_watermark("at", delay="0s").key_by("item")
    return keyed.window(pen.sliding("4s", every="2s")).aggregate(n=pen.count(), name="counts")


def rows_of(stream: pen.Stream) -> list[dict[str, Any]]:
    out = sinks.memory("again")
    out.clear()
    stream.write(out).run(pen.Local(restarts=0))
    return out.rows()


def second(at: datetime) -> int:
    return at.second


def test_the_counts_of_one_window_meet_when_they_are_keyed_by_its_end_and_windowed_again() -> None:
    found = rows_of(counts().key_by("window_end").window(pen.tumbling("2s")).aggregate(n="max(n)", name="most"))
    assert {second(row["window_end"]): row["n"] for row in found} == {end: n for end, (_, n) in MOST.items()}
    assert all(row["window_end_2"] == row["window_end"] for row in found)
    assert all(row["window_start_2"] == row["window_end"] - timedelta(seconds=2) for row in found)


def test_so_they_do_where_results_are_updated_and_where_the_new_windows_are_of_rows() -> None:
    keyed = counts().key_by("window_start", "window_end")
    updated = rows_of(keyed.window(pen.tumbling("1m"), emit="update").aggregate(n="max(n)", name="most"))
    keyed = counts().key_by("window_start", "window_end")
    assert {second(row["window_end"]): row["n"] for row in updated} == {end: n for end, (_, n) in MOST.items()}
    assert {row["window_end_2"] for row in updated} == {NOON + timedelta(minutes=1)}
    pairs = rows_of(keyed.window(pen.tumbling(rows=2)).aggregate(n="sum(n)", name="pairs"))
    assert sum(row["n"] for row in pairs) == sum(row["n"] for row in rows_of(counts()))
    assert all(row["window_end_2"] <= 4 for row in pairs)


def greater(left: pen.Row, right: pen.Row) -> pen.Row:
    return max(left, right, key=lambda row: (row.n, [-ord(row.item)]))


def test_a_reduce_over_windows_says_of_which_window_its_row_is_and_not_of_which_it_was() -> None:
    by_end = rows_of(counts().key_by("window_end").window(pen.tumbling("2s")).reduce(greater, name="best"))
    found = {second(row["window_end_2"]): (row["item"], row["n"]) for row in by_end}
    assert {end: n for end, (_, n) in found.items()} == {end: n for end, (_, n) in MOST.items()}
    by_item = rows_of(counts().key_by("item").window(pen.tumbling("1m")).reduce(greater, name="best"))
    assert [(row["window_start"], row["window_end"]) for row in by_item] == [(NOON, NOON + timedelta(minutes=1))] * 3


def test_a_join_of_windows_over_windows_keeps_the_bounds_of_both() -> None:
    all_counts = counts()
    most = all_counts.key_by("window_end").window(pen.tumbling("2s")).aggregate(most="max(n)", name="most")
    joined = all_counts.join(most, on="window_end", window=pen.tumbling("2s"), name="hot").filter("n = most")
    found = {(second(row["window_end"]), row["item"]) for row in rows_of(joined)}
    assert {end for end, _ in found} == set(MOST)
    assert {(end, item) for end, (item, _) in MOST.items()} <= found
    assert {"window_start", "window_end", "window_start_2", "window_end_2"} <= set(joined.schema.names)


def test_a_stream_is_aggregated_reduced_and_ranked_over_all_its_rows() -> None:
    assert [row["n"] for row in rows_of(counts().aggregate(n="sum(n)", name="all"))] == [2 * len(ITEMS)]
    assert [(row["item"], row["n"]) for row in rows_of(counts().select("item", "n").reduce(greater, name="all"))] == [("a", 3)]
    best = rows_of(counts().top(2, by=["n", "window_end"], ascending=[False, True], name="all"))
    assert [(row["rank"], row["item"], second(row["window_end"])) for row in best] == [(1, "a", 4), (2, "b", 8)]
