"""Whose rows a memory sink shows: those of the newest history of outputs under its name."""

from __future__ import annotations

import time
from pathlib import Path

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.memorysink import MemorySink
from penstock.runners.job import Job


def pipeline(sink: MemorySink, *values: int, name: str = "rows") -> pen.Pipeline:
    p = pen.Pipeline(name)
    p.read(sources.memory([{"n": n} for n in values], schema="n bigint")).write(sink)
    return p


def values(sink: MemorySink) -> list[int]:
    return [row["n"] for row in sink.rows()]


def test_a_run_shows_its_own_rows_and_not_those_of_an_earlier_one() -> None:
    with sinks.memory("again") as out:
        p = pipeline(out, 1, 2)
        p.run(pen.Local())
        assert values(out) == [1, 2]
        p.run(pen.Local())
        assert values(out) == [1, 2]
        pipeline(sinks.memory("again"), 3, name="other").run(pen.Local())
        assert values(out) == [3], "the name was taken over"


def test_a_run_without_rows_leaves_none_of_an_earlier_one() -> None:
    with sinks.memory("empty") as out:
        pipeline(out, 1, 2).run(pen.Local())
        p = pen.Pipeline("empty")
        p.read(sources.memory([{"n": 1}], schema="n bigint")).filter("n > 1").write(out)
        p.run(pen.Local())
        assert out.rows() == []


def test_rows_are_readable_after_the_run_under_their_name() -> None:
    pipeline(sinks.memory("after"), 1).run(pen.Local())
    assert values(sinks.memory("after")) == [1]
    sinks.memory("after").clear()
    assert sinks.memory("after").rows() == []


def test_two_streams_of_a_run_may_share_a_name() -> None:
    with sinks.memory("shared") as out:
        p = pen.Pipeline("both")
        rows = p.read(sources.memory([{"n": 1}, {"n": 2}], schema="n bigint"))
        rows.filter("n = 1").write(out, name="ones")
        rows.filter("n = 2").write(out, name="twos")
        p.run(pen.Local())
        assert sorted(values(out)) == [1, 2]


def endless(sink: MemorySink) -> pen.Pipeline:
    p = pen.Pipeline("endless")
    p.read(sources.generate(lambda index, seed: {"n": index}, schema="n bigint", rate=2000, splits=1)).write(sink)
    return p


def until_more(sink: MemorySink, job: Job) -> None:
    before = len(sink.rows())
    deadline = time.monotonic() + 20
    while len(sink.rows()) <= before:
        assert not job.done, "the job has ended"
        assert time.monotonic() < deadline, "no new rows"
        time.sleep(0.01)


def test_a_run_that_goes_on_from_a_checkpoint_or_a_savepoint_adds_to_the_rows(tmp_path: Path) -> None:
    with sinks.memory("on") as out:
        first = pen.Local(storage=tmp_path / "a", snapshot_every="20ms")
        for _ in range(2):
            with endless(out).start(first) as job:
                until_more(out, job)
        saved = endless(out).start(first)
        kept = saved.savepoint(tmp_path / "kept")
        saved.stop()
        rows = len(out.rows())
        with endless(sinks.memory("on")).start(pen.Local(storage=tmp_path / "b", snapshot_every="20ms"), restore=kept) as job:
            until_more(out, job)
        assert len(out.rows()) > rows
        assert set(values(out)) == set(range(max(values(out)) + 1)), "no row is missing, of whichever run"


def test_a_run_that_starts_over_in_the_same_process_shows_no_row_twice(tmp_path: Path) -> None:
    with sinks.memory("over") as out:
        for storage in ("a", "b"):
            with endless(out).start(pen.Local(storage=tmp_path / storage, snapshot_every="20ms")) as job:
                until_more(out, job)
        assert values(out) == list(range(len(out.rows())))
