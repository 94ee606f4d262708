"""What is wrong on the outside: records, files, savepoints, names, disks. Each has its own error, and nothing is half done."""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import BadNameError, ConfigError, HeldError, JobError, PlanError, RestoreError

SCHEMA = "n bigint not null, word string"


def committed(folder: Path) -> list[dict[str, Any]]:
    """The rows readers see in a files sink."""
    return [json.loads(line) for path in sorted(folder.glob("epoch=*/part-*")) for line in path.read_text().splitlines()]


def copying(folder: Path, out: Path, *, on_error: str = "fail", pattern: str = "*.json", schema: Any = SCHEMA) -> pen.Pipeline:
    p = pen.Pipeline("copy", on_error=on_error)
    p.read(sources.files(folder / pattern, schema=schema, name="in")).write(sinks.files(out, format="json", name="out"))
    if on_error == "dead-letter":
        p.dead_letters.write(sinks.memory("bad-input-dead"))
    return p


# --- records ------------------------------------------------------------------------------------------------------------

LINES = [
    '{"n": 1, "word": "good"}',
    '{"n": 2, "word":',
    "[3]",
    '{"word": "no n"}',
    '{"n": "five", "word": "x"}',
    '{"n": 99999999999999999999, "word": "x"}',
    '{"n": 7, "word": "also good"}',
]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text("\n".join(LINES) + "\n")
    return folder


def test_malformed_lines_become_dead_letters_that_say_where_they_stood(lines: Path, tmp_path: Path) -> None:
    dead = sinks.memory("bad-input-dead")
    dead.clear()
    job = copying(lines, tmp_path / "out", on_error="dead-letter").run(pen.Local())
    assert [row["n"] for row in committed(tmp_path / "out")] == [1, 7]
    letters = dead.rows()
    offsets = [sum(len(line) + 1 for line in LINES[:number]) for number in range(1, 6)]
    assert [row["position"] for row in letters] == [str({"file": "a.json", "offset": offset}) for offset in offsets]
    assert [row["record"] for row in letters] == LINES[1:6]
    for row in letters:
        assert (row["step"], row["source"], row["event_time"]) == ("in", "in", None)
        assert row["split"] is not None
        assert row["error"]
    assert letters[0]["error"].startswith("not JSON")
    assert "expected an object" in letters[1]["error"]
    assert "'n'" in letters[2]["error"]
    steps = {row["step"]: row for row in job.metrics()}
    assert steps["source in"]["dead"] == 5


def test_a_malformed_line_stops_a_job_that_fails_on_errors_and_is_named(lines: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        copying(lines, tmp_path / "out").run(pen.Local(restarts=3, backoff="10ms"))
    text = str(caught.value)
    assert re.search(r"source 'in' \(test_bad_input.py:\d+\), split", text)
    assert f"'file': 'a.json', 'offset': {len(LINES[0]) + 1}" in text
    assert LINES[1] in text
    assert 'on_error="dead-letter"' in text
    assert committed(tmp_path / "out") == []


def test_a_bad_record_is_not_tried_again(lines: Path, tmp_path: Path) -> None:
    job = copying(lines, tmp_path / "out").start(pen.Local(restarts=10, backoff="5s"))
    began = time.monotonic()
    with pytest.raises(JobError):
        job.wait(timeout="20s")
    assert time.monotonic() - began < 5
    assert job.status().restarts == 0


def test_rows_a_function_cannot_take_become_dead_letters_too(tmp_path: Path) -> None:
    dead, out = sinks.memory("bad-rows-dead"), sinks.memory("bad-rows-out")
    dead.clear()
    out.clear()
    p = pen.Pipeline("rows", on_error="dead-letter")
    rows = p.read(sources.memory([{"n": 4}, {"n": 0}, {"n": None}, {"n": 2}], schema="n bigint", name="numbers"))
    rows.map(lambda row: 8 // row.n, schema=int).write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local())
    assert [row["value"] for row in out.rows()] == [2, 4]
    assert [row["record"] for row in dead.rows()] == ["{'n': 0}", "{'n': None}"]
    assert dead.rows()[0]["error"].startswith("ZeroDivisionError")
    assert dead.rows()[1]["error"].startswith("TypeError")


# --- files --------------------------------------------------------------------------------------------------------------


def write_file(path: Path, columns: dict[str, list[Any]]) -> None:
    table = pa.table(columns)
    if path.suffix == ".csv":
        pv.write_csv(table, path)
    else:
        pq.write_table(table, path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_file_without_a_column_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_file(folder / f"a{suffix}", {"n": [1], "word": ["x"]})
    write_file(folder / f"b{suffix}", {"n": [1], "wrod": ["x"]})
    with pytest.raises(JobError) as caught:
        copying(folder, tmp_path / "out", pattern=f"*{suffix}").run(pen.Local(restarts=1, backoff="1ms"))
    text = str(caught.value)
    assert f"'b{suffix}' has no column 'word'" in text
    assert "n, wrod" in text
    assert committed(tmp_path / "out") == []


def test_a_file_that_is_no_parquet_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"PAR1 this is not it")
    with pytest.raises(JobError, match=r"a\.parquet"):
        copying(folder, tmp_path / "out", pattern="*.parquet").run(pen.Local(restarts=1, backoff="1ms"))


def test_json_without_a_schema_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        sources.files(tmp_path / "*.json")


# --- savepoints and names ---------------------------------------------------------------------------------------------


def counting(name: str = "counts", *, step: str = "counts", window: str = "10s", key: str = "k", rows: int = 300) -> pen.Pipeline:
    p = pen.Pipeline(name)
    made = p.read(
        sources.generate(numbers, schema="k bigint, word string, at timestamp", rows=rows, rate=200, splits=1, name="numbers")
    )
    timed = made.with_watermark("at", delay="0s")
    timed.key_by(key).window(pen.tumbling(window)).aggregate(n=pen.count(), name=step).write(sinks.memory(f"bad-input-{name}"))
    return p


def numbers(index: Any, seed: int) -> dict[str, Any]:
    at = pa.array(index * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return {"k": index % 5, "word": pa.array([str(n) for n in index]), "at": at}


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("savepoint") / "sp"
    job = counting(rows=100_000).start(pen.Local(snapshot_every="20ms"))
    job.savepoint(path)
    job.cancel()
    return path


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: windows(Path("unused"), 10), "the savepoint has state of step 'counts', and this pipeline has no such step"),
        (lambda: counting(step="renamed"), "the savepoint has state of step 'counts', and this pipeline has no such step"),
        (lambda: counting(window="20s"), "counts"),
        (lambda: counting(key="word"), "counts"),
    ],
    ids=["pipeline", "step", "window", "key"],
)
def test_a_savepoint_of_another_pipeline_is_refused(savepoint: Path, build: Callable[[], pen.Pipeline], text: str) -> None:
    with pytest.raises(RestoreError, match=text):
        build().run(pen.Local(), restore=str(savepoint))


def test_a_savepoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError):
        counting().run(pen.Local(), restore=str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []


def test_storage_of_another_shape_of_the_same_pipeline_is_refused(tmp_path: Path) -> None:
    job = counting(rows=100_000).start(pen.Local(storage=str(tmp_path), snapshot_every="20ms"))
    while job.status().epoch < 1:
        time.sleep(0.01)
    job.stop()
    before = sorted(path.name for path in tmp_path.glob("counts/log/*"))
    with pytest.raises(RestoreError):
        counting(key="word").run(pen.Local(storage=str(tmp_path)))
    after = sorted(path.name for path in tmp_path.glob("counts/log/*"))
    assert len(after) <= len(before) + 1, "a claim, and no checkpoint"


@pytest.mark.parametrize("name", ["../outside", "..", "a/../../b", "/etc"])
def test_a_name_cannot_leave_the_storage(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadNameError, match="cannot be the name of a pipeline"):
        pen.Pipeline(name)
    assert issubclass(BadNameError, PlanError)
    with pytest.raises(BadNameError, match="cannot be the name of a step"):
        counting(step=name)
    assert list(tmp_path.iterdir()) == []


def test_a_second_job_of_the_same_name_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    job = counting(rows=100_000).start(pen.Local(storage=str(tmp_path), snapshot_every="20ms"))
    while job.status().epoch < 1:
        time.sleep(0.01)
    with pytest.raises(HeldError, match=str(os.getpid())):
        counting().run(pen.Local(storage=str(tmp_path)))
    assert not job.done
    job.stop(timeout="20s")


# --- a full disk --------------------------------------------------------------------------------------------------------


def unavailable(why: str) -> None:
    """Skip, saying why; where everything must be tested, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        unavailable("mounting a small file system needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode:
        unavailable("cannot mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up all the space there is."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return ballast
    raise AssertionError("unreachable")


def aborts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "was aborted" in record.getMessage()]


def windows(out: Path, rows: int) -> pen.Pipeline:
    p = pen.Pipeline("windows")
    made = p.read(
        sources.generate(numbers, schema="k bigint, word string, at timestamp", rows=rows, rate=2000, splits=1, name="numbers")
    )
    timed = made.with_watermark("at", delay="0s")
    timed.key_by("k").window(pen.tumbling("100ms")).aggregate(n=pen.count(), name="w").write(sinks.files(out, format="json"))
    return p


def test_a_job_whose_state_cannot_be_stored_goes_on_and_loses_nothing(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="penstock")
    rows, out = 4000, tmp_path / "out"
    job = windows(out, rows).start(pen.Local(storage=str(small_disk), snapshot_every="150ms"))
    deadline = time.monotonic() + 20
    while job.status().epoch < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    while not aborts(caplog) and time.monotonic() < deadline and not job.done:
        ballast = fill(small_disk)
        time.sleep(0.01)
    assert not job.done, job.status()
    assert "ENOSPC" in aborts(caplog)[0]
    assert "Free some space" in aborts(caplog)[0]
    ballast.unlink()
    job.wait(timeout="20s")
    assert job.status().state == "finished"
    assert job.status().restarts == 0
    found = committed(out)
    assert len(found) == len({(row["k"], row["window_start"]) for row in found}), "no window twice"
    assert sum(row["n"] for row in found) == rows


def test_a_checkpoint_that_cannot_be_published_ends_the_job_in_words_and_shows_nothing(small_disk: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    p = pen.Pipeline("stateless")
    p.read(sources.generate(numbers, schema="k bigint, word string, at timestamp", rate=500, splits=1, name="numbers")).select(
        "k"
    ).write(sinks.files(out, format="json"))
    job = p.start(pen.Local(storage=str(small_disk), snapshot_every="300ms", restarts=1, backoff="10ms"))
    while job.status().attempt < 1:
        time.sleep(0.005)
    fill(small_disk)
    with pytest.raises(JobError) as caught:
        job.wait(timeout="20s")
    assert "cannot be published" in str(caught.value)
    assert "ENOSPC (No space left on device)\n  Free some space on that file system" in str(caught.value)
    assert all(int(path.name.removeprefix("epoch=")) <= job.status().epoch for path in out.glob("epoch=*"))
    assert [path.name for path in (small_disk / "stateless" / "log").iterdir() if path.name.endswith(".tmp")] == []


def test_a_job_cannot_start_on_a_full_disk_and_says_so(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    with pytest.raises(pen.PenstockError, match="No space left on device"):
        windows(tmp_path / "out", 10).run(pen.Local(storage=str(small_disk)))
    assert not (tmp_path / "out").exists() or committed(tmp_path / "out") == []


def test_output_that_does_not_fit_its_disk_is_not_half_visible(small_disk: Path, tmp_path: Path) -> None:
    out = small_disk / "out"
    p = pen.Pipeline("large")
    text = {"text": pa.array(["".join(np.random.default_rng(1).choice(list("abcdefgh"), 2000)) for _ in range(1000)])}
    p.read(sources.memory(pa.table(text))).write(sinks.files(out, format="json"))
    with pytest.raises(JobError, match="No space left on device"):
        p.run(pen.Local(storage=str(tmp_path / "storage"), restarts=1, backoff="10ms"))
    assert committed(out) == []


@pen.udf
def _day(d: datetime.date) -> str:
    return str(d)


class _Days(pen.ProcessFunction):
    def on_row(self, row: Any, ctx: Any) -> Any:
        return {"x": str(row.d)}


class _Latest(pen.Aggregate):
    def create(self) -> str:
        return ""

    def add(self, acc: str, d: datetime.date) -> str:
        return max(acc, str(d))

    def merge(self, acc: str, other: str) -> str:
        return max(acc, other)

    def result(self, acc: str) -> str:
        return acc


async def awaited(row: Any) -> dict[str, str]:
    return {"x": str(row.d)}


FAR = pa.table({"k": ["a", "b", "c"], "d": pa.array([20_000, 33_603_700, 1], pa.int32()).cast(pa.date32())})
"""Of a source that has years which Python has not: the day in the middle is in the year 93973."""


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.map(lambda row: {"x": str(row.d)}, schema="x string"),
        lambda s: s.filter(lambda row: row.d is not None),
        lambda s: s.map_async(awaited, schema="x string"),
        lambda s: s.select(x=_day(pen.col("d"))),
        lambda s: s.key_by("k").process(_Days(), schema="x string", name="days"),
        lambda s: s.key_by("k").reduce(lambda a, b: b, name="newest"),
        lambda s: s.key_by("k").aggregate(x=_Latest()(pen.col("d")), name="latest"),
    ],
    ids=["map", "filter", "map_async", "udf", "process", "reduce", "aggregate"],
)
def test_a_year_that_python_does_not_have_in_a_table_is_a_bad_row_of_each_function(step: Any) -> None:
    out, dead = sinks.memory("far"), sinks.memory("far-dead")
    p = pen.Pipeline("far", on_error="dead-letter")
    step(p.read(sources.memory(FAR, schema=FAR.schema))).write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local())
    assert len(out.rows()) == 2
    (letter,) = dead.rows()
    assert "a time outside of the years 0001 to 9999, which Python does not have" in letter["error"]
    assert "93973" in letter["record"]


def test_a_year_that_python_does_not_have_is_written_as_it_is(tmp_path: Path) -> None:
    times = pa.array([2**61, None, 0]).cast(pa.timestamp("us", "UTC"))
    table = (
        FAR.append_column("l", pa.array([2**60, 0, 0]).cast(pa.duration("s")))
        .append_column("t", times)
        .append_column("r", pa.StructArray.from_arrays([times], names=["t"]))
    )
    out = sinks.memory("far-kept")
    p = pen.Pipeline("far")
    rows = p.read(sources.memory(table, schema=table.schema))
    rows.write(out)
    rows.drop("l").write(sinks.files(tmp_path, format="json", name="texts"))
    p.run(pen.Local())
    assert [row["d"] for row in out.rows()] == [datetime.date(2024, 10, 4), "93973-10-22", datetime.date(1970, 1, 2)]
    assert out.rows()[0]["r"] == {"t": "75039-04-04T19:00:13.693952+00:00"}
    assert out.rows()[0]["l"] == f"{2**60} s"
    assert [row["d"] for row in committed(tmp_path)] == ["2024-10-04", "93973-10-22", "1970-01-02"]
    assert out.table().column("d").cast(pa.int32()).to_pylist() == [20_000, 33_603_700, 1]
