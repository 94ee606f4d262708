"""Which rows a source may leave out: those that a filter right behind it drops, and no others."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import col, sinks, sources
from penstock.connectors.connector import Bound
from penstock.expr import Expr
from penstock.plan.explain import explain_plan

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = "n bigint, small int, kind string, day date, at timestamp, x double, yes boolean"


def bounds(stream: pen.Stream) -> tuple[Bound, ...]:
    (read,) = stream.write(sinks.memory("bounds")).plan().reads
    return read.bounds


def parquet(tmp_path: Path, schema: str = SCHEMA) -> pen.Stream:
    return pen.Pipeline("test").read(sources.files(tmp_path, format="parquet", schema=schema, watch="1s", name="lake"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (col("n") > 3, [("n", ">", 3)]),
        (pen.lit(3) <= col("n"), [("n", ">=", 3)]),
        ((col("n") >= 3) & (col("kind") == "view"), [("n", ">=", 3), ("kind", "=", "view")]),
        (col("n").between(1, 5), [("n", ">=", 1), ("n", "<=", 5)]),
        (col("small") < 7, [("small", "<", 7)]),
        (col("day") == date(2026, 11, 15), [("day", "=", date(2026, 11, 15))]),
        (col("at") < NOON, [("at", "<", NOON)]),
        ((col("n") != 3) & (col("n") > 0), [("n", ">", 0)]),
        (col("x") > 3.0, []),  # NaN is greater than all numbers here, and not in statistics
        (col("n") > 3.5, []),
        (col("small") > 2**40, []),
        (col("n") > col("small"), []),
        ((col("n") > 3) | (col("kind") == "view"), []),
        ((col("n") > 3) & (10 / col("n") > 1), []),  # a row that is left out could have been an error
        (col("yes"), []),
    ],
)
def test_bounds_are_the_comparisons_that_all_rows_must_meet(
    tmp_path: Path, condition: Expr, expected: list[tuple[str, str, object]]
) -> None:
    assert bounds(parquet(tmp_path).filter(condition)) == tuple(Bound(*each) for each in expected)


def test_filters_one_after_the_other_are_taken_together(tmp_path: Path) -> None:
    stream = parquet(tmp_path).filter("n > 3").filter("kind = 'view'").filter("10 / n > 1").filter("n < 100")
    assert bounds(stream) == (Bound("n", ">", 3), Bound("kind", "=", "view"))


def test_event_time_sees_all_rows_so_a_filter_behind_it_gives_no_bounds(tmp_path: Path) -> None:
    assert bounds(parquet(tmp_path).with_watermark("at", delay="0s").filter("n > 3")) == ()


def test_a_second_reader_gets_all_rows(tmp_path: Path) -> None:
    stream = parquet(tmp_path)
    stream.select("n").write(sinks.memory("all"))
    assert bounds(stream.filter("n > 3")) == ()


def test_sources_that_leave_out_nothing_are_told_nothing(tmp_path: Path) -> None:
    stream = pen.Pipeline("test").read(sources.files(tmp_path, format="json", schema=SCHEMA, watch="1s", name="lines"))
    assert bounds(stream.filter("n > 3")) == ()


def test_explain_shows_the_columns_and_the_bounds(tmp_path: Path) -> None:
    plan = parquet(tmp_path).filter("n > 3 and kind = 'view'").select("small").write(sinks.memory("explained")).plan()
    assert "source lake columns n, small, kind where n > 3 and kind = 'view'" in explain_plan(plan)


def test_the_result_is_that_of_the_filter_alone(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(100)), "kind": [("view", "click")[n % 2] for n in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    sink = sinks.memory("within")
    sink.clear()
    stream = (
        pen.Pipeline("test").read(sources.files(tmp_path, splits=1, name="lake")).filter("n >= 42 and n < 55 and kind = 'view'")
    )
    job = stream.write(sink).start(pen.Local(restarts=0))
    job.wait()
    assert sink.table().column("n").to_pylist() == [42, 44, 46, 48, 50, 52, 54]
    assert job.conductor.manifest is not None
    assert job.conductor.manifest.counters["source lake.read"] == 20  # of two groups
