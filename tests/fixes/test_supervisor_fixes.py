"""The fixes of jobs that cannot go on: of `runners`, and of the log of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.soak.life import wait_for

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from penstock import sinks, sources
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext, Verdict
from penstock.connectors.memorysink import MemorySink
from penstock.runners import settling
from penstock.runners.spark.java import java_death

ROWS = [{"n": n} for n in range(50)]


def local(storage: Path, **more: Any) -> pen.Local:
    return pen.Local(**{"parallelism": 1, "storage": storage, "snapshot_every": "20ms", "backoff": "1ms", **more})


def counted(name: str, out: Path) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    read = pipeline.read(sources.generate(lambda index, seed: {"n": index}, rate=1_000, splits=1, schema="n bigint"))
    read.key_by("n % 3 AS k").aggregate(n=pen.count(), name="counts").write(sinks.files(out, format="json", change="c"))
    return pipeline


# --- a job that fails again and again


@dataclass(frozen=True)
class Fragile(Source):
    """A row at a time, until its server is gone; positions are kept."""

    server: dict[str, int]
    name: str = "fragile"
    schema: pa.Schema = field(default_factory=lambda: pa.schema([pa.field("n", pa.int64(), nullable=False)]))

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return _Fragile(self, position or 0)


class _Fragile(Reader):
    def __init__(self, source: Fragile, at: int) -> None:
        self._source, self._at = source, at

    def poll(self, rows_max: int) -> Chunk | None:
        if self._at == self._source.server["until"]:
            raise ConnectionRefusedError("nobody listens")
        self._at += 1
        return Chunk(pa.record_batch([pa.array([self._at - 1])], schema=self._source.schema), self._at, ended=self._at == 200)


def test_a_job_that_failed_again_and_again_goes_on_once_that_is_mended(tmp_path: Path) -> None:
    server, rows = {"until": 100}, sinks.memory("fragile")
    pipeline = pen.Pipeline("fragile")
    pipeline.read(Fragile(server)).write(rows)
    job = pipeline.start(local(tmp_path, restarts=100_000, backoff="50ms"))
    wait_for(lambda: job.status().restarts > 1, 30, "it fails again and again")
    text = shown("job.hopeless", lambda: job.savepoint(tmp_path / "kept"))
    assert "it goes on from its newest checkpoint" in text
    job.cancel()
    server["until"] = -1
    pipeline.run(local(tmp_path))
    assert [row["n"] for row in rows.rows()] == list(range(200))


# --- a log that is damaged


def test_a_job_whose_log_is_damaged_starts_elsewhere_from_a_savepoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = pen.Pipeline("damaged")
    read = pipeline.read(sources.generate(lambda index, seed: {"n": index}, rows=200, rate=400, splits=1, schema="n bigint"))
    read.write(sinks.memory("damaged"))
    job = pipeline.start(local(tmp_path / "storage"))
    wait_for(lambda: job.status().epoch > 1, 30, "something is published")
    job.savepoint("savepoint")
    job.cancel()
    newest = max((tmp_path / "storage" / "damaged" / "log").iterdir())
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-7])
    (code,) = code_of(shown("log.damaged", lambda: pipeline.start(local(tmp_path / "storage"))))
    evaluate(code, pipeline=pipeline)
    newest.write_bytes(whole)  # the other way: the file is put back
    pipeline.start(local(tmp_path / "storage")).cancel()


# --- a sink that takes nothing


class Closed(MemorySink):
    """A sink in memory that is open or not, and knows what it has taken."""

    open = False
    taken: list[tuple[str, int]] = []  # noqa: RUF012 (of all of them)

    def committer(self, context: Any) -> Any:
        made: Any = super().committer(context)
        commit = made.commit

        def hesitate(epoch: int, *rest: Any) -> Verdict:
            if not Closed.open:
                return Verdict.RETRY
            self.taken.append((context.lineage, epoch))
            return Verdict(commit(epoch, *rest))

        made.commit, made.committed = hesitate, lambda: None
        return made


def test_an_epoch_that_a_sink_did_not_take_is_committed_by_the_start_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "PATIENCE_US", 0)
    sink = Closed("closed", ())
    pipeline = pen.Pipeline("closed")
    pipeline.read(sources.generate(lambda index, seed: {"n": index}, rate=1_000, splits=1, schema="n bigint")).write(sink)
    job = pipeline.start(local(tmp_path))
    wait_for(lambda: job.status().epoch > 0, 30, "something is published")
    job.cancel()
    text = shown("sinks.settle", lambda: pipeline.start(local(tmp_path), restore="none"))
    assert text == "Start the job again once the sink answers: the epoch is committed then"
    monkeypatch.setattr(Closed, "open", True)
    before = job.status()
    pipeline.start(local(tmp_path), restore="none").cancel()
    assert sink.taken[0] == (before.lineage, 1)


# --- a sink that shows another history


def test_a_sink_with_another_history_is_gone_on_with_or_left_alone(tmp_path: Path) -> None:
    job = counted("history", tmp_path / "out").start(local(tmp_path / "storage"))
    wait_for(lambda: list((tmp_path / "out").glob("epoch=*")) != [], 30, "something is shown")
    job.stop()
    text = shown("sinks.history", lambda: counted("history", tmp_path / "out").start(local(tmp_path / "other")))
    assert text == "Go on with the storage of that run, or write to another place"
    counted("history", tmp_path / "out").start(local(tmp_path / "storage")).stop()
    counted("history", tmp_path / "elsewhere").start(local(tmp_path / "third")).stop()


def test_after_a_job_was_cancelled_one_that_starts_empty_writes_to_another_place_in_the_same_storage(tmp_path: Path) -> None:
    job = counted("history", tmp_path / "out").start(local(tmp_path))
    wait_for(lambda: list((tmp_path / "out").glob("epoch=*")) != [], 30, "something is shown")
    job.cancel()
    text = shown("sinks.history", lambda: counted("history", tmp_path / "out").start(local(tmp_path), restore="none"))
    assert text == "Go on with the storage of that run, or write to another place"
    for place in ("second", "third"):
        counted("history", tmp_path / place).start(local(tmp_path), restore="none").cancel()
    counted("history", tmp_path / "third").start(local(tmp_path)).stop()


# --- a Spark that is gone


def test_a_job_whose_java_died_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = counted("orphan", out).start(local(tmp_path / "storage"))
    wait_for(lambda: job.status().epoch > 3, 30, "there are checkpoints")
    job.cancel()
    before = job.status().epoch
    dead = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(poll=lambda: -9))))

    def fails() -> None:
        died = java_death(dead)
        assert died is not None
        raise died

    text = shown("spark.java_died", fails)
    assert "Start the program again" in text
    job = counted("orphan", out).start(local(tmp_path / "storage"))
    wait_for(lambda: job.status().state == "running", 30, "it is there again")
    assert job.status().epoch >= before
    job.stop()
