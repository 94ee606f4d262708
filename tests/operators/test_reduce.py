"""`reduce`: rows go into the function and come back as they are, maps among them, and one that does not fit is one bad row."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources

SCHEMA = (
    "k string, n bigint, m map<string, bigint>, r struct<a: bigint, m: map<string, bigint>>,"
    " l array<map<string, bigint>>, mm map<string, map<string, bigint>>, at timestamp"
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(n: int) -> dict[str, Any]:
    tags: dict[str, int] = {"x": n}
    at = START + timedelta(seconds=n)
    return {"k": "ab"[n % 2], "n": n, "m": tags, "r": {"a": n, "m": tags}, "l": [tags, {}, None], "mm": {"o": tags}, "at": at}


ROWS = [row(n) for n in range(6)] + [{"k": "c", "n": 9, "at": START}]


def reduced(build: Callable[[pen.Stream], pen.Stream], **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a pipeline, and its dead letters."""
    with sinks.memory("reduced") as out, sinks.memory("refused") as refused:
        p = pen.Pipeline("reducing", **options)
        build(p.read(sources.memory(ROWS, schema=SCHEMA, batch=2)).with_watermark("at", delay="0s")).write(out)
        if options:
            p.dead_letters.write(refused)
        p.run(pen.Local(storage=tempfile.mkdtemp(), restarts=0))
        return sorted(out.table().to_pylist(maps_as_pydicts="strict"), key=lambda row: str(row["n"])), refused.rows()


def sums(a: pen.Row, b: pen.Row) -> pen.Row:
    """The later row, where the numbers of all maps are added up."""
    if a.m is None or b.m is None:
        return b
    both = {"x": a.m["x"] + b.m["x"]}
    assert a.m == a.r["m"] == a.l[0] == a.mm["o"], "maps are dicts, wherever they stand"
    return b.replace(m=both, r={"a": b.n, "m": both}, l=[both, {}, None], mm={"o": both})


@pytest.mark.parametrize("window", [None, pen.tumbling("1h"), pen.tumbling(rows=3), pen.session("1m")])
def test_rows_with_maps_at_any_depth_are_folded(window: Any) -> None:
    def build(s: pen.Stream) -> pen.Stream:
        keyed = s.filter("k <> 'c'").key_by("k")
        return (keyed if window is None else keyed.window(window)).reduce(sums, name="sums")

    found, _ = reduced(build)
    assert [(each["k"], each["n"], each["m"]) for each in found] == [("a", 4, {"x": 6}), ("b", 5, {"x": 9})]
    for each in found:
        assert each["r"] == {"a": each["n"], "m": each["m"]}
        assert each["l"] == [each["m"], {}, None]
        assert each["mm"] == {"o": each["m"]}


def test_rows_whose_maps_are_null_are_folded() -> None:
    found, _ = reduced(lambda s: s.reduce(sums, name="sums"))
    assert [(each["n"], each["m"], each["r"], each["l"], each["mm"]) for each in found] == [(9, None, None, None, None)]


def test_a_folded_row_that_does_not_fit_is_a_bad_row() -> None:
    def wrong(a: pen.Row, b: pen.Row) -> pen.Row:
        return b.replace(n="two") if b.n == 2 else b.replace(n=a.n + b.n)

    found, refused = reduced(lambda s: s.select("k", "n").key_by("k").reduce(wrong, name="wrong"), on_error="dead-letter")
    assert sorted((each["k"], each["n"]) for each in found) == [("a", 4), ("b", 9), ("c", 9)]
    (letter,) = refused
    assert "n: expected bigint, and found str" in letter["error"]
