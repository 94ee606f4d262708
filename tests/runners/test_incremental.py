"""Incremental runs: a job over files is run again when new files are there, and takes only those; open windows stay open in between."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.errors import ConfigError, RestoreError
from penstock.testing import Simulated

SCHEMA = "user string, n bigint, at timestamp"
DAY = 150  # rows, one per second


def write_rows(folder: Path, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"user": f"u{n % 5}", "n": n, "at": n * 1_000_000}) for n in range(first, first + count)]
    (folder / f"{first:06}.json").write_text("\n".join(lines) + "\n")


def per_minute(folder: Path, out: Any, *, watch: str | None = None) -> pen.Pipeline:
    source = sources.files(folder, schema=SCHEMA, format="json", watch=watch, splits=1)
    timed = pen.Pipeline("ads").read(source, name="in").with_watermark("at", delay="5s")
    return timed.key_by("user").window(pen.tumbling("1m")).aggregate(c=pen.count(), name="minutes").write(out)


def totals(folder: Path, out: Any) -> pen.Pipeline:
    source = sources.files(folder, schema=SCHEMA, format="json", splits=2)
    return pen.Pipeline("totals").read(source, name="in").key_by("user").aggregate(c=pen.count(), name="totals").write(out)


def expected(count: int) -> Counter[tuple[str, int]]:
    return Counter((f"u{n % 5}", n // 60) for n in range(count))


def found(out: Any) -> Counter[tuple[str, int]]:
    keys = [(row["user"], int(row["window_start"].timestamp()) // 60) for row in out.rows()]
    assert len(keys) == len(set(keys)), "a window came out twice"
    return Counter({key: row["c"] for key, row in zip(keys, out.rows())})


def newest(out: Any) -> dict[str, int]:
    return {row["user"]: row["c"] for row in out.rows()}


@pytest.fixture
def out(request: pytest.FixtureRequest) -> Any:
    sink = sinks.memory("".join(c for c in request.node.name if c.isalnum()))
    yield sink
    sink.clear()


Make = Callable[..., Any]
RUNNERS: list[Any] = [
    pytest.param(lambda **options: pen.Local(**options), id="local"),
    pytest.param(lambda **options: Simulated(seed=3, **options), id="simulated"),
    pytest.param(lambda **options: pen.MicroBatch(**options), id="micro-batch", marks=[pytest.mark.spark]),
    pytest.param(lambda **options: pen.Continuous(**options), id="continuous", marks=[pytest.mark.spark]),
    pytest.param(lambda **options: pen.Batch(**options), id="batch", marks=[pytest.mark.spark]),
]


@pytest.mark.parametrize("watch", [None, "1h"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_each_day_its_files_and_windows_go_on_where_they_were(
    request: pytest.FixtureRequest, tmp_path: Path, out: Any, runner: Make, watch: str | None
) -> None:
    if any(mark.name == "spark" for mark in request.node.iter_markers()):
        request.getfixturevalue("spark")
    for day in range(3):
        write_rows(tmp_path / "in", day * DAY, DAY)
        job = per_minute(tmp_path / "in", out, watch=watch).run(
            runner(parallelism=2 - day % 2, storage=tmp_path / "store", finish=False)
        )
        assert job.status().state == "stopped"
        passed = day * DAY + DAY - 6  # the watermark: the last second, less the delay
        assert found(out) == Counter({key: c for key, c in expected(3 * DAY).items() if key[1] < passed // 60})
    again = per_minute(tmp_path / "in", out, watch=watch).run(runner(parallelism=1, storage=tmp_path / "store", finish=False))
    assert again.status().state == "stopped"
    if watch is None:
        per_minute(tmp_path / "in", out).run(runner(parallelism=2, storage=tmp_path / "store"))
        assert found(out) == expected(3 * DAY)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_finished_job_without_event_time_takes_new_files_when_it_is_run_again(
    request: pytest.FixtureRequest, tmp_path: Path, out: Any, runner: Make
) -> None:
    if any(mark.name == "spark" for mark in request.node.iter_markers()):
        request.getfixturevalue("spark")
    for day in range(3):
        write_rows(tmp_path / "in", day * DAY, DAY)
        job = totals(tmp_path / "in", out).run(runner(parallelism=1 + day % 2, storage=tmp_path / "store"))
        assert job.status().state == "finished"
        assert newest(out) == {f"u{user}": (day + 1) * DAY // 5 for user in range(5)}
    before = len(out.rows())
    totals(tmp_path / "in", out).run(runner(parallelism=1, storage=tmp_path / "store"))
    assert len(out.rows()) == before, "there was no new file"


def test_a_finished_job_with_event_time_is_refused_and_told_of_finish(tmp_path: Path, out: Any) -> None:
    write_rows(tmp_path / "in", 0, DAY)
    per_minute(tmp_path / "in", out).run(pen.Local(storage=tmp_path / "store"))
    with pytest.raises(RestoreError, match="finish=False"):
        per_minute(tmp_path / "in", out).run(pen.Local(storage=tmp_path / "store"))


@pytest.mark.parametrize("closing", ["timers", "windows of rows", "windows of the day"])
def test_what_its_end_closed_is_not_run_again_either(tmp_path: Path, out: Any, closing: str) -> None:
    class Later(pen.ProcessFunction):
        def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
            ctx.set_timer("t", after="1h", clock="processing")

        def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> dict[str, str]:
            return {"v": "late"}

    def pipeline() -> pen.Pipeline:
        keyed = pen.Pipeline("p").read(sources.memory([{"n": 1}], schema="n bigint")).key_by("n")
        if closing == "timers":
            return keyed.process(Later(), schema="v string", name="later").write(out)
        window = pen.tumbling(rows=3) if closing == "windows of rows" else pen.tumbling("1h", clock="processing")
        return keyed.window(window).aggregate(c=pen.count(), name="counts").write(out)

    pipeline().run(pen.Local(storage=tmp_path))
    assert len(out.rows()) == 1
    with pytest.raises(RestoreError, match="is finished"):
        pipeline().run(pen.Local(storage=tmp_path))


async def slow(n: int) -> int:
    import asyncio

    await asyncio.sleep(0.2)
    return n


def test_calls_that_are_under_way_are_waited_for(tmp_path: Path, out: Any) -> None:
    p = pen.Pipeline("p").read(sources.memory([1, 2, 3], schema=int)).map_async(slow, name="calls").write(out)
    p.run(pen.Local(storage=tmp_path, finish=False, snapshot_every="20ms"))
    assert sorted(row["value"] for row in out.rows()) == [1, 2, 3]


LATE_ROWS = 6


@dataclass(frozen=True)
class Late(Source):
    """Answers late: a row each time. `knows`: whether it says that nothing is there while it waits for an answer."""

    bounded: bool = False
    knows: bool = True
    after_s: float = 0.2
    name: str = "late"
    schema: pa.Schema = field(default_factory=lambda: pa.schema({"n": pa.int64()}))

    def splits(self) -> tuple[str, ...]:
        return ("0", "1")

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return LateReader(self, int(split), position or 0)


class LateReader(Reader):
    def __init__(self, source: Late, split: int, position: int) -> None:
        self.source, self.split, self.position, self.at = source, split, position, time.monotonic() + source.after_s

    def poll(self, rows_max: int) -> Chunk | None:
        left = LATE_ROWS // 2 - self.position
        if time.monotonic() < self.at or (not left and not self.source.bounded):
            return None
        if left:
            self.position, self.at = self.position + 1, time.monotonic() + self.source.after_s + 0.1 * self.split
        batch = pa.record_batch({"n": pa.array([2 * self.position + self.split] if left else [], pa.int64())})
        return Chunk(batch, self.position, ended=self.source.bounded and left <= 1)

    def backlog(self) -> bool:
        return not self.source.knows or time.monotonic() >= self.at


@pytest.mark.parametrize("source", [Late(), Late(knows=False), Late(bounded=True), Late(bounded=True, knows=False, after_s=1.2)])
@pytest.mark.parametrize("runner", [runner for runner in RUNNERS if runner.id != "simulated"])
def test_all_that_a_source_has_is_read_however_late_it_answers(
    request: pytest.FixtureRequest, tmp_path: Path, out: Any, runner: Make, source: Late
) -> None:
    if any(mark.name == "spark" for mark in request.node.iter_markers()):
        request.getfixturevalue("spark")
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
    job = pen.Pipeline("p").read(source).write(out).run(runner(storage=tmp_path, parallelism=1, finish=False))
    assert job.status().state == "stopped"
    assert sorted(row["n"] for row in out.rows()) == list(range(2, LATE_ROWS + 2))


@pytest.mark.spark
def test_a_batch_over_an_endless_source_reads_all_that_is_there(spark: Any, tmp_path: Path, out: Any) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    job = pen.Pipeline("p").read(Late()).write(out).run(pen.Batch(storage=tmp_path, parallelism=1))
    assert job.status().state == "finished"
    assert sorted(row["n"] for row in out.rows()) == list(range(2, LATE_ROWS + 2))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("finish", [False, True])
def test_new_files_of_a_split_that_had_ended_when_the_job_was_stopped_are_read(
    tmp_path: Path, out: Any, finish: bool, timed: bool
) -> None:
    def both(rows: int | None) -> pen.Pipeline:
        p = pen.Pipeline("both")
        days = p.read(sources.files(tmp_path / "in", schema=SCHEMA, format="json", splits=1), name="days").select("n", "at")
        at = {"n": -1, "at": datetime(2026, 11, 18, tzinfo=UTC)}
        clock = sources.generate(lambda index: at, schema="n bigint, at timestamp", rate=200, rows=rows, splits=1)
        stream = days.union(p.read(clock, name="clock"))
        return (stream.with_watermark("at", delay="1d") if timed else stream).select("n").write(out)

    write_rows(tmp_path / "in", 0, 3)
    job = both(None).start(pen.Local(storage=tmp_path / "store", snapshot_every="20ms"))
    while not ended_in(job.conductor.manifest, "days"):
        time.sleep(0.01)
    job.stop()
    write_rows(tmp_path / "in", 3, 3)
    both(None if not finish else 10).run(pen.Local(storage=tmp_path / "store", finish=finish))
    assert sorted(row["n"] for row in out.rows() if row["n"] >= 0) == list(range(6))


def ended_in(manifest: Any, source: str) -> bool:
    splits = [split for entry in manifest.sources if entry.name == source for split in entry.splits.values()] if manifest else []
    return bool(splits) and all(split.ended for split in splits)


def test_an_endless_source_that_has_nothing_now_is_left(tmp_path: Path, out: Any) -> None:
    (tmp_path / "in").mkdir()
    job = per_minute(tmp_path / "in", out, watch="1h").run(pen.Local(storage=tmp_path / "store", finish=False))
    assert job.status().state == "stopped"


def test_finish_can_be_said_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pen.Local().options("p").finish is True
    (tmp_path / "penstock.toml").write_text("[defaults]\nfinish = false\n")
    assert pen.Local().describe("p")["finish"] == "False  (penstock.toml [defaults])"
    monkeypatch.setenv("PENSTOCK_FINISH", "yes")
    assert pen.Batch().describe("p")["finish"] == "True  (PENSTOCK_FINISH)"
    assert pen.Batch(finish=False).describe("p")["finish"] == "False  (argument)"
    monkeypatch.setenv("PENSTOCK_FINISH", "perhaps")
    with pytest.raises(ConfigError, match=r"finish='perhaps' \(PENSTOCK_FINISH\) is neither true nor false"):
        pen.Local().options("p")
