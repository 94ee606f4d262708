"""Batch: what is there now, then the end; or, with finish=False, a stop that anything can go on from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources

pytestmark = pytest.mark.spark

SCHEMA = "user string, n bigint, at timestamp"


def write_rows(folder: Path, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"user": f"u{n % 5}", "n": n, "at": n * 1_000_000}) for n in range(first, first + count)]
    (folder / f"{first:06}.json").write_text("\n".join(lines) + "\n")


def expected(count: int) -> Counter[tuple[str, int]]:
    return Counter((f"u{n % 5}", n // 60) for n in range(count))


def found(out: Any) -> Counter[tuple[str, int]]:
    keys = [(row["user"], int(row["window_start"].timestamp()) // 60) for row in out.rows()]
    assert len(keys) == len(set(keys)), "a window came out twice"
    return Counter({key: row["c"] for key, row in zip(keys, out.rows())})


def per_minute(folder: Path, out: Any, *, watch: str | None = None, splits: int = 1) -> pen.Pipeline:
    pipeline = pen.Pipeline("ads")
    read = pipeline.read(
        sources.files(folder, schema=SCHEMA, format="json", watch=watch, splits=splits), name="in"
    ).with_watermark("at", delay="5s")
    read.key_by("user").window(pen.tumbling("1m")).aggregate(c=pen.count(), name="minutes").write(out)
    return pipeline


@pytest.fixture
def out(request: pytest.FixtureRequest) -> Any:
    sink = sinks.memory("".join(c for c in request.node.name if c.isalnum()))
    yield sink
    sink.clear()


@pytest.mark.parametrize("watch", [None, "1s"])
def test_everything_that_is_there_and_then_the_end(spark: Any, out: Any, tmp_path: Path, watch: str | None) -> None:
    for first in range(0, 600, 200):
        write_rows(tmp_path / "in", first, 200)
    job = per_minute(tmp_path / "in", out, watch=watch, splits=2).run(pen.Batch(spark, parallelism=2, rows_per_epoch=150))
    assert found(out) == expected(600)
    assert job.status().state == "finished"


def test_nothing_there_is_a_result_too(spark: Any, out: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert per_minute(tmp_path / "in", out).run(pen.Batch(spark, parallelism=2)).status().state == "finished"
    assert out.rows() == []


def test_a_batch_goes_on_where_the_last_one_stopped(spark: Any, out: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "in", 0, 150)
    before = dict(spark.conf.getAll)
    job = per_minute(tmp_path / "in", out).run(pen.Batch(spark, parallelism=3, storage=tmp_path / "store", finish=False))
    assert job.status().state == "stopped"
    assert 0 < sum(found(out).values()) < 150
    write_rows(tmp_path / "in", 150, 150)
    per_minute(tmp_path / "in", out).run(pen.Batch(spark, parallelism=2, storage=tmp_path / "store"))
    assert found(out) == expected(300)
    assert dict(spark.conf.getAll) == before


def test_a_batch_between_two_streams_by_savepoints(spark: Any, out: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "in", 0, 150)
    with per_minute(tmp_path / "in", out, watch="20ms").start(pen.Local(storage=tmp_path / "a", snapshot_every="20ms")) as job:
        while not out.rows():
            assert not job.done
        first = job.savepoint(tmp_path / "first")
    write_rows(tmp_path / "in", 150, 150)
    runner = pen.Batch(spark, parallelism=2, storage=tmp_path / "b", finish=False)
    per_minute(tmp_path / "in", out, watch="20ms").run(runner, restore=first)
    write_rows(tmp_path / "in", 300, 150)
    with per_minute(tmp_path / "in", out, watch="20ms").start(pen.Local(storage=tmp_path / "b", snapshot_every="20ms")) as job:
        while sum(found(out).values()) < 400:
            assert not job.done
        second = job.savepoint(tmp_path / "second")
    per_minute(tmp_path / "in", out, watch="20ms").run(pen.Batch(spark, parallelism=3, storage=tmp_path / "c"), restore=second)
    assert found(out) == expected(450)
