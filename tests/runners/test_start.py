"""Starting a job: what keeps it from beginning is raised by `start`, not at the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import HeldError, RestoreError, StorageError
from penstock.runners import conductor


def counting(name: str = "counts", *, key: str = "word", sink: Any = None, rows: int | None = 3) -> pen.Pipeline:
    def words(index: Any, seed: int) -> dict[str, Any]:
        return {"word": ["a"] * len(index), "other": ["b"] * len(index)}

    source = sources.generate(words, schema="word string, other string", rows=rows, rate=None if rows else 1000)
    counted = pen.Pipeline(name).read(source).key_by(key).aggregate(n=pen.count(), name="totals")
    return counted.write(sink or sinks.memory(f"{name}-out"))


def stopped(storage: Path, **more: Any) -> None:
    job = counting(rows=None, **more).start(pen.Local(storage=storage, snapshot_every="20ms"))
    while job.status().epoch < 1:
        time.sleep(0.01)
    job.stop()


def test_a_restore_that_is_refused_is_raised_by_start(tmp_path: Path) -> None:
    stopped(tmp_path)
    with pytest.raises(RestoreError, match="is keyed by"):
        counting(key="other").start(pen.Local(storage=tmp_path))
    with pytest.raises(RestoreError, match="there is no savepoint"):
        counting().start(pen.Local(storage=tmp_path), restore=tmp_path / "nowhere")
    counting(rows=None).start(pen.Local(storage=tmp_path)).stop()  # nothing was left behind that would hold the storage


def test_a_storage_that_is_held_is_raised_by_start(tmp_path: Path) -> None:
    with counting(rows=None).start(pen.Local(storage=tmp_path)) as job:
        with pytest.raises(HeldError):
            counting(rows=None).start(pen.Local(storage=tmp_path))
        assert not job.done


def test_a_sink_that_holds_another_history_is_raised_by_start(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path / "out", format="json")
    source = sources.memory([{"n": 1}], schema="n bigint")
    pen.Pipeline("copy").read(source).write(sink).run(pen.Local(storage=tmp_path / "a"))
    with pytest.raises(RestoreError, match="of another run of this pipeline"):
        pen.Pipeline("copy").read(source).write(sink).start(pen.Local(storage=tmp_path / "b"))


def test_a_finished_job_is_refused_by_start(tmp_path: Path) -> None:
    def pipeline() -> pen.Pipeline:
        rows = sources.memory([{"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}], schema="n bigint, at timestamp")
        timed = pen.Pipeline("p").read(rows).with_watermark("at", delay="0s").key_by("n")
        return timed.window(pen.tumbling("1m")).aggregate(c=pen.count(), name="counts").write(sinks.memory("finished"))

    pipeline().run(pen.Local(storage=tmp_path))
    with pytest.raises(RestoreError, match="is finished"):
        pipeline().start(pen.Local(storage=tmp_path))


def test_what_fails_later_is_raised_by_wait(tmp_path: Path) -> None:
    def broken(row: pen.Row) -> int:
        raise ValueError("no")

    job = (
        pen.Pipeline("p").read(sources.memory([1], schema=int)).map(broken).write(sinks.memory("x")).start(pen.Local(restarts=0))
    )
    with pytest.raises(pen.JobError, match="ValueError: no"):
        job.wait()


def test_a_job_that_is_interrupted_while_it_starts_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: pen.Job) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pen.Job, "wait_until_begun", interrupted)
    with pytest.raises(KeyboardInterrupt):
        counting(rows=None).start(pen.Local(storage=tmp_path))
    monkeypatch.undo()
    counting(rows=None).start(pen.Local(storage=tmp_path)).cancel()  # the storage is free again


def test_a_start_that_fails_without_words_of_ours_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(conductor, "check_sinks", broken)
    with pytest.raises(pen.JobError, match="MemoryError: no room"):
        counting().start(pen.Local(storage=tmp_path))


def test_storage_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="is no folder that can be written to"):
        counting().start(pen.Local(storage=tmp_path / "taken"))
